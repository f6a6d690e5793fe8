// The attention of the persistent kernel: predictor_attention() of common/decode/attention.h, bit for bit, by one warp per
// kv head in every block. For device sources only.
//
// A warp is two teams of 16 lanes, and a lane has 8 elements of a head. Both query heads of the kv head are computed at
// once: the first team norms one, the second the other; of a pass's new keys the first team has the newest and the
// second, in pass 0, that of position 0. Sums over a team are those of Team::sum, but every lane keeps only what it will
// need of them: its lanes 0 .. 7 the first head's scores, 8 .. 15 the second's.
#pragma once

#include "cuda/persistent_product.h"

namespace qwen3tts {
namespace persistent {

constexpr float kLowest = -1e30f;
constexpr int kPositions = kPredictorPositions;

struct HeadTables {  // in shared memory
  gpu::Vector q_norm[Shape::layers][16], k_norm[Shape::layers][16];  // a lane's share each
  gpu::Vector cos[kPositions][16], sin[kPositions][16];
};

__device__ __forceinline__ uint32_t add_pairs(uint32_t a, uint32_t b) {
  uint32_t sum;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(kUnit), "r"(b));
  return sum;
}

// norm_and_rotate() of common/decode/attention_parts.h for a head that a team of 16 lanes holds.
__device__ __forceinline__ gpu::Vector normed_and_rotated(const gpu::Vector& v, const gpu::Vector& weight, float eps,
                                                          const gpu::Vector& cos, const gpu::Vector& sin) {
  float f[8], squares = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) gpu::unpack<gpu::bf16>(v.word[i], f[2 * i], f[2 * i + 1]);
#pragma unroll
  for (int i = 0; i < 8; ++i) squares = fmaf(f[i], f[i], squares);
#pragma unroll
  for (int mask = 8; mask > 0; mask /= 2) squares = gpu::add_rn(squares, gpu::shfl_xor(squares, mask));
  const float scale =
      gpu::div_rn(1.0f, sqrtf(gpu::add_rn(gpu::mul_rn(squares, 1.0f / static_cast<float>(Shape::head_dim)), eps)));
  gpu::Vector out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t unit = gpu::pack<gpu::bf16>(gpu::mul_rn(f[2 * i], scale), gpu::mul_rn(f[2 * i + 1], scale));
    const uint32_t normed = gpu::multiply_pairs<gpu::bf16>(unit, weight.word[i]);
    const uint32_t other = gpu::shfl_xor(normed, 8);
    out.word[i] = add_pairs(gpu::multiply_pairs<gpu::bf16>(normed, cos.word[i]),
                            gpu::multiply_pairs<gpu::bf16>(other, sin.word[i]));
  }
  return out;
}

struct Attention {
  float q[2][8];          // of both heads, scaled
  float score[2], fresh;  // of the lane's head (lane % 16 / 8): positions of two rounds, and the team's new one
  float total[2], out[2][8];

