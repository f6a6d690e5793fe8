// predictor_attention(): one group of 32 lanes per (row, new position, kv head), and no more than one round of loads.
// Registers, sm_90, 128 elements, 2 heads per kv head in bf16: 143, no spills (some without the 1 of the launch bounds).
#include "common/decode/attention_parts.h"
#include "common/launch.h"

namespace qwen3tts {
namespace {

constexpr int kAtOnce = 4;   // positions of a team whose scores are computed together
constexpr int kMaxNew = 2;

// Rounds of kAtOnce that hold 16 positions. Below 128 elements a group has two teams at least.
template <class T, int D> constexpr int kRounds = (D == 128 && sizeof(T) == 4 ? 16 : 8) / kAtOnce;

template <class T, int D, int H>
__global__ void __launch_bounds__(gpu::kGroup, 1) predictor_kernel(PredictorAttentionArguments a) {
  gpu::launch_dependents();
  constexpr int share = kShare<T>;
  const Team<T, D> team(a.head_dim);
  const int kv_head = static_cast<int>(blockIdx.x), row = static_cast<int>(blockIdx.y);
  const int step = static_cast<int>(blockIdx.z), position = a.first + step;
  const gpu::Vector q_weight = load_share<T>(a.q_norm, team.first), k_weight = load_share<T>(a.k_norm, team.first);
  const Angles angles = load_angles<T>(a.cos, a.sin, position * team.size + team.first);
  gpu::wait_for_previous();

  const int slot = a.slot[row];
  const int64_t width = static_cast<int64_t>(a.heads + 2 * a.kv_heads) * team.size;
  const T* qkv = static_cast<const T*>(a.qkv) + row * width;  // of the first new position
  const T* key_in = qkv + (a.heads + kv_head) * team.size;
  const int64_t to_value = static_cast<int64_t>(a.kv_heads) * team.size + team.first, to_mine = step * a.rows * width;
  Heads<T, D, H> heads;
  heads.load(qkv + to_mine + kv_head * H * team.size, key_in + to_mine, team);
  const gpu::Vector value = gpu::load_vector(key_in + to_mine + to_value);
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

  const gpu::Vector key = heads.prepare(q_weight, k_weight, a.eps, angles, team);
  const bool first_team[1] = {team.mine == 0};
  if (team.mine == 0) {
    gpu::store_vector(keys + position * team.size, key);
    gpu::store_vector(values + position * team.size, value);
  }

  Softmax<T, D, H> softmax;
  softmax.clear();
#pragma unroll
  for (int round = 0; round < kRounds<T, D>; ++round)
    if (round * kAtOnce * team.teams < a.first)
      softmax.add(heads, old_keys[round], old_values[round], there[round], team);
  if (step == 1) {  // the position before is new, too: another block stores its key, and it is made here again
    float before[1][share];
    load_wide(key_in + team.first, before[0]);
    const Angles then = load_angles<T>(a.cos, a.sin, a.first * team.size + team.first);
    norm_and_rotate<T, D, 1>(before, k_weight, k_weight, a.eps, then, team);
    const gpu::Vector key_before[1] = {narrow_vector(before[0], T{})};
    const gpu::Vector value_before[1] = {gpu::load_vector(key_in + to_value)};
    softmax.add(heads, key_before, value_before, first_team, team);
  }
  const gpu::Vector last_key[1] = {key}, last_value[1] = {value};
  softmax.add(heads, last_key, last_value, first_team, team);
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
    const dim3 grid(static_cast<unsigned>(a.kv_heads), static_cast<unsigned>(a.rows), static_cast<unsigned>(a.count));
    QW_LAUNCH_DEPENDENT((predictor_kernel<T, D, H>), grid, dim3(gpu::kGroup), 0, gpu::stream_of(stream), a);
  });
}

}  // namespace qwen3tts
