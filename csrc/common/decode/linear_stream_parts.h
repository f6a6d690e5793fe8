// What the kernel of linear_stream.cpp is made of: kinds of products, the way of weights into shared memory, and of sums
// to y. For device sources only.
#pragma once

#include "common/cluster.h"
#include "common/decode/linear_mma_parts.h"

#if QW_HAS_MMA

namespace qwen3tts {

struct StreamArguments {
  const gpu::bf16 *x, *norm_weight, *weight[3];
  void* y;
  gpu::bf16* normed;
  int64_t x_stride, y_stride;
  int32_t end[2];  // of the first part's rows, of the second's
  int32_t rows;
  float eps;
};

// A kind of product. A block has 8 OCTETS rows of weights; k is STEPS * kStep elements.
template <Epilogue EPILOGUE, class Y, int OCTETS, int STEPS, bool NORM> struct StreamKind {
  using Output = Y;
  static constexpr Epilogue kEpilogue = EPILOGUE;
  static constexpr int kOctets = OCTETS, kWeightRows = OCTETS * 8, kSteps = STEPS, kK = STEPS * kStep;
  static constexpr bool kNorm = NORM, kSilu = EPILOGUE == Epilogue::silu_mul;
  static constexpr int kOutputs = kSilu ? OCTETS * 4 : OCTETS * 8;  // of a block
};

// How the 8 warps of a block share it out: TILES of 16 rows of x; HALVES, 2 if half of them takes half of the slices; the
// rest is different octets. CLUSTER blocks share out the slices of the same weights. A stage is CHUNK units of a slice (of
// both halves); RING of them are in shared memory.
template <class K, int TILES, int HALVES, int CLUSTER, int RING, bool LEAN = true, bool PAIRS = false, int CHUNK = 4> struct StreamShape : K {
  static constexpr int kTiles = TILES, kRows = TILES * 16, kHalves = HALVES, kCluster = CLUSTER, kUnits = CHUNK;
  static constexpr int kSplit = kThreads / gpu::kGroup / TILES / HALVES, kOwn = K::kOctets / kSplit;
  static constexpr int kBlockSlices = kSlices / CLUSTER, kOwnSlices = kBlockSlices / HALVES;
  static constexpr bool kPairs = PAIRS;
  static constexpr int kBetween = PAIRS ? 2 : 1;  // slices of a half
  static constexpr int kParts = K::kSteps / CHUNK, kStages = kOwnSlices * kParts;
  static constexpr int kSlots = RING < kStages ? RING : kStages;
  static constexpr int kStageVectors = CHUNK * K::kWeightRows * HALVES * 4;
  static constexpr int kAhead = kOwn < 4 ? kOwn : 4;  // weights of octets that a lane reads ahead
  static constexpr int kNormVectors = K::kNorm ? K::kK / 8 : 0;
  // Sums that meet in shared memory, of a tile and octet each: float4 [lane].
  static constexpr bool kMeet = !PAIRS && (CLUSTER > 1 || HALVES > 1 || LEAN);
  static constexpr int kWarpsFinished = TILES * kSplit / (CLUSTER > 1 ? CLUSTER : 1);  // whose sums a cluster's block finishes
  static constexpr int kItems = CLUSTER > 1 ? kWarpsFinished * kOwn : TILES * K::kOctets;
  static constexpr int kAddendCount = CLUSTER > 1 ? kSlices : HALVES > 1 ? 1 + kOwnSlices : 1;
  static constexpr int kSumVectors = PAIRS ? kItems * gpu::kGroup * 3 / 2 : kMeet ? kAddendCount * kItems * gpu::kGroup : 0;
  static constexpr int kStagedVectors = K::kSilu ? kRows * K::kOutputs / 8 : 0;  // of y
  static constexpr size_t kShared =
      sizeof(gpu::Vector) * (kSlots * kStageVectors + kNormVectors + kSumVectors + kStagedVectors);
  static_assert(K::kOctets % kSplit == 0 && K::kSteps % CHUNK == 0, "whole octets and stages");
  static_assert(CLUSTER == 1 || (TILES * kSplit % CLUSTER == 0 && kItems <= 8 && !K::kNorm && !K::kSilu), "a block finishes a warp's sums");
  static_assert(!PAIRS || (HALVES == 2 && CLUSTER == 1 && kOwn % 2 == 0 && kParts >= 2), "the sums of the odd slices wait");
  static_assert(HALVES == 2 || K::kOctets % 2 == 0, "16 rows at a time");
};

// The slices that a half of this block takes begin with this one.
template <class S> __device__ __forceinline__ int first_slice(int half) {
  return static_cast<int>(blockIdx.x) % S::kCluster * S::kBlockSlices + half * (S::kPairs ? 1 : S::kOwnSlices);
}

// As copy_async; what lies beside it in 128 bytes comes into the second-level cache.
__device__ __forceinline__ void copy_ahead(gpu::Vector* to, const void* from) {
#ifdef QWEN3TTS_CUDA
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
#else
  *to = *static_cast<const gpu::Vector*>(from);
#endif
}

__device__ __forceinline__ void copy_word(uint32_t* to, const uint32_t* from) {
#ifdef QWEN3TTS_CUDA
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from)
               : "memory");
