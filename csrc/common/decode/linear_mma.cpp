// linear() on tensor cores, for bf16 and fp16.
//
// The weights are the tall operand, 16 of their rows in two halves of 8; the rows of x are its columns, 8 at a time. For
// silu_mul the halves are 8 gates and the 8 ups that belong to them, so that both sums of an output meet in one block.
//
// A unit is 32 elements of k. A lane (g = lane / 4, q = lane % 4) reads 16 bytes of weight row g, elements 8 q .. 8 q + 7,
// and the same elements of column g of x: both operands have their k in the same other order, which a sum over k cannot
// tell, and no copy of the weights in another order is needed. Unit u belongs to step u / 8 of warp u % 8; a warp sums
// its steps in order, in two chains (the halves of each unit), and a block adds the warps in order.
//
// A block has `halves` times 8 rows of weights, and takes up further such groups where there are many. Weights are in a
// ring of `kDepth` steps, in registers or, past `kHeld`, in shared memory: what was used is loaded anew for the steps, or
// the group, to come. With at most 128 registers two blocks fit on a multiprocessor: one of this kernel and one of the
// next, whose first weights arrive meanwhile. So groups are as large as makes them fewer than the multiprocessors. From
// 33 rows on it is one block, with up to 255 registers. None spills.
//
// x is in a ring of its own, for many columns in shared memory: no registers would hold as many loads as the latency
// needs. Every thread reads what it has copied itself, so that no barrier is needed. Where the ring holds all of x, it is
// loaded once for all groups. Shared memory: 3 to 219 KB.
#include "common/decode/linear_mma_parts.h"
#include "common/launch.h"

#if QW_HAS_MMA

namespace qwen3tts {
namespace {

// sums[chain][16 rows of weights][8 columns of x] += one unit.
template <class T, int HALVES, int TILES>
__device__ __forceinline__ void multiply(float (&sums)[2][(HALVES + 1) / 2][TILES][4], const gpu::Vector (&weight)[HALVES],
                                         const gpu::Vector& v, int tile) {
#pragma unroll
  for (int p = 0; p < (HALVES + 1) / 2; ++p) {
    const gpu::Vector& low = weight[2 * p];
    const gpu::Vector high = 2 * p + 1 < HALVES ? weight[2 * p + 1 < HALVES ? 2 * p + 1 : 0] : gpu::Vector{{0, 0, 0, 0}};
#pragma unroll
    for (int c = 0; c < 2; ++c)
      gpu::mma<T>(sums[c][p][tile], low.word[2 * c], high.word[2 * c], low.word[2 * c + 1], high.word[2 * c + 1],
                  v.word[2 * c], v.word[2 * c + 1]);
  }
}

// Tiles whose sums have room in shared memory; the rest waits for the same memory. Columns lie apart in the banks.
template <int HALVES, int TILES> constexpr int kTilesAtOnce = TILES * HALVES <= 16 ? TILES : 16 / HALVES;
template <int HALVES> constexpr int kSumStride = HALVES * 8 + 4;

// Adds up the warps and writes the outputs of a group. `old` is y before, of this thread's first output.
template <class T, int HALVES, int TILES>
__device__ __forceinline__ void reduce_and_write(const LinearArguments& a, float (&sums)[2][(HALVES + 1) / 2][TILES][4],
                                                 int group, int outputs, int first_row, bool first_group, float old) {
  constexpr int at_once = kTilesAtOnce<HALVES, TILES>, stride = kSumStride<HALVES>;
  __shared__ float partial[kWarps][at_once * 8][stride];
  const int lane = gpu::group_lane(), g = lane / 4, q = lane % 4, thread = static_cast<int>(threadIdx.x);
  const bool silu = a.epilogue == Epilogue::silu_mul;
#pragma unroll 1
  for (int begin = 0; begin < TILES && first_row + begin * 8 < a.rows; begin += at_once) {
    if (begin > 0 || !first_group) __syncthreads();  // all have read what is written over
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
      if (t / at_once * at_once != begin) continue;
#pragma unroll
      for (int p = 0; p < (HALVES + 1) / 2; ++p)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int half = 2 * p + i / 2;
          if (half < HALVES)
            partial[gpu::group()][t % at_once * 8 + 2 * q + i % 2][half * 8 + g] =
                gpu::add_rn(sums[0][p][t][i], sums[1][p][t][i]);
        }
    }
    __syncthreads();
    const int left = a.rows - first_row - begin * 8, columns = left < at_once * 8 ? left : at_once * 8;
    const int here = silu ? HALVES * 4 : HALVES * 8;  // outputs of a column
    const auto total = [&](int column, int weight) {
      float sum = partial[0][column][weight];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) sum = gpu::add_rn(sum, partial[w][column][weight]);
      return sum;
    };
#pragma unroll 1
    for (int i = thread; i < columns * here; i += kThreads) {
      const int column = i / here, o = i % here, n = group * here + o, row = first_row + begin * 8 + column;
      if (n >= outputs) continue;
      const int weight = silu ? o / 8 * 16 + o % 8 : o;
      const float sum = biased<T>(a, n, total(column, weight));
      const float up = silu ? biased<T>(a, outputs + n, total(column, weight + 8)) : 0.0f;
      if (a.epilogue == Epilogue::residual && (begin > 0 || i != thread))
        old = gpu::widen(static_cast<const T*>(a.y)[row * a.y_stride + n]);
      finish<T>(a, row, n, sum, up, old);
    }
  }
}

