// What the kernel of linear_mma.cpp is made of: the way of weights and columns to the tensor cores, and of sums to y.
// For device sources only.
#pragma once

#include "common/decode/linear_parts.h"
#include "common/reduce.h"

#if QW_HAS_MMA

namespace qwen3tts {

constexpr int kThreads = 256;
constexpr int kHalf = kThreads / 2;                  // threads that take the same slices
constexpr int kColumnGroups = kHalf / gpu::kGroup;   // warps of a half
constexpr int kSlices = kSumSlices;
constexpr int kUnit = kSumUnit;                      // elements of k
constexpr int kStep = kSlices * kUnit;               // from one unit of a slice to the next
constexpr int kChunk = 4;                            // units of a slice that are loaded together
constexpr int kProcessors = 132;                     // of a large card
constexpr int kRowVectors = kChunk * kUnit / 8;      // 16 bytes each, of a row in a chunk
constexpr int kRowsAtOnce = kHalf / kRowVectors;     // that a half copies at a time: 8, half of a tile

template <int M> constexpr int kChunkVectors = 16 * M * kRowVectors;
// A stage is a chunk for each half. Four may be resident; where there are more, they go through a ring.
constexpr int kResident = 4;
#ifdef QWEN3TTS_CUDA
template <int M> constexpr int kRing = M <= 2 ? 4 : 3;
#else
template <int M> constexpr int kRing = 2;  // copies are there at once, and room is scarce
#endif
// Slices that are added up when all are there: 0, the sum of the first half's, and those of the second one.
constexpr int kAddends = 1 + kSlices / 2;

// ---------------------------------------------------------------- loads

// As gpu::load_in_place, but leaves v as it is if nothing is wanted.
__device__ __forceinline__ void load_over(gpu::Vector& v, const void* from, bool wanted) {
#ifdef QWEN3TTS_CUDA
  asm volatile("{\n.reg .pred wanted;\nsetp.ne.b32 wanted, %5, 0;\n@wanted ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
               : "+r"(v.word[0]), "+r"(v.word[1]), "+r"(v.word[2]), "+r"(v.word[3])
               : "l"(from), "r"(static_cast<int>(wanted)));
#else
  if (wanted) v = *static_cast<const gpu::Vector*>(from);
#endif
}

// v, of which the compiler knows nothing: what follows from it is not computed ahead, and needs no registers till then.
__device__ __forceinline__ int anew(int v) {
#ifdef QWEN3TTS_CUDA
  asm volatile("" : "+r"(v));
#endif
  return v;
}

// ---------------------------------------------------------------- the way through k

// Chunk `part` of a slice. A half of a block goes through its slices anew for every group of rows.
struct Place {
  int slice, part;

