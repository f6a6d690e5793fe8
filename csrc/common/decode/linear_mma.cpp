// linear() on tensor cores, for bf16 and fp16 and any number of rows; made for 17 to 128.
//
// The weights are the tall operand, 16 of their rows at a time; the rows of x are its columns, 8 at a time. For silu_mul
// the halves of 16 rows are 8 gates and the 8 ups that belong to them, so that both sums of an output meet in one lane.
//
// The order of a sum: a unit is 32 elements of k, and unit u is step u / 8 of slice u % 8. A lane (g = lane / 4,
// q = lane % 4) has elements 8 q .. 8 q + 7 of weight rows g and g + 8 and of column g of x: both operands have their k in
// the same other order, which a sum over k cannot tell, and no copy of the weights in another order is needed. The steps
// of a slice are added in order, in two chains (the halves of each unit), the chains to each other, and the slices in order.
//
// A block has 16 M rows of weights and 32 N columns. Four of its warps take the even slices and four the odd ones, each 8 N
// columns, so a block reads x once, straight into registers. The weights lie in shared memory for all warps and arrive
// there while the kernel ahead runs: all of them, or a ring. The total goes back and forth between the two halves of the
// block, a slice at a time.
//
// With a norm in bf16, the columns are multiplied by the norm's weights alone and the sum by the scale at last: squares are
// summed along the way, and nothing waits for them. In fp16 that could overflow, so x is read twice.
//
// Without a norm k is long and the outputs are few. Where there are clusters, four blocks then share 16 M rows and take
// two slices each; every slice's sums go into the shared memory of the block that finishes them.
#include "common/cluster.h"
#include "common/decode/linear_parts.h"
#include "common/launch.h"
#include "common/reduce.h"

#if QW_HAS_MMA