#else
  *to = *from;
#endif
}

// From shared memory, where it is written: the compiler would gather many of them ahead, at the price of their registers.
__device__ __forceinline__ gpu::Vector load_shared(const gpu::Vector* from) {
#ifdef QWEN3TTS_CUDA
  gpu::Vector v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from))));
  return v;
#else
  return *from;
#endif
}

// v, which the compiler does not touch before: what is made of several ones is made one after another.
__device__ __forceinline__ gpu::Vector in_turn(gpu::Vector v) {
#ifdef QWEN3TTS_CUDA
  asm volatile("" : "+r"(v.word[0]), "+r"(v.word[1]), "+r"(v.word[2]), "+r"(v.word[3]));
#endif
  return v;
}

// Word by word, so that both stay in registers.
__device__ __forceinline__ gpu::Vector chosen(bool first, const gpu::Vector& a, const gpu::Vector& b) {
  gpu::Vector out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t x = a.word[i], y = b.word[i];
    out.word[i] = first ? x : y;
  }
  return out;
}

// The weights of a stage on their way into a slot: [unit][row][half][4]. Eight lanes that read or write together find
// all banks: those of two rows of a half, or of a row's two halves, which have changed places in odd rows. silu_mul has a
// gate in every even row and its up in the next one.
template <class S> struct StreamWeights {
  static constexpr int kAtOnce = S::kHalves == 2 ? 8 : 16;  // rows
  const gpu::bf16* from;
  int to;

  __device__ __forceinline__ StreamWeights(const StreamArguments& a, int group) {
    const int lane = gpu::group_lane(), vector = lane % 4, bit = lane / 4 % 2, unit = lane / 8 % S::kUnits;
    const int row = S::kHalves == 2 ? gpu::group() : 2 * gpu::group() + bit;
    const int half = S::kHalves == 2 ? bit : 0;
    const int offset = first_slice<S>(half) * kUnit + unit * kStep + vector * 8;
    int n = group * S::kWeightRows;
    const gpu::bf16* weight = a.weight[0];
    if constexpr (S::kSilu) {
      weight = row % 2 == 0 ? a.weight[0] : a.weight[1];
      n = n / 2 + row / 2;
    } else {  // a block's rows lie within a part
      if (n >= a.end[1]) weight = a.weight[2], n -= a.end[1];
      else if (n >= a.end[0]) weight = a.weight[1], n -= a.end[0];
      n += row;
    }
    from = weight + static_cast<int64_t>(n) * S::kK + offset;
    to = ((unit * S::kWeightRows + row) * S::kHalves + (S::kHalves == 2 ? half ^ (row & 1) : 0)) * 4 + vector;
  }
  __device__ __forceinline__ void copy(gpu::Vector* slot, int stage) const {
    constexpr int64_t between = static_cast<int64_t>(S::kSilu ? kAtOnce / 2 : kAtOnce) * S::kK;
    const gpu::bf16* source = from + stage / S::kParts * (S::kBetween * kUnit) + stage % S::kParts * (S::kUnits * kStep);
#pragma unroll
    for (int i = 0; i < S::kWeightRows / kAtOnce; ++i)
      copy_ahead(slot + to + i * kAtOnce * S::kHalves * 4, source + i * between);
    static_assert(S::kUnits == 4 && S::kWeightRows % kAtOnce == 0, "a warp copies a row or two");
  }
};