  // Returns whether a group of rows is done.
  __device__ __forceinline__ bool advance(int parts, int first, int count) {
    if (++part < parts) return false;
    part = 0;
    if (++slice < first + count) return false;
    slice = first;
    return true;
  }
  __device__ __forceinline__ int element() const { return slice * kUnit + part * kChunk * kStep; }
  // Units of the chunk that exist.
  __device__ __forceinline__ int units(int all) const { return (all - slice + kSlices - 1) / kSlices - part * kChunk; }
};

// The weights of a stage on their way into a half's chunk. Row r of a chunk is kRowVectors vectors long. In odd rows
// neighbouring units have changed places, so that 8 lanes that read two rows of a unit find them in different banks.
template <class T, int M, bool WHOLE> struct WeightRows {
  const T** table;  // [16 M] in shared memory
  int row, vector;  // this thread's of rows row + 8 i

  __device__ __forceinline__ explicit WeightRows(const T** rows) : table(rows) {
    const int thread = static_cast<int>(threadIdx.x) % kHalf;
    row = thread / kRowVectors;
    vector = thread % kRowVectors;
  }
  // The rows of a group; past the last one, rows that exist and whose sums nobody uses. A barrier must follow.
  __device__ __forceinline__ void seek(const LinearArguments& a, int group, int outputs) const {
    const int r = static_cast<int>(threadIdx.x);
    if (r >= 16 * M) return;
    int n = group * 16 * M + r, shift = 0;
    if (a.epilogue == Epilogue::silu_mul) {
      n = (group * M + r / 16) * 8 + r % 8;
      shift = r % 16 < 8 ? 0 : outputs;
    }
    table[r] = weight_row<T>(a, (n < outputs ? n : outputs - 1) + shift);
  }
  __device__ __forceinline__ gpu::Vector* place(gpu::Vector* chunk) const {
    return chunk + row * kRowVectors + ((vector / 4) ^ (row & 1)) * 4 + vector % 4;
  }
  __device__ __forceinline__ void copy(gpu::Vector* chunk, const Place& at, int all_units) const {
    const bool wanted = WHOLE || vector / 4 < at.units(all_units);
    const int offset = wanted ? at.element() + vector / 4 * kStep + vector % 4 * 8 : 0;
    gpu::Vector* to = place(chunk);
#pragma unroll
    for (int i = 0; i < 2 * M; ++i) gpu::copy_async(to + i * kRowsAtOnce * kRowVectors, table[row + 8 * i] + offset, wanted);
  }
  // What this thread has copied of rows g and g + 8 changes into what mma() takes for the first and for the second half
  // of a unit: so it is read as it is used.
  __device__ __forceinline__ void interleave(gpu::Vector* chunk) const {
    gpu::Vector* at = place(chunk);
#pragma unroll
    for (int m = 0; m < M; ++m) {
      gpu::Vector& low = at[2 * m * kRowsAtOnce * kRowVectors];
      gpu::Vector& high = at[(2 * m + 1) * kRowsAtOnce * kRowVectors];
      const gpu::Vector a = low, b = high;
      low = gpu::Vector{{a.word[0], b.word[0], a.word[1], b.word[1]}};
      high = gpu::Vector{{a.word[2], b.word[2], a.word[3], b.word[3]}};
    }
  }
};

// This lane's column of each of its warp's N tiles of 8. WHOLE: every slice has a multiple of kChunk units.
template <class T, int N, bool WHOLE> struct Columns {
  const T* at[N];

  // A column past the last one is a copy of that, and nobody uses its sums.
  __device__ __forceinline__ void seek(const LinearArguments& a, int first) {
    const int lane = gpu::group_lane();
#pragma unroll
    for (int t = 0; t < N; ++t) {
      const int row = first + t * 8 + lane / 4;
      at[t] = static_cast<const T*>(a.x) + (row < a.rows ? row : a.rows - 1) * a.x_stride + lane % 4 * 8;
    }
  }
  // A unit of a chunk that begins at `element` and has `there` units.
  __device__ __forceinline__ void load(gpu::Vector& v, int tile, int element, int unit, int there) const {
    const T* from = at[tile] + element + unit * kStep;
    if constexpr (WHOLE) {
      load_over(v, from, there > 0);
    } else {
      v = gpu::load_in_place(from, unit < there);
    }
  }
};

// ---------------------------------------------------------------- the norm

// The squares of a slice that this warp's lanes have of N columns, added up.
template <int N> __device__ __forceinline__ void end_squares(float (&squares)[N], float* to) {
  const int lane = gpu::group_lane();
#pragma unroll
  for (int t = 0; t < N; ++t) {
    float sum = gpu::add_rn(squares[t], gpu::shfl_xor(squares[t], 1));
    sum = gpu::add_rn(sum, gpu::shfl_xor(sum, 2));
    if (lane % 4 == 0) to[t * 8 + lane / 4] = sum;
    squares[t] = 0.0f;
  }
}

// A thread for each column, when all its slices are there.
template <int COLUMNS>
__device__ __forceinline__ void find_scales(const LinearArguments& a, const float (&squares)[kSlices][COLUMNS],
                                            float (&scale)[COLUMNS]) {
  const int column = static_cast<int>(threadIdx.x);
  if (column >= COLUMNS) return;
  float sum = squares[0][column];
#pragma unroll
  for (int slice = 1; slice < kSlices; ++slice) sum = gpu::add_rn(sum, squares[slice][column]);
  scale[column] = norm_scale(sum, a.k, a.eps);
}

// Where a product cannot begin without its norm: the squares of this half's slices.
template <class T, int N, int COLUMNS>
__device__ __forceinline__ void sum_squares(const T* const (&x)[N], int units, int first_slice, int count,
                                            float (&squares)[N], float (&to)[kSlices][COLUMNS], int first_column) {
#pragma unroll 1
  for (int slice = first_slice; slice < first_slice + count; ++slice) {
#pragma unroll 4
    for (int unit = slice; unit < units; unit += kSlices)
#pragma unroll
      for (int t = 0; t < N; ++t) squares[t] = add_squares<T>(squares[t], gpu::load_in_place(x[t] + unit * kUnit));
    end_squares<N>(squares, to[slice] + first_column);
  }
}

// The normed columns, shared out among the blocks.
template <class T, int N>
__device__ __forceinline__ void write_normed(const LinearArguments& a, const T* const (&x)[N],
                                             const gpu::Vector* weight, const float* scale, int first_row,
                                             int first_column, int half) {
  const int lane = gpu::group_lane();
#pragma unroll 1
  for (int unit = static_cast<int>(blockIdx.x) * 2 + half; unit < a.k / kUnit; unit += static_cast<int>(gridDim.x) * 2)
#pragma unroll
    for (int t = 0; t < N; ++t) {
      const int column = first_column + t * 8 + lane / 4, at = unit * kUnit + lane % 4 * 8;
      if (first_row + column >= a.rows) continue;
      const gpu::Vector v = normalized<T>(gpu::load_in_place(x[t] + unit * kUnit), weight[at / 8], scale[column]);
      gpu::store_vector(static_cast<T*>(a.normed) + static_cast<int64_t>(first_row + column) * a.k + at, v);
    }
}

// ---------------------------------------------------------------- sums

template <int M, int N> struct Sums {
  float chain[2][M][N][4] = {};

  // += half a unit: chain c, 16 rows m and tile t of columns.
  template <class T>
  __device__ __forceinline__ void add(int c, int m, int t, const gpu::Vector& weight, const gpu::Vector& v) {
    gpu::mma<T>(chain[c][m][t], weight.word[0], weight.word[1], weight.word[2], weight.word[3], v.word[2 * c],
                v.word[2 * c + 1]);
  }
  // The sum of a slice; then a new one begins.
  __device__ __forceinline__ float4 take(int m, int t) {
    float s[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[i] = gpu::add_rn(chain[0][m][t][i], chain[1][m][t][i]);
      chain[0][m][t][i] = chain[1][m][t][i] = 0.0f;
    }
    return make_float4(s[0], s[1], s[2], s[3]);
  }
};

__device__ __forceinline__ float4 add_rn(const float4& a, const float4& b) {
  return make_float4(gpu::add_rn(a.x, b.x), gpu::add_rn(a.y, b.y), gpu::add_rn(a.z, b.z), gpu::add_rn(a.w, b.w));
}

// What a lane has of COUNT tiles of 16 rows of weights by 8 columns: of two rows of y, outputs n + j step and those
// eight on; for silu_mul the latter are the ups.
template <class T, int COUNT> struct Outputs {
  int row, n, step, tiles;

  // The first tile has weights of `rows_16` and the next ones of every `between` further ones.
  __device__ __forceinline__ void seek(const LinearArguments& a, int rows_16, int between, int first_row, int count) {
    const int lane = anew(gpu::group_lane()), outputs = a.epilogue == Epilogue::silu_mul ? 8 : 16;
    row = first_row + lane % 4 * 2;
    n = rows_16 * outputs + lane / 4;
    step = between * outputs;
    tiles = count;
  }
  // y before, for residual. Nothing waits for it here: no branch, no conversion.
  __device__ __forceinline__ void old(const LinearArguments& a, int outputs, T (&to)[COUNT][4]) const {
#pragma unroll
    for (int j = 0; j < COUNT; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = row + i % 2, o = n + j * step + i / 2 * 8;
        const int64_t at = (r < a.rows ? r : a.rows - 1) * a.y_stride + (o < outputs ? o : outputs - 1);
        to[j][i] = static_cast<const T*>(a.y)[at];
      }
  }
  __device__ __forceinline__ void write(const LinearArguments& a, int outputs, const float4 (&sums)[COUNT],
                                        const T (&old)[COUNT][4]) const {
    const bool silu = a.epilogue == Epilogue::silu_mul, residual = a.epilogue == Epilogue::residual;
    const int64_t at[2] = {row * a.y_stride + n, (row + 1) * a.y_stride + n};
    const bool there[2] = {row < a.rows, row + 1 < a.rows};
    float s[COUNT][4];
#pragma unroll
    for (int j = 0; j < COUNT; ++j) {
      s[j][0] = sums[j].x, s[j][1] = sums[j].y, s[j][2] = sums[j].z, s[j][3] = sums[j].w;
      if (a.bias != nullptr && j < tiles)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int o = n + j * step + (silu ? 0 : i / 2 * 8);
          if (o < outputs) s[j][i] = biased<T>(a, silu && i >= 2 ? outputs + o : o, s[j][i]);
        }
    }
    if (silu) {
      T v[COUNT][2];
#pragma unroll
      for (int j = 0; j < COUNT; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          v[j][i] = gpu::narrow<T>(outcome<T>(Epilogue::silu_mul, s[j][i], s[j][i + 2], 0.0f));
#pragma unroll
      for (int j = 0; j < COUNT; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (there[i] && j < tiles && n + j * step < outputs) static_cast<T*>(a.y)[at[i] + j * step] = v[j][i];
    } else if (a.output == DType::f32) {
#pragma unroll
      for (int j = 0; j < COUNT; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (there[i % 2] && j < tiles && n + j * step + i / 2 * 8 < outputs)
            static_cast<float*>(a.y)[at[i % 2] + j * step + i / 2 * 8] = s[j][i];
    } else {
#pragma unroll
      for (int j = 0; j < COUNT; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float v = residual ? outcome<T>(Epilogue::residual, s[j][i], 0.0f, gpu::widen(old[j][i])) : s[j][i];
          if (there[i % 2] && j < tiles && n + j * step + i / 2 * 8 < outputs)
            static_cast<T*>(a.y)[at[i % 2] + j * step + i / 2 * 8] = gpu::narrow<T>(v);
        }
    }
  }
};

}  // namespace qwen3tts

#endif
