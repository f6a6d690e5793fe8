// predictor_attention(): one group of 32 lanes per (row, new position, query head), and one round of loads.
//
// What a result must wait for, one after another: q, k, v and all keys and values of earlier positions, loaded together
// where slot[r] is known to be r (`in_order`; else the slot comes first); norm and rotation of one vector a lane, the query
// in the group's first team and the new key in its second; scores, softmax and sums of at most 8 positions a team (bf16)
// relative to one maximum; a sum over the teams. Groups that share a kv head all make its key; the first one stores it.
// [Expected: 3.5 us at 1 row, of which half is starting, loading and ending.]
//
// Registers, sm_90, 128 elements, bf16: 137, no spills.
#include "common/decode/attention_parts.h"
#include "common/launch.h"

namespace qwen3tts {
namespace {

constexpr int kAtOnce = 4;   // positions of a team whose scores are computed together
constexpr int kMaxNew = 2;

// Rounds of kAtOnce that hold 16 positions. Below 128 elements a group has two teams at least.
template <class T, int D> constexpr bool kOneTeam = D == 128 && sizeof(T) == 4;
template <class T, int D> constexpr int kRounds = (kOneTeam<T, D> ? 16 : 8) / kAtOnce;

// The query and the new key of the caller's head, normed and rotated, in all lanes. Two teams make one of them each.
template <class T, int D>
__device__ __forceinline__ void prepare(Heads<T, D, 1>& heads, const T* query, const T* key, const gpu::Vector& q_weight,
                                        const gpu::Vector& k_weight, float eps, const Angles& angles,
                                        const Team<T, D>& team) {
  constexpr int share = kShare<T>;
  if (kOneTeam<T, D>) {
    heads.load(query, key, team);
    norm_and_rotate<T, D, 2>(heads.at, q_weight, k_weight, eps, angles, team);
  } else {
    float v[1][share];
    const bool second = team.mine == 1;
    load_wide((second ? key : query) + team.first, v[0]);
    const gpu::Vector weight = second ? k_weight : q_weight;
    norm_and_rotate<T, D, 1>(v, weight, weight, eps, angles, team);
    const int lane = gpu::lane() - gpu::group_lane() + gpu::group_lane() % team.lanes;  // of the first team
#pragma unroll
    for (int i = 0; i < share; ++i) {
      heads.at[0][i] = gpu::shfl(v[0][i], lane);
      heads.at[1][i] = gpu::shfl(v[0][i], lane + team.lanes);
    }
  }
  const float scale = score_scale(team.size);
#pragma unroll
  for (int i = 0; i < share; ++i) heads.at[0][i] = gpu::mul_rn(heads.at[0][i], scale);
}

// Grid: query heads of a kv head, kv heads, rows for each new position. Whatever decides a branch around a shuffle is the
// same for the whole block. ORDERED: in_order; a choice at run time would wait for the slot all the same.
template <class T, int D, bool ORDERED>
__global__ void __launch_bounds__(gpu::kGroup, 1) predictor_kernel(PredictorAttentionArguments a) {
  gpu::launch_dependents();
  constexpr int share = kShare<T>, rounds = kRounds<T, D>, count = rounds * kAtOnce;
  using Sums = Softmax<T, D, 1>;
  const Team<T, D> team(a.head_dim);
  const int kv_head = static_cast<int>(blockIdx.y);
  const int head = kv_head * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  const int step = static_cast<int>(blockIdx.z) < a.rows ? 0 : 1, row = static_cast<int>(blockIdx.z) - step * a.rows;
  const int position = a.first + step;
  const gpu::Vector q_weight = load_share<T>(a.q_norm, team.first), k_weight = load_share<T>(a.k_norm, team.first);
  const Angles angles = load_angles<T>(a.cos, a.sin, position * team.size + team.first);
  const Angles then = load_angles<T>(a.cos, a.sin, a.first * team.size + team.first);
  const int64_t width = static_cast<int64_t>(a.heads + 2 * a.kv_heads) * team.size;
  const T* qkv = static_cast<const T*>(a.qkv) + row * width;  // of the first new position
  const T* key_in = qkv + (a.heads + kv_head) * team.size;
  const int64_t to_value = static_cast<int64_t>(a.kv_heads) * team.size + team.first, to_mine = step * a.rows * width;
  gpu::wait_for_previous();

  const int slot = a.slot[row], place = ORDERED ? row : slot < 0 ? 0 : slot;
  const int64_t cache = (static_cast<int64_t>(place) * a.kv_heads + kv_head) * kPredictorPositions * team.size + team.first;
  T* keys = static_cast<T*>(a.keys) + cache;
  T* values = static_cast<T*>(a.values) + cache;
  gpu::Vector old_keys[count], old_values[count];
#pragma unroll
  for (int n = 0; n < count; ++n) {
    const int at = n * team.teams + team.mine;
    old_keys[n] = gpu::load_in_place(keys + at * team.size, at < a.first);
    old_values[n] = gpu::load_in_place(values + at * team.size, at < a.first);
  }
  const gpu::Vector value = gpu::load_in_place(key_in + to_mine + to_value);
  const gpu::Vector value_before = gpu::load_in_place(key_in + to_value, step == 1);
  const gpu::Vector before = gpu::load_in_place(key_in + team.first, step == 1);
  Heads<T, D, 1> heads;
  prepare(heads, qkv + to_mine + head * team.size, key_in + to_mine, q_weight, k_weight, a.eps, angles, team);
  if (slot < 0) return;

  // Scores of what is there, below which the others lie: old positions, the new one, and the one before if it is new too.
  float score[count], fresh[2] = {kLowest, kLowest};
#pragma unroll
  for (int round = 0; round < rounds; ++round) {
    float part[kAtOnce] = {kLowest, kLowest, kLowest, kLowest};
    if (round * kAtOnce * team.teams < a.first) {
      gpu::Vector four[kAtOnce];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) four[n] = old_keys[round * kAtOnce + n];
      Sums::scores(part, heads, four, team);
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int i = round * kAtOnce + n;
      score[i] = i * team.teams + team.mine < a.first ? part[n] : kLowest;
    }
  }
  const gpu::Vector key = narrow_vector(heads.at[1], T{});
  float newest[1];
  Sums::scores(newest, heads, {key}, team);
  if (team.mine == 0) fresh[0] = newest[0];
  if (step == 1) {  // another block stores the key of the position before, and it is made here again
    float v[1][share];
    widen_vector(before, v[0], T{});
    norm_and_rotate<T, D, 1>(v, k_weight, k_weight, a.eps, then, team);
    Sums::scores(newest, heads, {narrow_vector(v[0], T{})}, team);
    if (team.mine == team.teams - 1) fresh[1] = newest[0];
  }