template <class T, int HALVES, int TILES, bool NORM>
__global__ void __launch_bounds__(kThreads, kResident<TILES>)
    linear_mma_kernel(LinearArguments a, int groups, int outputs) {
  constexpr int depth = kDepth<HALVES, TILES, NORM>, x_depth = kXDepth<HALVES, TILES, NORM>;
  constexpr int held = kHeld<HALVES, TILES, NORM>;
  constexpr bool staged = kStaged<TILES>, copies = staged || held < depth;
  constexpr int left = (staged ? x_depth : depth) - 1;  // sets of copies that may be on their way when a step begins
  static_assert(depth % x_depth == 0, "a slot of x belongs to one slot of the weights");
  gpu::launch_dependents();
  const int lane = gpu::group_lane(), warp = gpu::group(), g = lane / 4, thread = static_cast<int>(threadIdx.x);
  const int units = a.k / kUnit, steps = (units + kWarps - 1) / kWarps;
  const int mine = (units - warp + kWarps - 1) / kWarps;  // steps in which this warp has a unit
  int group = static_cast<int>(blockIdx.x);
  QW_DYNAMIC_SHARED(gpu::Vector, dynamic);
  gpu::Vector* const after_x = dynamic + (staged ? x_depth * TILES * kThreads : 0);
  gpu::Vector* const copied = after_x + thread;  // weights
  gpu::Vector* const norm_weight = after_x + (depth - held) * HALVES * kThreads;
  XRing<x_depth, TILES, staged> x(dynamic);

  // Asked for first, so that it does not wait for the others: the weights of the norm.
  const int norm_pieces = a.k / 8;
  const T* norm_from = static_cast<const T*>(a.norm_weight);
  gpu::Vector norm_piece{};
  if constexpr (NORM) norm_piece = gpu::load_weight(norm_from + thread * 8, thread < norm_pieces);
  WeightRows<T, HALVES> weights;
  weights.seek(a, group, outputs);
  gpu::Vector registers[held > 0 ? held : 1][HALVES];
  const auto load_weights = [&](int d, int step, int end) {
    if (d < held) weights.load(registers[d < held ? d : 0], step, end);
    else weights.copy(copied + (d - held) * HALVES * kThreads, step, end);
  };
#pragma unroll
  for (int d = 0; d < depth; ++d) {
    load_weights(d, d, mine);
    if constexpr (copies && !staged) gpu::commit_copies();
  }
  if constexpr (NORM) {
    if (thread < norm_pieces) norm_weight[thread] = norm_piece;
#pragma unroll 1
    for (int i = thread + kThreads; i < norm_pieces; i += kThreads) norm_weight[i] = gpu::load_weight(norm_from + i * 8);
    __syncthreads();  // here, where it costs nothing
  }

  gpu::wait_for_previous();

  const int first_row = static_cast<int>(blockIdx.y) * TILES * 8, rows = a.rows - first_row;
  Columns<T, TILES> columns;
  columns.first = static_cast<const T*>(a.x) + (first_row + g) * a.x_stride + warp * kUnit + lane % 4 * 8;
  columns.between = 8 * a.x_stride;
  columns.last = rows - 1 - g < 0 ? -1 : (rows - 1 - g) / 8;
#pragma unroll
  for (int d = 0; d < x_depth; ++d) {
#pragma unroll
    for (int t = 0; t < TILES; ++t) x.load(columns, d, t, d, mine);
    if constexpr (staged) gpu::commit_copies();
  }
  float scale[TILES];
  if constexpr (NORM) {
    if constexpr (staged) gpu::wait_for_copies<0>();
    if (TILES == 1 && a.rows == 1) scale[0] = single_scale<T>(a, steps);
    else norm_scales(a, columns, x, mine, scale);
  }

  const bool refill = !staged || steps > x_depth;  // else the ring has all of x, for every group
#pragma unroll 1
  for (; group < groups; group += static_cast<int>(gridDim.x)) {
    const bool first_group = group == static_cast<int>(blockIdx.x);
    float old = 0.0f;  // asked for early: it is needed at once when the sums are there
    if (a.epilogue == Epilogue::residual) {
      const int row = thread / (HALVES * 8), n = group * HALVES * 8 + thread % (HALVES * 8);
      if (row < rows && row < TILES * 8 && n < outputs)
        old = gpu::widen(static_cast<const T*>(a.y)[(first_row + row) * a.y_stride + n]);
    }
    float sums[2][(HALVES + 1) / 2][TILES][4] = {};
#pragma unroll 1
    for (int base = 0; base < steps; base += depth) {
      const bool last = base + depth >= steps;  // then the ring is filled for the next group
      const int next = group + (last ? static_cast<int>(gridDim.x) : 0), end = next < groups ? mine : 0;
      const int ahead = last ? 0 : base + depth;
      if (last) weights.seek(a, next < groups ? next : group, outputs);
#pragma unroll
      for (int d = 0; d < depth; ++d) {
        // Where the slot's next step of x is: of this group, or of the next one.
        const bool here = d + x_depth < depth;
        const int x_step = here ? base + d + x_depth : ahead + d + x_depth - depth, x_end = here ? mine : end;
        if constexpr (copies) gpu::wait_for_copies<left>();
        if (base + d < steps) {
          gpu::Vector fetched[HALVES];
          if (d >= held) {
#pragma unroll
            for (int h = 0; h < HALVES; ++h) fetched[h] = copied[((d - held) * HALVES + h) * kThreads];
          }
          const gpu::Vector(&weight)[HALVES] = d < held ? registers[d < held ? d : 0] : fetched;
#pragma unroll
          for (int t = 0; t < TILES; ++t) {
            gpu::Vector v = x.get(d % x_depth, t);
            if constexpr (NORM) {
              const int at = (base + d) * kStep + warp * kUnit + lane % 4 * 8;
              if (base + d < mine) v = normalized<T>(v, norm_weight[at / 8], scale[t]);
              if (a.normed != nullptr && group == 0 && base + d < mine && t <= columns.last)
                gpu::store_vector(static_cast<T*>(a.normed) + static_cast<int64_t>(first_row + t * 8 + g) * a.k + at, v);
            }
            multiply<T, HALVES, TILES>(sums, weight, v, t);
            if (refill) x.load(columns, d % x_depth, t, x_step, x_end);
          }
        } else if (refill) {
#pragma unroll
          for (int t = 0; t < TILES; ++t) x.load(columns, d % x_depth, t, x_step, x_end);
        }
        load_weights(d, ahead + d, end);
        if constexpr (copies) gpu::commit_copies();
      }
    }
    reduce_and_write<T, HALVES, TILES>(a, sums, group, outputs, first_row, first_group, old);
  }
}