  static __device__ __forceinline__ float dot(const float (&q)[8], const float (&key)[8]) {
    float sum = gpu::mul_rn(q[0], key[0]);
#pragma unroll
    for (int i = 1; i < 8; ++i) sum = fmaf(q[i], key[i], sum);
    return sum;
  }
  static __device__ __forceinline__ void widen(const gpu::Vector& v, float (&to)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) gpu::unpack<gpu::bf16>(v.word[i], to[2 * i], to[2 * i + 1]);
  }

  // own: the team's head, of two.
  __device__ __forceinline__ void set_queries(const gpu::Vector& own, bool second_team) {
    const float scale = 1.4426950408889634f / sqrtf(static_cast<float>(Shape::head_dim));
    gpu::Vector other;
#pragma unroll
    for (int i = 0; i < 4; ++i) other.word[i] = gpu::shfl_xor(own.word[i], 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t first = second_team ? other.word[i] : own.word[i], second = second_team ? own.word[i] : other.word[i];
      gpu::unpack<gpu::bf16>(first, q[0][2 * i], q[0][2 * i + 1]);
      gpu::unpack<gpu::bf16>(second, q[1][2 * i], q[1][2 * i + 1]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      q[0][i] = gpu::mul_rn(q[0][i], scale);
      q[1][i] = gpu::mul_rn(q[1][i], scale);
    }
  }

  // The team's sums of four positions' scores for both heads: lane 8 h + 2 n (and the next) has head h, position n.
  __device__ __forceinline__ float round_of_scores(const gpu::Vector (&keys)[4], int lane) const {
    float part[2][4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      float key[8];
      widen(keys[n], key);
      part[0][n] = dot(q[0], key);
      part[1][n] = dot(q[1], key);
    }
    float four[4], two[2];
    const bool head = (lane & 8) != 0, high = (lane & 4) != 0, odd = (lane & 2) != 0;
#pragma unroll
    for (int n = 0; n < 4; ++n)
      four[n] = gpu::add_rn(head ? part[1][n] : part[0][n], gpu::shfl_xor(head ? part[0][n] : part[1][n], 8));
#pragma unroll
    for (int n = 0; n < 2; ++n)
      two[n] = gpu::add_rn(high ? four[2 + n] : four[n], gpu::shfl_xor(high ? four[n] : four[2 + n], 4));
    const float one = gpu::add_rn(odd ? two[1] : two[0], gpu::shfl_xor(odd ? two[0] : two[1], 2));
    return gpu::add_rn(one, gpu::shfl_xor(one, 1));
  }
  __device__ __forceinline__ float fresh_score(const gpu::Vector& new_key, int lane) const {
    float key[8];
    widen(new_key, key);
    const float a = dot(q[0], key), b = dot(q[1], key);
    const bool head = (lane & 8) != 0;
    float sum = gpu::add_rn(head ? b : a, gpu::shfl_xor(head ? a : b, 8));
#pragma unroll
    for (int mask = 4; mask > 0; mask /= 2) sum = gpu::add_rn(sum, gpu::shfl_xor(sum, mask));
    return sum;
  }

  __device__ __forceinline__ void add(float weight, const float (&value)[8], int h) {
    total[h] = gpu::add_rn(total[h], weight);
#pragma unroll
    for (int i = 0; i < 8; ++i) out[h][i] = fmaf(weight, value[i], out[h][i]);
  }
};

// attended: bf16 [column][heads * head_dim] in shared memory. keys and values: this layer's and kv head's, [16][head_dim].
struct AttentionPlace {
  const uint32_t* qkv;  // [column][...] words
  gpu::bf16 *keys, *values;
  gpu::Vector* attended;
  int position, columns;
  bool stores;
};

__device__ __forceinline__ void attend(const AttentionPlace& at, const HeadTables& tables, int layer, float eps,
                                       uint32_t tag, uint32_t extra_tag, Watch& watch) {
  const int lane = static_cast<int>(threadIdx.x) % 32, kv_head = static_cast<int>(threadIdx.x) / 32;
  const int team = lane / 16, mine = lane % 16;
  const int old = at.columns == 2 ? 0 : at.position;  // positions whose keys are there
  const bool extra = at.columns == 2 && team == 1;    // this team's new position is position 0
  gpu::Vector keys[8], values[8];
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const int position = 2 * n + team, offset = position * Shape::head_dim + 8 * mine;
    keys[n] = gpu::load_weight(at.keys + offset, position < old);
    values[n] = gpu::load_weight(at.values + offset, position < old);
  }
  constexpr int column_words = (Shape::heads + 2 * Shape::kv_heads) * Shape::head_dim / 2, head_words = Shape::head_dim / 2;
  const uint32_t* from = at.qkv + 4 * mine;
  const uint32_t* key_from = from + (extra ? column_words : 0) + (Shape::heads + kv_head) * head_words;
  gpu::Vector in[3];
  {
    // The query has the main column's tag, key and value their own column's.
    const uint32_t own_tag = extra ? extra_tag : tag, change = own_tag ^ tag;
    uint32_t wrong;
    do {
      in[0] = load_shared_words(from + (2 * kv_head + team) * head_words);
      in[1] = load_shared_words(key_from);
      in[2] = load_shared_words(key_from + Shape::kv_heads * head_words);
      wrong = 0;
#pragma unroll
      for (int n = 0; n < 3; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          in[n].word[i] ^= n == 0 ? tag : tag ^ change;
          wrong |= in[n].word[i];
        }
    } while (__any_sync(0xffffffffu, (wrong & kTagBits) != 0) && !__any_sync(0xffffffffu, watch.over()));
  }