  Sums sums;
  sums.clear();
  sums.largest[0] = fmaxf(fresh[0], fresh[1]);
#pragma unroll
  for (int n = 0; n < count; ++n) sums.largest[0] = fmaxf(sums.largest[0], score[n]);
  sums.share_largest(team);
#pragma unroll
  for (int round = 0; round < rounds; ++round) {
    if (round * kAtOnce * team.teams >= a.first) continue;
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) sums.add_one(score[round * kAtOnce + n], old_values[round * kAtOnce + n]);
  }
  if (step == 1) sums.add_one(fresh[1], value_before);
  sums.add_one(fresh[0], value);
  sums.join_at_largest(team);

  if (blockIdx.x == 0 && team.mine == 0) {
    gpu::store_vector(keys + position * team.size, key);
    gpu::store_vector(values + position * team.size, value);
  }
  T* out = static_cast<T*>(a.out) + ((static_cast<int64_t>(step) * a.rows + row) * a.heads + head) * team.size + team.first;
  const float scale = gpu::div_rn(1.0f, sums.total[0]);
  float result[share];
#pragma unroll
  for (int i = 0; i < share; ++i) result[i] = gpu::mul_rn(sums.out[0][i], scale);
  if (team.mine == 0) gpu::store_vector(out, narrow_vector(result, T{}));
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
  dispatch(a.dtype, a.head_dim, [&](auto element, auto size) {
    using T = decltype(element);
    constexpr int D = decltype(size)::value;
    const dim3 grid(static_cast<unsigned>(a.heads / a.kv_heads), static_cast<unsigned>(a.kv_heads),
                    static_cast<unsigned>(a.rows * a.count));
    if (a.in_order) {
      QW_LAUNCH_DEPENDENT((predictor_kernel<T, D, true>), grid, dim3(gpu::kGroup), 0, gpu::stream_of(stream), a);
    } else {
      QW_LAUNCH_DEPENDENT((predictor_kernel<T, D, false>), grid, dim3(gpu::kGroup), 0, gpu::stream_of(stream), a);
    }
  });
}

}  // namespace qwen3tts
