// The rings of linear_mma.cpp and the scales of its norm. For its device source only.
#pragma once

#include "common/decode/linear_parts.h"
#include "common/reduce.h"

#if QW_HAS_MMA

namespace qwen3tts {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / gpu::kGroup;
constexpr int kUnit = 32;                // elements of k
constexpr int kStep = kWarps * kUnit;    // elements of k that a block takes at a time
constexpr int kProcessors = 132;         // of a large card: about as many blocks share out many groups
#ifndef QW_LINEAR_COLUMNS
#define QW_LINEAR_COLUMNS 64
#endif
constexpr int kMaxColumns = QW_LINEAR_COLUMNS;  // rows of x in a block, 32 or 64

// Steps of weights in the ring; TILES: columns of x, in eights. Products behind a norm have the shorter k.
template <int HALVES, int TILES, bool NORM>
constexpr int kDepth = HALVES == 1   ? 12
                       : HALVES == 2 ? (NORM || TILES >= 4 ? 4 : 8)
                                     : (TILES == 2 ? 2 : 4);
// The first of them are in registers.
template <int HALVES, int TILES, bool NORM> constexpr int kHeld = HALVES == 6 ? 0 : kDepth<HALVES, TILES, NORM>;
// Is x in shared memory?
template <int TILES> constexpr bool kStaged = TILES >= 4;
// Steps of x in its ring, a divisor of kDepth.
template <int HALVES, int TILES, bool NORM>
constexpr int kXDepth = kStaged<TILES> ? 4
                        : TILES == 1   ? (HALVES == 1 ? 12 : 4)
                                       : (HALVES == 1 ? 4 : NORM ? 2 : 1);

// Blocks of a multiprocessor.
template <int TILES> constexpr int kResident = TILES == 8 ? 1 : 2;

template <class T, int HALVES> struct WeightRows {
  const T* at[HALVES];  // this lane's elements of the first step
  int steps;            // that have a unit of this warp

  // The rows of a group; past the last one, rows that exist and whose sums nobody uses.
  __device__ __forceinline__ void seek(const LinearArguments& a, int group, int outputs) {
    const int lane = gpu::group_lane(), g = lane / 4, offset = gpu::group() * kUnit + lane % 4 * 8;
#pragma unroll
    for (int h = 0; h < HALVES; ++h) {
      int n = (group * HALVES + h) * 8 + g, shift = 0;
      if (a.epilogue == Epilogue::silu_mul) {
        n = (group * (HALVES / 2) + h / 2) * 8 + g;
        shift = h % 2 == 0 ? 0 : outputs;
      }
      at[h] = weight_row<T>(a, (n < outputs ? n : outputs - 1) + shift) + offset;
    }
  }

  __device__ __forceinline__ void load(gpu::Vector (&to)[HALVES], int step, int end) const {
#pragma unroll
    for (int h = 0; h < HALVES; ++h) to[h] = gpu::load_weight(at[h] + step * kStep, step < end);
  }
  __device__ __forceinline__ void copy(gpu::Vector* to, int step, int end) const {
#pragma unroll
    for (int h = 0; h < HALVES; ++h) gpu::copy_async(to + h * kThreads, at[h] + step * kStep, step < end);
  }
};

template <class T, int TILES> struct Columns {
  const T* first;   // this lane's elements of its first column
  int64_t between;  // eight columns
  int last;         // tile in which this lane's column exists

  // Zeros where there is no such column or step.
  __device__ __forceinline__ gpu::Vector load(int tile, int step, int end) const {
    return gpu::load_in_place(first + tile * between + step * kStep, step < end && tile <= last);
  }
  __device__ __forceinline__ void copy(gpu::Vector* to, int tile, int step, int end) const {
    const bool wanted = step < end && tile <= last;
    gpu::copy_async(to, wanted ? first + tile * between + step * kStep : first, wanted);
  }
};

// The first steps of x of this thread, in registers or in shared memory.
template <int DEPTH, int TILES, bool STAGED> struct XRing;
template <int DEPTH, int TILES> struct XRing<DEPTH, TILES, false> {
  gpu::Vector slots[DEPTH][TILES];
  __device__ __forceinline__ explicit XRing(gpu::Vector*) {}
  __device__ __forceinline__ const gpu::Vector& get(int d, int tile) const { return slots[d][tile]; }
  template <class T>
  __device__ __forceinline__ void load(const Columns<T, TILES>& columns, int d, int tile, int step, int end) {
    slots[d][tile] = columns.load(tile, step, end);
  }
};
template <int DEPTH, int TILES> struct XRing<DEPTH, TILES, true> {
  gpu::Vector* slots;  // kThreads apart
  __device__ __forceinline__ explicit XRing(gpu::Vector* shared) : slots(shared + threadIdx.x) {}
  __device__ __forceinline__ gpu::Vector get(int d, int tile) const { return slots[(d * TILES + tile) * kThreads]; }
  template <class T>
  __device__ __forceinline__ void load(const Columns<T, TILES>& columns, int d, int tile, int step, int end) {
    columns.copy(slots + (d * TILES + tile) * kThreads, tile, step, end);
  }
};

template <class T> __device__ __forceinline__ float add_squares(float sum, const gpu::Vector& v) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float a, b;
    gpu::unpack<T>(v.word[i], a, b);
    sum = fmaf(b, b, fmaf(a, a, sum));
  }
  return sum;
}