namespace qwen3tts {
namespace {

constexpr int kThreads = 256;
constexpr int kHalf = kThreads / 2;                  // threads that take the same slices
constexpr int kColumnGroups = kHalf / gpu::kGroup;   // warps of a half
constexpr int kSlices = 8;
constexpr int kUnit = 32;                            // elements of k
constexpr int kStep = kSlices * kUnit;               // from one unit of a slice to the next
#ifndef WIDE_HINT
#define WIDE_HINT ""
#endif
#ifndef WIDE_LD
#define WIDE_LD ""
#endif
#ifndef WIDE_CHUNK
#define WIDE_CHUNK 4
#endif
constexpr int kChunk = WIDE_CHUNK;                   // units of a slice that are loaded together
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

// ---------------------------------------------------------------- copies

__device__ __forceinline__ void copy_async(gpu::Vector* to, const void* from, bool wanted) {
#ifdef QWEN3TTS_CUDA
  asm volatile("cp.async.cg.shared.global" WIDE_HINT " [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(wanted ? 16 : 0)
               : "memory");
#else
  *to = wanted ? *static_cast<const gpu::Vector*>(from) : gpu::Vector{{0, 0, 0, 0}};
#endif
}
__device__ __forceinline__ void commit_copies() {
#ifdef QWEN3TTS_CUDA
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until no more than PENDING of this thread's groups of copies are missing.
template <int PENDING> __device__ __forceinline__ void wait_for_copies() {
#ifdef QWEN3TTS_CUDA
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// As gpu::load_in_place, but leaves v as it is if nothing is wanted.
__device__ __forceinline__ void load_over(gpu::Vector& v, const void* from, bool wanted) {
#ifdef QWEN3TTS_CUDA
  asm volatile("{\n.reg .pred wanted;\nsetp.ne.b32 wanted, %5, 0;\n@wanted ld.global" WIDE_LD ".v4.u32 {%0, %1, %2, %3}, [%4];\n}"
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
// neighbouring units have changed places, so that the 8 lanes that read two rows of one unit find them in different banks.
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
    for (int i = 0; i < 2 * M; ++i) copy_async(to + i * kRowsAtOnce * kRowVectors, table[row + 8 * i] + offset, wanted);
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

// ---------------------------------------------------------------- sums

template <int M, int N> struct Sums {
  float chain[2][M][N][4] = {};

  // += half a unit: chain c, 16 rows m and tile t of columns.
  template <class T> __device__ __forceinline__ void add(int c, int m, int t, const gpu::Vector& weight, const gpu::Vector& v) {
    gpu::mma<T>(chain[c][m][t], weight.word[0], weight.word[1], weight.word[2], weight.word[3], v.word[2 * c], v.word[2 * c + 1]);
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

// What a lane has of COUNT tiles of 16 rows of weights by 8 columns: of two rows of y, outputs n + i step, and eight further
// ones on or, for silu_mul, nothing more. Found ahead, for when the sums are there nothing else is left to do.
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
        to[j][i] = static_cast<const T*>(a.y)[(r < a.rows ? r : a.rows - 1) * a.y_stride + (o < outputs ? o : outputs - 1)];
      }
  }
  __device__ __forceinline__ void write(const LinearArguments& a, int outputs, float4 (&sums)[COUNT], const T (&old)[COUNT][4]) const {
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
        for (int i = 0; i < 2; ++i) {
          const float gate = rounded<T>(s[j][i]), silu_of = gpu::div_rn(gate, gpu::add_rn(1.0f, expf(-gate)));
          v[j][i] = gpu::narrow<T>(gpu::mul_rn(rounded<T>(silu_of), rounded<T>(s[j][i + 2])));
        }
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
          const float v = residual ? gpu::add_rn(gpu::widen(old[j][i]), rounded<T>(s[j][i])) : s[j][i];
          if (there[i % 2] && j < tiles && n + j * step + i / 2 * 8 < outputs)
            static_cast<T*>(a.y)[at[i % 2] + j * step + i / 2 * 8] = gpu::narrow<T>(v);
        }
    }
  }
};

// ---------------------------------------------------------------- shared memory

// The rest of it, after the stages. A tile's sums are float4 [lane].
template <class T, int M, int N, bool NORM, int CLUSTER> struct alignas(16) Shared {
  static constexpr int columns = kColumnGroups * 8 * N;
  static constexpr int tiles = kColumnGroups * M * N / CLUSTER;  // that a block finishes
  static constexpr int all_tiles = kColumnGroups * M * N;
  const T* rows[2][16 * M];                                      // of weights; for two groups
  float4 sums[CLUSTER == 1 ? 1 : kSlices][CLUSTER == 1 ? 1 : tiles][gpu::kGroup];   // what the blocks of a cluster have sent
  float squares[NORM ? kSlices : 1][NORM ? columns : 1];
  float scale[NORM ? columns : 1];
  uint64_t box;
};

template <class T, int M, int N, bool NORM, int CLUSTER> size_t shared_bytes(int stages, int k, bool ring) {
  const size_t before = sizeof(gpu::Vector) * 2 * kChunkVectors<M> * static_cast<size_t>(stages);
  const size_t sums = ring && CLUSTER == 1 ? sizeof(float4) * kAddends * kColumnGroups * M * N * gpu::kGroup : 0;
  return before + (NORM ? static_cast<size_t>(k) * sizeof(T) : 0) + sizeof(Shared<T, M, N, NORM, CLUSTER>) + sums;
}

// ---------------------------------------------------------------- the kernel

template <class T, int M, int N, bool NORM, int CLUSTER, bool WHOLE>
__global__ void __launch_bounds__(kThreads, 2)
    linear_mma_kernel(LinearArguments a, int groups, int outputs, int slots) {
  constexpr int rounds = kSlices / CLUSTER / 2;  // slices of a half
  static_assert(!NORM || CLUSTER == 1, "a cluster has no sum of squares");
  static_assert(CLUSTER == 1 || CLUSTER == kColumnGroups, "a block of a cluster finishes one group of columns");
  const int thread = static_cast<int>(threadIdx.x), lane = gpu::group_lane(), g = lane / 4, q = lane % 4;
  const int half = thread / kHalf, column_group = gpu::group() % kColumnGroups;
  const int rank = static_cast<int>(blockIdx.x) % CLUSTER, first_slice = rank * (kSlices / CLUSTER) + half * rounds;
  const int units = a.k / kUnit, steps = (units + kSlices - 1) / kSlices, parts = (steps + kChunk - 1) / kChunk;
  const int blocks = static_cast<int>(gridDim.x) / CLUSTER;
  int group = static_cast<int>(blockIdx.x) / CLUSTER;
  const int total = (groups - group + blocks - 1) / blocks * rounds * parts;
  const bool ring = slots < total;

  QW_DYNAMIC_SHARED(gpu::Vector, dynamic);
  gpu::Vector* const chunks = dynamic + half * kChunkVectors<M>;  // of this half: of every stage
  gpu::Vector* const norm_weight = dynamic + slots * 2 * kChunkVectors<M>;
  auto& shared = *reinterpret_cast<Shared<T, M, N, NORM, CLUSTER>*>(norm_weight + (NORM ? a.k / 8 : 0));
  const gpu::Box box{&shared.box};

  // Ahead of the wait: weights.
  int to_load = group, parity = 0;
  WeightRows<T, M, WHOLE> weights(shared.rows[0]);
  weights.seek(a, group, outputs);
  if constexpr (CLUSTER > 1)
    if (thread == 0) box.open();
  __syncthreads();
  if constexpr (CLUSTER > 1) gpu::cluster_arrive();
  if constexpr (NORM)
    for (int i = thread; i < a.k / 8; i += kThreads) copy_async(norm_weight + i, static_cast<const T*>(a.norm_weight) + i * 8, true);
  Place ahead{first_slice, 0};
  int loaded = 0;
  const auto load_stage = [&](int slot) {
    if (loaded < total) {
      weights.copy(chunks + slot * 2 * kChunkVectors<M>, ahead, units);
      if (ahead.advance(parts, first_slice, rounds) && loaded + 1 < total) {
        to_load += blocks;
        weights.table = shared.rows[parity ^= 1];
        weights.seek(a, to_load, outputs);
        if (!ring) __syncthreads();
      }
    }
    ++loaded;
    commit_copies();
  };
#pragma unroll 1
  for (int slot = 0; slot < slots; ++slot) load_stage(slot);

  gpu::launch_dependents();
#ifndef WIDE_LATE
  if (!ring) {
    wait_for_copies<0>();
#pragma unroll 1
    for (int s = 0; s < slots; ++s) weights.interleave(chunks + s * 2 * kChunkVectors<M>);
  }
#endif
  gpu::wait_for_previous();

  const int first_row = static_cast<int>(blockIdx.y) * shared.columns;
  const int first_column = column_group * 8 * N;  // of the block
  // Whole waves: their products are made together.
  const int wave_groups = gpu::wave_size() / gpu::kGroup;
  const bool active = first_row + column_group / wave_groups * wave_groups * 8 * N < a.rows;
  Columns<T, N, WHOLE> columns;
  columns.seek(a, first_row + first_column);
  gpu::Vector x[kChunk][N] = {};
  Place x_ahead{first_slice, 0};
  {
    const int there = active ? x_ahead.units(units) : 0;
#pragma unroll
    for (int d = 0; d < kChunk; ++d)
#pragma unroll
      for (int t = 0; t < N; ++t) columns.load(x[d][t], t, x_ahead.element(), d, there);
    x_ahead.advance(parts, first_slice, rounds);
  }

  // Of its column group's tiles a warp finishes every other one; of a cluster's, one of those of its block.
  constexpr int finished = CLUSTER == 1 ? (M * N + 1) / 2 : 1;
  const bool exists = first_row + first_column < a.rows;
  const bool owns = first_row + rank * 8 * N < a.rows && gpu::group() < M * N;  // for a cluster
  Outputs<T, finished> to;
  T old[finished][4];
  if constexpr (CLUSTER > 1) {
    to.seek(a, group * M + gpu::group() / N, 0, first_row + (rank * N + gpu::group() % N) * 8, 1);
    if (a.epilogue == Epilogue::residual && owns) to.old(a, outputs, old);
    const unsigned sent = first_row + rank * 8 * N < a.rows ? kSlices * M * N * gpu::kGroup * sizeof(float4) : 0;
    if (thread == 0) box.close(sent);
  }

  float squares[N] = {};
  const auto end_squares = [&](int slice) {
#pragma unroll
    for (int t = 0; t < N; ++t) {
      float sum = gpu::add_rn(squares[t], gpu::shfl_xor(squares[t], 1));
      sum = gpu::add_rn(sum, gpu::shfl_xor(sum, 2));
      if (q == 0) shared.squares[slice][first_column + t * 8 + g] = sum;
      squares[t] = 0.0f;
    }
  };
  const auto find_scales = [&]() {
    if (thread >= shared.columns) return;
    float sum = shared.squares[0][thread];
#pragma unroll
    for (int slice = 1; slice < kSlices; ++slice) sum = gpu::add_rn(sum, shared.squares[slice][thread]);
    shared.scale[thread] = norm_scale(sum, a.k, a.eps);
  };
  float scale[N] = {};
  if constexpr (NORM && !kScalesSum<T>) {
#pragma unroll 1
    for (int slice = first_slice; slice < first_slice + rounds; ++slice) {
#pragma unroll 4
      for (int unit = slice; unit < units; unit += kSlices)
#pragma unroll
        for (int t = 0; t < N; ++t) squares[t] = add_squares<T>(squares[t], gpu::load_in_place(columns.at[t] + unit * kUnit));
      end_squares(slice);
    }
    __syncthreads();
    find_scales();
    __syncthreads();
#pragma unroll
    for (int t = 0; t < N; ++t) scale[t] = shared.scale[first_column + t * 8 + g];
  }

  // Sums of slices (kAddends) of this lane: float4 [tiles][lane], for half 0 the first, for half 1 the others. In place of
  // weights that have been used, if those are not loaded anew.
  int first_stage = 0;
  const int apart = ring ? shared.all_tiles * gpu::kGroup : parts * 2 * kChunkVectors<M>;  // from addend 1 to 2, to 3 ...
  const auto addends = [&](int of_half) {
    float4* const at = ring ? reinterpret_cast<float4*>(&shared + 1)
                            : reinterpret_cast<float4*>(dynamic + first_stage * 2 * kChunkVectors<M>);
    return at + of_half * (ring ? shared.all_tiles * gpu::kGroup : kChunkVectors<M>) + anew(column_group * M * N * gpu::kGroup + lane);
  };
  Sums<M, N> sums;
  Place place{first_slice, 0};
  int slot = 0;
#ifdef WIDE_LATE
  if (!ring) {
    wait_for_copies<0>();
#pragma unroll 1
    for (int s = 0; s < slots; ++s) weights.interleave(chunks + s * 2 * kChunkVectors<M>);
  }
#endif
  if constexpr (CLUSTER > 1) gpu::cluster_wait();

#pragma unroll 1
  for (int stage = 0; stage < total; ++stage) {
    gpu::Vector* const chunk = chunks + slot * 2 * kChunkVectors<M>;
    if (ring) {
      wait_for_copies<kRing<M> - 2>();
      weights.interleave(chunk);
    }
    if (ring || stage == 0) __syncthreads();
    if (ring) {
      if (stage > 0) load_stage(slot == 0 ? slots - 1 : slot - 1);
      else commit_copies();
    }
    if (++slot == slots) slot = 0;
    if (active) {
      const gpu::Vector* const here = chunk + g * kRowVectors + q;
      const gpu::Vector* const even = here + (g & 1) * 4;
      const gpu::Vector* const odd = here - (g & 1) * 4;
      const int element = x_ahead.element(), there = stage + 1 < total ? x_ahead.units(units) : 0;
      const int norm_at = place.element() / 8 + q, norm_there = place.units(units);
#pragma unroll
      for (int d = 0; d < kChunk; ++d) {
        if constexpr (NORM) {
          const gpu::Vector of_norm = norm_weight[WHOLE || d < norm_there ? norm_at + d * kStep / 8 : 0];
#pragma unroll
          for (int t = 0; t < N; ++t) {
            if constexpr (kScalesSum<T>) {
              squares[t] = add_squares<T>(squares[t], x[d][t]);
              x[d][t] = weighted<T>(x[d][t], of_norm);
            } else {
              x[d][t] = normalized<T>(x[d][t], of_norm, scale[t]);
            }
          }
        }
#pragma unroll
        for (int c = 0; c < 2; ++c)
#pragma unroll
          for (int m = 0; m < M; ++m) {
            const gpu::Vector weight = (d % 2 == 0 ? even : odd)[(m * 2 + c) * 8 * kRowVectors + d * 4];
#pragma unroll
            for (int t = 0; t < N; ++t) sums.template add<T>(c, m, t, weight, x[d][t]);
          }
#pragma unroll
        for (int t = 0; t < N; ++t) columns.load(x[d][t], t, element, d, there);
      }
    }
    x_ahead.advance(parts, first_slice, rounds);
    const int slice = place.slice;
    const bool slice_ends = place.part == parts - 1, group_ends = place.advance(parts, first_slice, rounds);
    if (!slice_ends) continue;
    if constexpr (NORM && kScalesSum<T>)
      if (active) end_squares(slice);

    if constexpr (CLUSTER > 1) {
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int t = 0; t < N; ++t) {
          const float4 sum = sums.take(m, t);
          if (exists)
            box.send_to(static_cast<unsigned>(column_group), reinterpret_cast<float*>(&shared.sums[slice][m * N + t][lane]), sum);
        }
    } else {
      __syncthreads();  // what has been read is written over
      const int round = slice - first_slice;
      float4* const kept = addends(half) + (half == 0 ? 0 : round * apart);
      if (active)
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
          for (int t = 0; t < N; ++t) {
            float4& sum = kept[(m * N + t) * gpu::kGroup];
            const float4 more = sums.take(m, t);
            sum = half == 1 || round == 0 ? more : add_rn(sum, more);
          }
      if (!group_ends) continue;
      if constexpr (NORM && kScalesSum<T>) find_scales();
      __syncthreads();
      if (exists) {
        float4 totals[finished];
        const int odd = anew(half);
        const float4* const low = addends(0) + odd * gpu::kGroup;
        const float4* const high = addends(1) + odd * gpu::kGroup;
#pragma unroll
        for (int j = 0; j < finished; ++j) {
          const int tile = 2 * j + odd < M * N ? 2 * j * gpu::kGroup : 0;
          totals[j] = low[tile];
#pragma unroll
          for (int i = 0; i < kSlices / 2; ++i) totals[j] = add_rn(totals[j], high[tile + i * apart]);
        }
        if constexpr (NORM && kScalesSum<T>) {
          const float* const scales = shared.scale + first_column + (N == 2 ? 8 * odd : 0) + 2 * q;
          const float first = scales[0], second = scales[1];
#pragma unroll
          for (int j = 0; j < finished; ++j)
            totals[j] = make_float4(gpu::mul_rn(totals[j].x, first), gpu::mul_rn(totals[j].y, second),
                                    gpu::mul_rn(totals[j].z, first), gpu::mul_rn(totals[j].w, second));
        }
        to.seek(a, group * M + (N == 2 ? 0 : odd), N == 2 ? 1 : 2, first_row + first_column + (N == 2 ? 8 * odd : 0),
                (M * N + 1 - odd) / 2);
        if (a.epilogue == Epilogue::residual) to.old(a, outputs, old);
        to.write(a, outputs, totals, old);
      }
      first_stage = stage + 1;
      group += blocks;
    }
  }

  if constexpr (CLUSTER > 1) {
    if (!owns) return;
    box.wait();
    float4 sum[1] = {shared.sums[0][gpu::group()][lane]};
#pragma unroll
    for (int slice = 1; slice < kSlices; ++slice) sum[0] = add_rn(sum[0], shared.sums[slice][gpu::group()][lane]);
    to.write(a, outputs, sum, old);
  }

  // The normed columns, shared out among the blocks.
  if constexpr (NORM)
    if (a.normed != nullptr)
#pragma unroll 1
      for (int unit = static_cast<int>(blockIdx.x) * 2 + half; unit < units; unit += static_cast<int>(gridDim.x) * 2)
#pragma unroll
        for (int t = 0; t < N; ++t) {
          const int column = first_column + t * 8 + g, at = unit * kUnit + q * 8;
          if (first_row + column < a.rows)
            gpu::store_vector(static_cast<T*>(a.normed) + static_cast<int64_t>(first_row + column) * a.k + at,
                              normalized<T>(gpu::load_in_place(columns.at[t] + unit * kUnit), norm_weight[at / 8], shared.scale[column]));
        }
}

// What a block may have.
size_t shared_limit() {
#ifdef QWEN3TTS_CUDA
  int device = 0, bytes = 0;
  gpu::check(cudaGetDevice(&device), "device");
  gpu::check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "shared memory");
  return static_cast<size_t>(bytes);
#else
  return 64 * 1024;
#endif
}

template <class T, int M, int N, bool NORM, int CLUSTER, bool WHOLE = true> void launch(const LinearArguments& a, void* stream) {
  const int outputs = outputs_of(a), here = a.epilogue == Epilogue::silu_mul ? M * 8 : M * 16;
  const int groups = (outputs + here - 1) / here, each = CLUSTER > 1 ? 1 : (groups + kProcessors - 1) / kProcessors;
  const int blocks = (groups + each - 1) / each, columns = kColumnGroups * 8 * N;
  const int stages = (a.k + kChunk * kStep - 1) / (kChunk * kStep) * (kSlices / CLUSTER / 2) * each;
  const size_t limit = shared_limit();
  size_t shared = shared_bytes<T, M, N, NORM, CLUSTER>(stages, a.k, false);
  const bool ring = stages > kResident || shared > limit;
  if (ring) shared = shared_bytes<T, M, N, NORM, CLUSTER>(kRing<M>, a.k, true);
  if constexpr (M > 1 && CLUSTER == 1)
    if (shared > limit) return launch<T, M - 1, N, NORM, CLUSTER, WHOLE>(a, stream);
  auto* const kernel = &linear_mma_kernel<T, M, N, NORM, CLUSTER, WHOLE>;
  if (shared > 48 * 1024) gpu::allow_shared(kernel, shared);
  const dim3 grid(static_cast<unsigned>(blocks * CLUSTER), static_cast<unsigned>((a.rows + columns - 1) / columns));
  QW_LAUNCH_CLUSTER(kernel, CLUSTER, grid, dim3(kThreads), shared, gpu::stream_of(stream), a, groups, outputs,
                    ring ? kRing<M> : stages);
}

template <class T, int M, bool NORM, int CLUSTER> void launch_rows(const LinearArguments& a, void* stream) {
  a.rows <= 32 ? launch<T, M, 1, NORM, CLUSTER>(a, stream) : launch<T, M, 2, NORM, CLUSTER>(a, stream);
}

bool has_clusters() {
#ifdef QWEN3TTS_CUDA
  cudaFuncAttributes attributes{};
  gpu::check(cudaFuncGetAttributes(&attributes, linear_mma_kernel<gpu::bf16, 2, 1, false, 4, true>), "attributes");
  return attributes.ptxVersion >= 90 && shared_limit() >= 160 * 1024;
#else
  return false;
#endif
}

// As many rows of weights to a block as keep all multiprocessors busy with one block each. No sum depends on it.
template <class T> void launch_for(const LinearArguments& a, void* stream) {
  const int tiles = (outputs_of(a) * (a.epilogue == Epilogue::silu_mul ? 2 : 1) + 15) / 16;
  const bool norm = a.norm_weight != nullptr;
  if (a.k % (kChunk * kStep) != 0)
    return norm ? launch<T, 1, 2, true, 1, false>(a, stream) : launch<T, 1, 2, false, 1, false>(a, stream);
  if (norm) {
    if (tiles <= kProcessors) return launch_rows<T, 1, true, 1>(a, stream);
    if (tiles <= 2 * kProcessors) return launch_rows<T, 2, true, 1>(a, stream);
    return launch_rows<T, 3, true, 1>(a, stream);
  }
  if (!has_clusters()) return launch_rows<T, 1, false, 1>(a, stream);
  if (tiles <= kProcessors / 2) return launch_rows<T, 2, false, 4>(a, stream);
  launch_rows<T, 4, false, 4>(a, stream);
}

}  // namespace

void linear_mma(const LinearArguments& a, void* stream) {
#ifdef WIDE_BF16
  launch_for<gpu::bf16>(a, stream);
#else
  a.dtype == DType::bf16 ? launch_for<gpu::bf16>(a, stream) : launch_for<gpu::fp16>(a, stream);
#endif
}

}  // namespace qwen3tts

#endif
