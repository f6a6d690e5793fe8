// What the attention kernels share: a head as teams of lanes hold it, norm and rotation, and softmax as it goes along.
// Everything that decides bits is written with one rounding a step, so that no compiler merges steps as it likes.
// For device sources only.
//
// D is head_dim, or 0 where it is known at run time only; H is heads per kv head.
#pragma once

#include "common/decode/attention.h"
#include "common/decode/nvidia.h"
#include "common/dtype.h"
#include "common/gpu.h"
#include "common/reduce.h"

namespace qwen3tts {

// Elements of a head that a lane holds: 16 bytes.
template <class T> constexpr int kShare = static_cast<int>(sizeof(gpu::Vector) / sizeof(T));

// The caller's place in its group of 32 lanes.
template <class T, int D> struct Team {
  int size;    // head_dim
  int lanes;   // of a team
  int teams;   // of the group
  int mine;    // team
  int first;   // element of the head

  __device__ __forceinline__ explicit Team(int head_dim)
      : size(D != 0 ? D : head_dim),
        lanes(size / kShare<T>),
        teams(gpu::kGroup / lanes),
        mine(gpu::group_lane() / lanes),
        first(gpu::group_lane() % lanes * kShare<T>) {}

  // Sums over the team, in each lane of it. All lanes of the wave must call this together; so everywhere below.
  template <int N> __device__ __forceinline__ void sum(float (&v)[N]) const {
#pragma unroll
    for (int mask = lanes / 2; mask > 0; mask /= 2)
#pragma unroll
      for (int n = 0; n < N; ++n) v[n] = gpu::add_rn(v[n], gpu::shfl_xor(v[n], mask));
  }
};

__device__ __forceinline__ void widen_vector(const gpu::Vector& v, float (&to)[4], float) {
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = gpu::from_bits(v.word[i]);
}
template <class T> __device__ __forceinline__ void widen_vector(const gpu::Vector& v, float (&to)[8], T) {
#pragma unroll
  for (int i = 0; i < 4; ++i) gpu::unpack<T>(v.word[i], to[2 * i], to[2 * i + 1]);
}
template <class T> __device__ __forceinline__ void load_wide(const T* from, float (&to)[kShare<T>]) {
  widen_vector(gpu::load_vector(from), to, T{});
}

__device__ __forceinline__ gpu::Vector narrow_vector(const float (&v)[4], float) {
  gpu::Vector to;
#pragma unroll
  for (int i = 0; i < 4; ++i) to.word[i] = gpu::to_bits(v[i]);
  return to;
}
template <class T> __device__ __forceinline__ gpu::Vector narrow_vector(const float (&v)[8], T) {
  gpu::Vector to;
#pragma unroll
  for (int i = 0; i < 4; ++i) to.word[i] = gpu::pack<T>(v[2 * i], v[2 * i + 1]);
  return to;
}

template <class T> __device__ __forceinline__ float rounded_to(float v) { return gpu::widen(gpu::narrow<T>(v)); }

// A lane's share of cos and sin at one position, and of a norm's weight: packed until they are used.
struct Angles {
  gpu::Vector cos, sin;
};
template <class T> __device__ __forceinline__ Angles load_angles(const void* cos, const void* sin, int64_t at) {
  return {gpu::load_vector(static_cast<const T*>(cos) + at), gpu::load_vector(static_cast<const T*>(sin) + at)};
}
template <class T> __device__ __forceinline__ gpu::Vector load_share(const void* weight, int first) {
  return gpu::load_vector(static_cast<const T*>(weight) + first);
}

// v = rotated(norm(v)) for heads that a team holds, side by side: RMSNorm, then x * cos + halves exchanged * signed sin,
// each step rounded to T. The last head has a weight of its own.
template <class T, int D, int N>
__device__ __forceinline__ void norm_and_rotate(float (&v)[N][kShare<T>], const gpu::Vector& weight,
                                                const gpu::Vector& last_weight, float eps, const Angles& angles,
                                                const Team<T, D>& team) {
  constexpr int share = kShare<T>;
  float squares[N] = {};
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int i = 0; i < share; ++i) squares[n] = fmaf(v[n][i], v[n][i], squares[n]);
  team.sum(squares);
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const float mean = gpu::mul_rn(squares[n], 1.0f / static_cast<float>(team.size));  // exact: a power of two
    const float scale = gpu::div_rn(1.0f, sqrtf(gpu::add_rn(mean, eps)));
    float w[share], other[share], cos[share], sin[share];
    widen_vector(n < N - 1 ? weight : last_weight, w, T{});
#pragma unroll
    for (int i = 0; i < share; ++i)
      v[n][i] = rounded_to<T>(gpu::mul_rn(w[i], rounded_to<T>(gpu::mul_rn(v[n][i], scale))));
#pragma unroll
    for (int i = 0; i < share; ++i)
      other[i] = team.lanes > 1 ? gpu::shfl_xor(v[n][i], team.lanes / 2) : v[n][(i + share / 2) % share];
    widen_vector(angles.cos, cos, T{});
    widen_vector(angles.sin, sin, T{});
#pragma unroll
    for (int i = 0; i < share; ++i)
      v[n][i] = rounded_to<T>(gpu::add_rn(rounded_to<T>(gpu::mul_rn(v[n][i], cos[i])),
                                          rounded_to<T>(gpu::mul_rn(other[i], sin[i]))));
  }
}