// The scale of a single row, by every warp on its own: lane 4 w + q adds what lane q of warp w adds in norm_scales(), and
// the partial sums meet in the same order.
template <class T> __device__ __forceinline__ float single_scale(const LinearArguments& a, int steps) {
  constexpr int at_once = 4;
  const int lane = gpu::group_lane();
  const T* from = static_cast<const T*>(a.x) + lane * 8;
  float squares = 0.0f;
#pragma unroll 1
  for (int base = 0; base < steps; base += at_once) {
    gpu::Vector v[at_once];
#pragma unroll
    for (int d = 0; d < at_once; ++d) {
      const int at = (base + d) * kStep;
      v[d] = gpu::load_in_place(from + at, at + lane * 8 < a.k);
    }
#pragma unroll
    for (int d = 0; d < at_once; ++d) squares = add_squares<T>(squares, v[d]);
  }
  squares = gpu::add_rn(squares, gpu::shfl_xor(squares, 1));
  squares = gpu::add_rn(squares, gpu::shfl_xor(squares, 2));
  const int first = gpu::lane() / gpu::kGroup * gpu::kGroup;
  float sum = gpu::shfl(squares, first);
#pragma unroll
  for (int w = 1; w < kWarps; ++w) sum = gpu::add_rn(sum, gpu::shfl(squares, first + 4 * w));
  return norm_scale(a, sum);
}

// The scale of each of this lane's columns. `ring` has the first DEPTH steps.
template <class T, int TILES, int DEPTH, bool STAGED>
__device__ __forceinline__ void norm_scales(const LinearArguments& a, const Columns<T, TILES>& columns,
                                            const XRing<DEPTH, TILES, STAGED>& ring, int steps, float (&scale)[TILES]) {
  __shared__ float partial[kWarps][TILES * 8];
  float squares[TILES] = {};
#pragma unroll
  for (int d = 0; d < DEPTH; ++d)
#pragma unroll
    for (int t = 0; t < TILES; ++t) squares[t] = add_squares<T>(squares[t], ring.get(d, t));
#pragma unroll 1
  for (int step = DEPTH; step < steps; ++step) {
    gpu::Vector v[TILES];
#pragma unroll
    for (int t = 0; t < TILES; ++t) v[t] = columns.load(t, step, steps);
#pragma unroll
    for (int t = 0; t < TILES; ++t) squares[t] = add_squares<T>(squares[t], v[t]);
  }
  const int lane = gpu::group_lane(), g = lane / 4;
#pragma unroll
  for (int t = 0; t < TILES; ++t) {
    squares[t] = gpu::add_rn(squares[t], gpu::shfl_xor(squares[t], 1));
    squares[t] = gpu::add_rn(squares[t], gpu::shfl_xor(squares[t], 2));
    if (lane % 4 == 0) partial[gpu::group()][t * 8 + g] = squares[t];
  }
  __syncthreads();
#pragma unroll
  for (int t = 0; t < TILES; ++t) {
    float sum = partial[0][t * 8 + g];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) sum = gpu::add_rn(sum, partial[w][t * 8 + g]);
    scale[t] = norm_scale(a, sum);
  }
}

}  // namespace
}  // namespace qwen3tts

#endif
