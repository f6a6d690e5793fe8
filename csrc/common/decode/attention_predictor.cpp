// predictor_attention(): one group of 32 lanes per (row, new position, kv head), and no more than one round of loads.
#include "common/decode/attention_parts.h"
#include "common/launch.h"

namespace qwen3tts {
namespace {

constexpr int kAtOnce = 4;   // positions of a team whose scores are computed together
constexpr int kMaxNew = 2;

// Rounds of kAtOnce that hold 16 positions. Below 128 elements a group has two teams at least.
template <class T, int D> constexpr int kRounds = (D == 128 && sizeof(T) == 4 ? 16 : 8) / kAtOnce;

template <class T, int D, int H> __global__ void __launch_bounds__(gpu::kGroup) predictor_kernel(PredictorAttentionArguments a) {
  gpu::launch_dependents();
  constexpr int share = kShare<T>;
  const Team<T, D> team(a.head_dim);
  const int kv_head = static_cast<int>(blockIdx.x), row = static_cast<int>(blockIdx.y);
  const int step = static_cast<int>(blockIdx.z), position = a.first + step;
  float q_weight[share], k_weight[share];
  load_wide(static_cast<const T*>(a.q_norm) + team.first, q_weight);
  load_wide(static_cast<const T*>(a.k_norm) + team.first, k_weight);
  const Angles<T> angles(a.cos, a.sin, position * team.size + team.first);
  gpu::wait_for_previous();

  const int slot = a.slot[row];
  const int64_t width = static_cast<int64_t>(a.heads + 2 * a.kv_heads) * team.size;
  const T* qkv = static_cast<const T*>(a.qkv) + row * width;
  Queries<T, D, H> q;
  q.load(qkv + step * a.rows * width + kv_head * H * team.size, team);
  if (slot < 0) return;

  const int64_t cache = (static_cast<int64_t>(slot) * a.kv_heads + kv_head) * kPredictorPositions * team.size + team.first;
  T* keys = static_cast<T*>(a.keys) + cache;
  T* values = static_cast<T*>(a.values) + cache;
  gpu::Vector old_keys[kRounds<T, D>][kAtOnce], old_values[kRounds<T, D>][kAtOnce];
  bool there[kRounds<T, D>][kAtOnce];
#pragma unroll
  for (int round = 0; round < kRounds<T, D>; ++round)
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int at = (round * kAtOnce + n) * team.teams + team.mine;
      there[round][n] = at < a.first;
      old_keys[round][n] = there[round][n] ? gpu::load_vector(keys + at * team.size) : gpu::Vector{};
      old_values[round][n] = there[round][n] ? gpu::load_vector(values + at * team.size) : gpu::Vector{};
    }

  // The new positions up to this one. An earlier one's key is another block's to store, and made here again.
  gpu::Vector new_keys[kMaxNew][1] = {}, new_values[kMaxNew][1] = {};
#pragma unroll
  for (int n = 0; n < kMaxNew; ++n) {
    if (n > step) continue;
    const T* in = qkv + n * a.rows * width + (a.heads + kv_head) * team.size + team.first;
    float key[share];
    load_wide(in, key);
    new_values[n][0] = gpu::load_vector(in + a.kv_heads * team.size);
    if (n == step) norm_and_rotate<T, D>(key, k_weight, a.eps, angles, team);
    else norm_and_rotate<T, D>(key, k_weight, a.eps, Angles<T>(a.cos, a.sin, (a.first + n) * team.size + team.first), team);
    new_keys[n][0] = narrow_vector(key, T{});
    if (n == step && team.mine == 0) {
      gpu::store_vector(keys + position * team.size, new_keys[n][0]);
      gpu::store_vector(values + position * team.size, new_values[n][0]);
    }
  }
  q.prepare(q_weight, a.eps, angles, team);

  Softmax<T, D, H> softmax;
  softmax.clear();
#pragma unroll
  for (int round = 0; round < kRounds<T, D>; ++round)
    if (round * kAtOnce * team.teams < a.first)
      softmax.add(q, old_keys[round], old_values[round], there[round], team);
  const bool first_team[1] = {team.mine == 0};
#pragma unroll
  for (int n = 0; n < kMaxNew; ++n)
    if (n <= step) softmax.add(q, new_keys[n], new_values[n], first_team, team);
  softmax.join(team);

  T* out = static_cast<T*>(a.out) +
           ((static_cast<int64_t>(step) * a.rows + row) * a.heads + kv_head * H) * team.size + team.first;
#pragma unroll
  for (int h = 0; h < H; ++h) {
    if (team.mine != h % team.teams) continue;
    float result[share];
#pragma unroll
    for (int i = 0; i < share; ++i) result[i] = gpu::div_rn(softmax.out[h][i], softmax.total[h]);
    gpu::store_vector(out + h * team.size, narrow_vector(result, T{}));
  }
}

}  // namespace

void predictor_attention(const PredictorAttentionArguments& a, void* stream) {
  check_heads("predictor_attention", a.rows, a.heads, a.kv_heads, a.head_dim);
  if (a.count < 1 || a.count > kMaxNew || a.first < 0 || a.first + a.count > kPredictorPositions)
    throw std::invalid_argument("predictor_attention: " + std::to_string(a.count) + " new positions from " +
                                std::to_string(a.first) + " on, expected 1 or 2 of " +
                                std::to_string(kPredictorPositions));
  if (a.rows == 0) return;
  const void* pointers[] = {a.qkv, a.q_norm, a.k_norm, a.cos, a.sin, a.keys, a.values, a.out};
  check_aligned("predictor_attention", pointers, 8);
  dispatch(a.dtype, a.head_dim, a.heads / a.kv_heads, [&](auto element, auto size, auto heads) {
    using T = decltype(element);
    constexpr int D = decltype(size)::value, H = decltype(heads)::value;
    QW_LAUNCH_DEPENDENT((predictor_kernel<T, D, H>),
                        dim3(static_cast<unsigned>(a.kv_heads), static_cast<unsigned>(a.rows), static_cast<unsigned>(a.count)),
                        dim3(gpu::kGroup), 0, gpu::stream_of(stream), a);
  });
}

}  // namespace qwen3tts