// What queries are multiplied by so that base-2 exponentials of their products with keys are right.
__device__ __forceinline__ float score_scale(int head_dim) {
  return 1.4426950408889634f / sqrtf(static_cast<float>(head_dim));  // of a constant, a constant
}

// The H query heads of a kv head, and its key at the end.
template <class T, int D, int H> struct Heads {
  float at[H + 1][kShare<T>];

  __device__ __forceinline__ void load(const T* queries, const T* key, const Team<T, D>& team) {
#pragma unroll
    for (int h = 0; h < H; ++h) load_wide(queries + h * team.size + team.first, at[h]);
    load_wide(key + team.first, at[H]);
  }
  // Norms and rotates all, returns the key, and scales the queries.
  __device__ __forceinline__ gpu::Vector prepare(const gpu::Vector& q_weight, const gpu::Vector& k_weight, float eps,
                                                 const Angles& angles, const Team<T, D>& team) {
    norm_and_rotate<T, D, H + 1>(at, q_weight, k_weight, eps, angles, team);
    const float scale = score_scale(team.size);
#pragma unroll
    for (int h = 0; h < H; ++h)
#pragma unroll
      for (int i = 0; i < kShare<T>; ++i) at[h][i] = gpu::mul_rn(at[h][i], scale);
    return narrow_vector(at[H], T{});
  }
};

// What lies below every score: finite, so that differences of two maxima are never NaN.
constexpr float kLowest = -1e30f;

// Softmax of the scores so far, for the caller's share of each head: largest score, and sums relative to it.
template <class T, int D, int H> struct Softmax {
  float largest[H], total[H], out[H][kShare<T>];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int h = 0; h < H; ++h) {
      largest[h] = kLowest;
      total[h] = 0.0f;
#pragma unroll
      for (int i = 0; i < kShare<T>; ++i) out[h][i] = 0.0f;
    }
  }

  // N positions of the caller's team, those of them that are `there`; the others' keys and values must be zeros.
  template <int N>
  __device__ __forceinline__ void add(const Heads<T, D, H>& q, const gpu::Vector (&keys)[N],
                                      const gpu::Vector (&values)[N], const bool (&there)[N], const Team<T, D>& team) {
    float score[N * H];
    scores(score, q, keys, team);
    add(score, values, there);
  }
  // The same in two steps: the first of them leaves the sums alone.
  template <int N>
  __device__ __forceinline__ static void scores(float (&score)[N * H], const Heads<T, D, H>& q,
                                                const gpu::Vector (&keys)[N], const Team<T, D>& team) {
    constexpr int share = kShare<T>;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      float key[share];
      widen_vector(keys[n], key, T{});
#pragma unroll
      for (int h = 0; h < H; ++h) {
        score[n * H + h] = gpu::mul_rn(q.at[h][0], key[0]);
#pragma unroll
        for (int i = 1; i < share; ++i) score[n * H + h] = fmaf(q.at[h][i], key[i], score[n * H + h]);
      }
    }
    team.sum(score);
  }
  template <int N>
  __device__ __forceinline__ void add(float (&score)[N * H], const gpu::Vector (&values)[N], const bool (&there)[N]) {
    constexpr int share = kShare<T>;
#pragma unroll
    for (int h = 0; h < H; ++h) {
      float most = largest[h];
#pragma unroll
      for (int n = 0; n < N; ++n) most = fmaxf(most, there[n] ? score[n * H + h] : kLowest);
      rescale(h, most);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        score[n * H + h] = there[n] ? exp2f(gpu::sub_rn(score[n * H + h], most)) : 0.0f;
        total[h] = gpu::add_rn(total[h], score[n * H + h]);
      }
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
      float value[share];
      widen_vector(values[n], value, T{});
#pragma unroll
      for (int h = 0; h < H; ++h)
#pragma unroll
        for (int i = 0; i < share; ++i) out[h][i] = fmaf(score[n * H + h], value[i], out[h][i]);
    }
  }

  // Brings the teams of the group together; every lane has the group's sums for its share afterwards.
  __device__ __forceinline__ void join(const Team<T, D>& team) {
#pragma unroll
    for (int h = 0; h < H; ++h) {
      rescale(h, largest_of_group(largest[h], team));
      add_up(h, team);
    }
  }

  // One head, whose largest score is known: the group's from the teams', then position by position; kLowest is nothing.
  __device__ __forceinline__ void share_largest(const Team<T, D>& team) {
    largest[0] = largest_of_group(largest[0], team);
  }
  __device__ __forceinline__ void add_one(float score, const gpu::Vector& value) {
    float v[kShare<T>];
    widen_vector(value, v, T{});
    const float weight = exp2f(gpu::sub_rn(score, largest[0]));
    total[0] = gpu::add_rn(total[0], weight);
#pragma unroll
    for (int i = 0; i < kShare<T>; ++i) out[0][i] = fmaf(weight, v[i], out[0][i]);
  }
  __device__ __forceinline__ void join_at_largest(const Team<T, D>& team) { add_up(0, team); }

 private:
  __device__ __forceinline__ static float largest_of_group(float most, const Team<T, D>& team) {
#pragma unroll
    for (int mask = team.lanes; mask < gpu::kGroup; mask *= 2) most = fmaxf(most, gpu::shfl_xor(most, mask));
    return most;
  }
  __device__ __forceinline__ void add_up(int h, const Team<T, D>& team) {
#pragma unroll
    for (int mask = team.lanes; mask < gpu::kGroup; mask *= 2) {
      total[h] = gpu::add_rn(total[h], gpu::shfl_xor(total[h], mask));
#pragma unroll
      for (int i = 0; i < kShare<T>; ++i) out[h][i] = gpu::add_rn(out[h][i], gpu::shfl_xor(out[h][i], mask));
    }
  }
  __device__ __forceinline__ void rescale(int h, float most) {
    const float factor = exp2f(gpu::sub_rn(largest[h], most));
    largest[h] = most;
    total[h] = gpu::mul_rn(total[h], factor);
#pragma unroll
    for (int i = 0; i < kShare<T>; ++i) out[h][i] = gpu::mul_rn(out[h][i], factor);
  }
};