// Two rows of x of a lane, g and g + 8 of its tile.
template <class S> struct StreamRows {
  const gpu::bf16* x;
  uint32_t at[2];  // elements

  // A row past the last one is a copy of that, and nobody uses its sums.
  __device__ __forceinline__ StreamRows(const StreamArguments& a, int first, int slice) : x(a.x) {
    const int lane = gpu::group_lane();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first + lane / 4 + 8 * i;
      at[i] = static_cast<uint32_t>((row < a.rows ? row : a.rows - 1) * a.x_stride + slice * kUnit + lane % 4 * 8);
    }
  }
  __device__ __forceinline__ void load(gpu::Vector (&v)[2], int stage, int unit, bool wanted) const {
    const int offset = stage / S::kParts * (S::kBetween * kUnit) + stage % S::kParts * (S::kUnits * kStep) + unit * kStep;
#pragma unroll
    for (int i = 0; i < 2; ++i) load_over(v[i], x + at[i] + offset, wanted);
  }
};

// y of a tile and octet: this lane's sums of rows g and g + 8, columns 2q and 2q + 1 each.
template <class S> struct StreamOutputs {
  using T = gpu::bf16;
  using Y = typename S::Output;
  struct alignas(2 * sizeof(Y)) Pair { Y first, second; };

  // Two elements of y, of a row that exists.
  static __device__ __forceinline__ const uint32_t* place(const StreamArguments& a, int row, int n) {
    return reinterpret_cast<const uint32_t*>(static_cast<const T*>(a.y) + (row < a.rows ? row : a.rows - 1) * a.y_stride + n);
  }
  static __device__ __forceinline__ void write(const StreamArguments& a, int row, int n, const float4& sum,
                                               const uint32_t (&old)[2]) {
    const float s[2][2] = {{sum.x, sum.y}, {sum.z, sum.w}};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (row + 8 * i >= a.rows) continue;
      float before[2] = {};
      if constexpr (S::kEpilogue == Epilogue::residual) gpu::unpack<T>(old[i], before[0], before[1]);
      Y* const to = static_cast<Y*>(a.y) + (row + 8 * i) * a.y_stride + n;
      if constexpr (sizeof(Y) == sizeof(float)) {
        *reinterpret_cast<Pair*>(to) = {s[i][0], s[i][1]};
      } else {
        *reinterpret_cast<uint32_t*>(to) = gpu::pack<T>(outcome<T>(S::kEpilogue, s[i][0], 0.0f, before[0]),
                                                        outcome<T>(S::kEpilogue, s[i][1], 0.0f, before[1]));
      }
    }
  }
  // silu_mul: of an octet, output q of both rows, into staged [row][output].
  static __device__ __forceinline__ void stage(T* staged, int row, int n, const float4& sum) {
    T* const to = staged + row * S::kOutputs + n;
    to[0] = gpu::narrow<T>(outcome<T>(Epilogue::silu_mul, sum.x, sum.y, 0.0f));
    to[8 * S::kOutputs] = gpu::narrow<T>(outcome<T>(Epilogue::silu_mul, sum.z, sum.w, 0.0f));
  }
  // All of it to y, by all threads.
  static __device__ __forceinline__ void write_staged(const StreamArguments& a, const gpu::Vector* staged, int first_row,
                                                      int first_output) {
    constexpr int pieces = S::kOutputs / 8;
#pragma unroll
    for (int i = 0; i < (S::kStagedVectors + kThreads - 1) / kThreads; ++i) {
      const int item = static_cast<int>(threadIdx.x) + i * kThreads, row = first_row + item / pieces;
      if (item >= S::kStagedVectors || row >= a.rows) continue;
      gpu::store_vector(static_cast<T*>(a.y) + row * a.y_stride + first_output + item % pieces * 8, staged[item]);
    }
  }
};

// The normed x, shared out among the blocks. squares[slice][row].
template <class S>
__device__ __forceinline__ void write_stream_normed(const StreamArguments& a, const float (&squares)[kSlices][S::kRows],
                                                    const gpu::Vector* norm_weight, int first_row) {
  constexpr int pieces = S::kK / 8;
  const int count = (a.rows - first_row < S::kRows ? a.rows - first_row : S::kRows) * pieces;
#pragma unroll 1
  for (int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x); i < count; i += static_cast<int>(gridDim.x) * kThreads) {
    const int row = i / pieces, at = i % pieces;
    const float scale = norm_scale<S::kK>(sum_of_slices(&squares[0][row], S::kRows), a.eps);
    const gpu::Vector v = gpu::load_vector(a.x + (first_row + row) * a.x_stride + at * 8);
    gpu::store_vector(a.normed + static_cast<int64_t>(first_row + row) * S::kK + at * 8,
                      normalized<gpu::bf16>(v, norm_weight[at], scale));
  }
}

}  // namespace qwen3tts

#endif