#pragma unroll
  for (int n = 0; n < 3; ++n) in[n] = scaled(in[n], kGrow);

  Attention a;
  a.set_queries(normed_and_rotated(in[0], tables.q_norm[layer][mine], eps, tables.cos[at.position][mine],
                                   tables.sin[at.position][mine]),
                team == 1);
  const int new_position = extra ? 0 : at.position;
  const gpu::Vector key = normed_and_rotated(in[1], tables.k_norm[layer][mine], eps, tables.cos[new_position][mine],
                                             tables.sin[new_position][mine]);
  const bool has_new = team == 0 || extra;
  if (at.stores && has_new) {
    gpu::store_vector(at.keys + new_position * Shape::head_dim + 8 * mine, key);
    gpu::store_vector(at.values + new_position * Shape::head_dim + 8 * mine, in[2]);
  }
  a.fresh = a.fresh_score(key, lane);
  if (!has_new) a.fresh = kLowest;
  float most = a.fresh;
#pragma unroll
  for (int round = 0; round < 2; ++round) {
    a.score[round] = kLowest;
    if (8 * round >= old) continue;
    const gpu::Vector four[4] = {keys[4 * round], keys[4 * round + 1], keys[4 * round + 2], keys[4 * round + 3]};
    const float s = a.round_of_scores(four, lane);
    if ((4 * round + (mine >> 1 & 3)) * 2 + team < old) a.score[round] = s;
    most = fmaxf(most, a.score[round]);
  }
#pragma unroll
  for (int mask = 2; mask <= 4; mask *= 2) most = fmaxf(most, gpu::shfl_xor(most, mask));
  most = fmaxf(most, gpu::shfl_xor(most, 16));

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    a.total[h] = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) a.out[h][i] = 0.0f;
  }
#pragma unroll
  for (int round = 0; round < 2; ++round) {
    if (8 * round >= old) continue;
    const float weight = exp2f(gpu::sub_rn(a.score[round], most));
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      float value[8];
      Attention::widen(values[4 * round + n], value);
#pragma unroll
      for (int h = 0; h < 2; ++h) a.add(gpu::shfl(weight, 16 * team + 8 * h + 2 * n), value, h);
    }
  }
  {
    const float weight = exp2f(gpu::sub_rn(a.fresh, most));
    float value[8];
    Attention::widen(in[2], value);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float w = gpu::shfl(weight, 16 * team + 8 * h);
      a.add(w, value, h);
    }
  }
  // The first team takes the first head, the second the second.
  const float total =
      gpu::add_rn(team == 0 ? a.total[0] : a.total[1], gpu::shfl_xor(team == 0 ? a.total[1] : a.total[0], 16));
  const float scale = gpu::div_rn(1.0f, total);
  float result[8];
#pragma unroll
  for (int i = 0; i < 8; ++i)
    result[i] = gpu::mul_rn(gpu::add_rn(team == 0 ? a.out[0][i] : a.out[1][i],
                                        gpu::shfl_xor(team == 0 ? a.out[1][i] : a.out[0][i], 16)),
                            scale);
  gpu::Vector packed;
#pragma unroll
  for (int i = 0; i < 4; ++i) packed.word[i] = gpu::pack<gpu::bf16>(result[2 * i], result[2 * i + 1]);
  at.attended[(2 * kv_head + team) * 16 + mine] = packed;
  if (extra) {  // position 0 attends to itself alone: its value
    gpu::Vector* to = at.attended + Shape::heads * 16;
    to[2 * kv_head * 16 + mine] = in[2];
    to[(2 * kv_head + 1) * 16 + mine] = in[2];
  }
}

}  // namespace persistent
}  // namespace qwen3tts