// Where a slot's position of one kv head begins in the pages of keys or values.
struct PageMap {
  const std::int32_t* table;  // the slot's
  int shift;                  // log2 of the page
  int kv_heads, kv_head, head_dim;

  __device__ __forceinline__ int page(int position) const { return table[position >> shift]; }
  __device__ __forceinline__ int64_t at(int position) const { return within(page(position), position); }
  __device__ __forceinline__ int64_t within(int page, int position) const {
    const int64_t row = (static_cast<int64_t>(page) * kv_heads + kv_head) << shift;
    return (row + (position & ((1 << shift) - 1))) * head_dim;
  }
};
__device__ __forceinline__ PageMap page_map(const AttentionArguments& a, int slot, int shift, int kv_head) {
  return {a.pages.table + static_cast<int64_t>(slot) * a.pages.table_stride, shift, a.kv_heads, kv_head, a.head_dim};
}

// ---------------------------------------------------------------- host side

// Raise std::invalid_argument unless the kernels can do it.
void check_heads(const char* what, std::int32_t rows, std::int32_t heads, std::int32_t kv_heads, std::int32_t head_dim);
void check_aligned(const char* what, const void* const* pointers, int count);
int page_shift(const char* what, const KvPages& pages);

// call(T{}, constants D and H, or D alone) for the kernel that fits.
template <int N> struct Constant { static constexpr int value = N; };
template <class T, class Call> void dispatch_size(int head_dim, const Call& call) {
  if (head_dim == 128) call(T{}, Constant<128>{});
  else call(T{}, Constant<0>{});
}
template <class Call> void dispatch(DType dtype, int head_dim, const Call& call) {
  switch (dtype) {
    case DType::f32: return dispatch_size<float>(head_dim, call);
    case DType::bf16: return dispatch_size<gpu::bf16>(head_dim, call);
    case DType::fp16: return dispatch_size<gpu::fp16>(head_dim, call);
  }
}
template <class Call> void dispatch(DType dtype, int head_dim, int per_kv_head, const Call& call) {
  dispatch(dtype, head_dim, [&](auto element, auto size) {
    if (per_kv_head == 1) call(element, size, Constant<1>{});
    else if (per_kv_head == 2) call(element, size, Constant<2>{});
    else call(element, size, Constant<4>{});
  });
}

}  // namespace qwen3tts