// Bytes of the rings.
template <int HALVES, int TILES, bool NORM>
constexpr size_t kRings = sizeof(gpu::Vector) * kThreads *
                          ((kDepth<HALVES, TILES, NORM> - kHeld<HALVES, TILES, NORM>) * HALVES +
                           (kStaged<TILES> ? kXDepth<HALVES, TILES, NORM> * TILES : 0));

// Has a block of this card room for the kernel's shared memory? 227 KB are enough for all of them, 99 KB for those with
// at most four halves and tiles.
template <int HALVES, int TILES, bool NORM> bool fits() {
#ifdef QWEN3TTS_CUDA
  int device = 0, most = 0;
  gpu::check(cudaGetDevice(&device), "linear");
  gpu::check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "linear");
  constexpr int at_once = kTilesAtOnce<HALVES, TILES>;
  constexpr size_t sums = sizeof(float) * kWarps * 8 * (at_once * kSumStride<HALVES> + TILES);
  return kRings<HALVES, TILES, NORM> + sums + kMaxNormMma * 2 <= static_cast<size_t>(most);
#else
  return true;
#endif
}

template <class T, int HALVES, int TILES, bool NORM> void launch(const LinearArguments& a, void* stream) {
  const int outputs = outputs_of(a), here = a.epilogue == Epilogue::silu_mul ? HALVES * 4 : HALVES * 8;
  const int groups = (outputs + here - 1) / here, each = (groups + kProcessors - 1) / kProcessors;
  const int most = (HALVES == 6 ? 1 : kResident<TILES>) * kProcessors;
  const int blocks = groups <= most ? groups : (groups + each - 1) / each;
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>((a.rows + TILES * 8 - 1) / (TILES * 8)));
  constexpr size_t rings = kRings<HALVES, TILES, NORM>;
  const size_t shared = rings + (NORM ? a.k * sizeof(T) : 0);
  if (rings > 0)
    gpu::allow_shared(&linear_mma_kernel<T, HALVES, TILES, NORM>, rings + (NORM ? kMaxNormMma * sizeof(T) : 0));
  QW_LAUNCH_DEPENDENT((linear_mma_kernel<T, HALVES, TILES, NORM>), grid, dim3(kThreads), shared, gpu::stream_of(stream), a,
                      groups, outputs);
}

