// What the kernel of linear_stream.cpp is made of: kinds of products, the way of weights into shared memory and of x into
// registers, and of sums to y. For device sources only.
#pragma once

#include "common/cluster.h"
#include "common/decode/linear_mma_parts.h"

#if QW_HAS_MMA

namespace qwen3tts {

struct StreamArguments {
  const gpu::bf16 *x, *norm_weight, *weight[2];
  void* y;
  gpu::bf16* normed;
  int64_t x_stride, y_stride;
  int32_t rows;
  float eps;
};

// A kind of product: 8 OCTETS rows of weights to a block, k of STEPS * kStep elements. With a norm, silu_mul; without one,
// residual.
template <int OCTETS, int STEPS, bool NORM> struct StreamKind {
  static constexpr int kOctets = OCTETS, kWeightRows = OCTETS * 8, kSteps = STEPS, kK = STEPS * kStep;
  static constexpr bool kNorm = NORM;
  static constexpr int kOutputs = NORM ? OCTETS * 4 : OCTETS * 8;  // of a block
};

// How the 8 warps of a block share it out: half of them takes the odd slices, a half is TILES of 16 rows of x, and what is
// left of it groups of octets. CLUSTER blocks share out the slices of the same weights. A warp has UNITS of x in
// registers, and loads the next ones over them; SLOTS stages of STAGE units of weights (of both halves) are in shared memory.
template <class K, int TILES, int CLUSTER, int UNITS, int STAGE, int SLOTS> struct StreamShape : K {
  static constexpr int kTiles = TILES, kRows = TILES * 16, kCluster = CLUSTER, kUnits = UNITS, kStageUnits = STAGE;
  static constexpr int kSplit = kThreads / gpu::kGroup / 2 / TILES, kOwn = K::kOctets / kSplit;
  static constexpr int kParts = K::kSteps / UNITS;                       // turns of a slice
  static constexpr int kTurns = kSlices / CLUSTER / 2 * kParts;          // of a warp
  static constexpr int kStagesOfTurn = UNITS / STAGE, kStages = kTurns * kStagesOfTurn;
  static constexpr int kSlots = SLOTS < kStages ? SLOTS : kStages;
  static constexpr int kStageVectors = STAGE * K::kWeightRows * 2 * 4;
  static constexpr int kNormVectors = K::kNorm ? K::kK / 8 : 0;
  // Sums of a tile and octet, float4 [lane], that a cluster's block gets from all slices; or of odd slices, and totals.
  static constexpr int kItems = TILES * K::kOctets / CLUSTER;
  static constexpr int kSumVectors = kItems * gpu::kGroup * (CLUSTER > 1 ? 2 * kSlices : 3) / 2;
  static constexpr int kStagedVectors = K::kNorm ? kRows * K::kOutputs / 8 : 0;  // of y
  static constexpr size_t kShared =
      sizeof(gpu::Vector) * (kSlots * kStageVectors + kNormVectors + kSumVectors + kStagedVectors);
  static_assert(K::kOctets % kSplit == 0 && K::kSteps % UNITS == 0 && UNITS % STAGE == 0, "whole octets, turns and stages");
  static_assert(CLUSTER == 1 || (TILES * kSplit % CLUSTER == 0 && kItems <= 8 && !K::kNorm), "a warp finishes an octet");
  static_assert(CLUSTER > 1 || (kOwn % 2 == 0 && kParts * kStagesOfTurn > 1), "a barrier stands between the odd sums");
};

// Of this block and half. The next ones of a half follow at a distance of two.
template <class S> __device__ __forceinline__ int first_slice(int half) {
  return static_cast<int>(blockIdx.x) % S::kCluster * (kSlices / S::kCluster) + half;
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
// all banks: the halves have changed places in odd rows. silu_mul has a gate in every even row and its up in the next one.
template <class S> struct StreamWeights {
  static constexpr int kAtOnce = kThreads / (8 * S::kStageUnits);  // rows
  const gpu::bf16* from;
  int to;

  __device__ __forceinline__ StreamWeights(const StreamArguments& a, int group) {
    const int lane = gpu::group_lane(), vector = lane % 4, half = lane / 4 % 2, unit = lane / 8 % S::kStageUnits;
    const int row = (gpu::group() * gpu::kGroup + lane) / (8 * S::kStageUnits);
    const int n = S::kNorm ? group * S::kOutputs + row / 2 : group * S::kOutputs + row;
    const gpu::bf16* weight = S::kNorm && row % 2 == 1 ? a.weight[1] : a.weight[0];
    from = weight + static_cast<int64_t>(n) * S::kK + first_slice<S>(half) * kUnit + unit * kStep + vector * 8;
    to = ((unit * S::kWeightRows + row) * 2 + (half ^ (row & 1))) * 4 + vector;
  }
  __device__ __forceinline__ void copy(gpu::Vector* slot, int stage) const {
    constexpr int of_slice = S::kParts * S::kStagesOfTurn;
    constexpr int64_t between = static_cast<int64_t>(S::kNorm ? kAtOnce / 2 : kAtOnce) * S::kK;
    const gpu::bf16* source = from + stage / of_slice * (2 * kUnit) + stage % of_slice * (S::kStageUnits * kStep);
#pragma unroll
    for (int i = 0; i < S::kWeightRows / kAtOnce; ++i)
      gpu::copy_async(slot + to + i * kAtOnce * 2 * 4, source + i * between);
    static_assert(S::kWeightRows % kAtOnce == 0 && (!S::kNorm || kAtOnce % 2 == 0), "all threads copy alike");
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
  __device__ __forceinline__ void load(gpu::Vector (&v)[2], int turn, int unit, bool wanted) const {
    const int offset = turn / S::kParts * (2 * kUnit) + (turn % S::kParts * S::kUnits + unit) * kStep;
#pragma unroll
    for (int i = 0; i < 2; ++i) load_over(v[i], x + at[i] + offset, wanted);
  }
};

// y of a tile and octet: this lane's sums of rows g and g + 8, columns 2q and 2q + 1 each.
template <class S> struct StreamOutputs {
  using T = gpu::bf16;

  // Two elements of y, of a row that exists.
  static __device__ __forceinline__ uint32_t* place(const StreamArguments& a, int row, int n) {
    return reinterpret_cast<uint32_t*>(static_cast<T*>(a.y) + (row < a.rows ? row : a.rows - 1) * a.y_stride + n);
  }
  static __device__ __forceinline__ void add(const StreamArguments& a, int row, int n, const float4& sum,
                                             const uint32_t (&old)[2]) {
    const float s[2][2] = {{sum.x, sum.y}, {sum.z, sum.w}};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (row + 8 * i >= a.rows) continue;
      float first, second;
      gpu::unpack<T>(old[i], first, second);
      *place(a, row + 8 * i, n) = gpu::pack<T>(outcome<T>(Epilogue::residual, s[i][0], 0.0f, first),
                                               outcome<T>(Epilogue::residual, s[i][1], 0.0f, second));
    }
  }
  // silu_mul: of an octet, output n of both rows, into staged [row][output].
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