template <class T, int HALVES, bool NORM> void launch_rows(const LinearArguments& a, void* stream) {
  constexpr int fewer = HALVES == 6 ? 4 : HALVES;
  if (a.rows <= 8) {
    if (HALVES == fewer || !fits<HALVES, 1, NORM>()) return launch<T, fewer, 1, NORM>(a, stream);
    return launch<T, HALVES, 1, NORM>(a, stream);
  }
  if (a.rows <= 16) return launch<T, fewer, 2, NORM>(a, stream);
  if (a.rows > 32 && kMaxColumns > 32 && fits<fewer, 8, NORM>()) return launch<T, fewer, 8, NORM>(a, stream);
  // Four halves and four tiles would need too many registers for two blocks.
  launch<T, HALVES >= 4 ? 2 : HALVES, 4, NORM>(a, stream);
}

// As many rows of weights to a block as leave about 128 groups. No sum depends on it.
template <class T> void launch_for(const LinearArguments& a, void* stream) {
  const int rows = outputs_of(a) * (a.epilogue == Epilogue::silu_mul ? 2 : 1);
  if (a.norm_weight != nullptr) {
    if (rows <= 3072) return launch_rows<T, 2, true>(a, stream);
    return rows <= 32 * kProcessors ? launch_rows<T, 4, true>(a, stream) : launch_rows<T, 6, true>(a, stream);
  }
  if (rows <= 1024 && a.epilogue != Epilogue::silu_mul) return launch_rows<T, 1, false>(a, stream);
  launch_rows<T, 2, false>(a, stream);
}

}  // namespace

void linear_mma(const LinearArguments& a, void* stream) {
  a.dtype == DType::bf16 ? launch_for<gpu::bf16>(a, stream) : launch_for<gpu::fp16>(a, stream);
}

}  // namespace qwen3tts

#endif
