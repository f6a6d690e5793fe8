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
// A block has `halves` times 8 rows of weights, and takes up further such groups where there are many. The registers are
// a ring of weights, `kDepth` steps of them: what was used is loaded anew for the steps, or the group, to come. With at
// most 128 registers two blocks fit on a multiprocessor, and a kernel's first weights arrive while the one ahead runs;
// from 33 rows on it is one, with up to 255. None spills. Shared memory: 3 to 43 KB, and k elements with a norm.
#include "common/decode/linear_parts.h"
#include "common/launch.h"
#include "common/reduce.h"

#if QW_HAS_MMA

namespace qwen3tts {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / gpu::kGroup;
constexpr int kUnit = 32;                // elements of k
constexpr int kStep = kWarps * kUnit;    // elements of k that a block takes at a time
constexpr int kMaxColumns = 64;          // rows of x in a block
constexpr int kProcessors = 132;         // of a large card: about as many blocks share out many groups

// Steps of weights in registers; TILES: columns of x, in eights. Products behind a norm have the shorter k.
template <int HALVES, int TILES, bool NORM>
constexpr int kDepth = HALVES == 1   ? (TILES == 8 ? 4 : 12)
                       : HALVES == 2 ? (NORM || TILES >= 4 ? 4 : 8)
                                     : (TILES == 1 ? 4 : TILES == 2 ? 2 : 1);
// Steps of x in registers, a divisor of that. One is enough where its tiles keep the tensor cores busy.
template <int HALVES, int TILES, bool NORM>
constexpr int kXDepth = TILES == 1   ? (HALVES == 1 ? 12 : 4)
                        : TILES == 2 ? (HALVES == 1 ? 4 : NORM ? 2 : 1)
                                     : 1;

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
};

template <class T, int TILES> struct Columns {
  const T* first;   // this lane's elements of its first column
  int64_t between;  // eight columns
  int last;         // tile in which this lane's column exists

  // Zeros where there is no such column or step.
  __device__ __forceinline__ gpu::Vector load(int tile, int step, int end) const {
    return gpu::load_in_place(first + tile * between + step * kStep, step < end && tile <= last);
  }
};

// The scale of each of this lane's columns; those of all columns into `shared`. `ring` has the first DEPTH steps.
template <class T, int TILES, int DEPTH>
__device__ __forceinline__ void norm_scales(const LinearArguments& a, const Columns<T, TILES>& columns,
                                            const gpu::Vector (&ring)[DEPTH][TILES], int steps, float (&scale)[TILES],
                                            float* shared) {
  __shared__ float partial[kWarps][TILES * 8];
  float squares[TILES] = {};
#pragma unroll
  for (int d = 0; d < DEPTH; ++d)
#pragma unroll
    for (int t = 0; t < TILES; ++t) squares[t] = add_squares<T>(squares[t], ring[d][t]);
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
    scale[t] = norm_scale(sum, a.k, a.eps);
    if (gpu::group() == 0 && lane % 4 == 0) shared[t * 8 + g] = scale[t];
  }
}

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

// Adds up the warps and writes the outputs of a group. `old` is y before, of this thread's first output. `scales`: of the
// columns, to multiply the sums with; or nullptr.
template <class T, int HALVES, int TILES>
__device__ __forceinline__ void reduce_and_write(const LinearArguments& a, float (&sums)[2][(HALVES + 1) / 2][TILES][4],
                                                 int group, int outputs, int first_row, bool first_group, float old,
                                                 const float* scales) {
  constexpr int at_once = TILES * HALVES <= 16 ? TILES : 16 / HALVES;  // tiles; the rest waits for the same memory
  constexpr int stride = HALVES * 8 + 4;                               // apart in the banks
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
      return scales == nullptr ? sum : gpu::mul_rn(sum, scales[begin * 8 + column]);
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
__global__ void __launch_bounds__(kThreads, kResident<TILES>) linear_mma_kernel(LinearArguments a, int groups, int outputs) {
  constexpr int depth = kDepth<HALVES, TILES, NORM>, x_depth = kXDepth<HALVES, TILES, NORM>;
  static_assert(depth % x_depth == 0, "a slot of x belongs to one slot of the weights");
  const int lane = gpu::group_lane(), warp = gpu::group(), g = lane / 4;
  const int units = a.k / kUnit, steps = (units + kWarps - 1) / kWarps;
  const int mine = (units - warp + kWarps - 1) / kWarps;  // steps in which this warp has a unit
  int group = static_cast<int>(blockIdx.x);

  // Asked for first, so that it does not wait for the others: the weights of the norm.
  const int thread = static_cast<int>(threadIdx.x), norm_pieces = a.k / 8;
  const T* norm_from = static_cast<const T*>(a.norm_weight);
  gpu::Vector norm_piece{};
  if constexpr (NORM) norm_piece = gpu::load_weight(norm_from + thread * 8, thread < norm_pieces);
  WeightRows<T, HALVES> weights;
  weights.seek(a, group, outputs);
  gpu::Vector held[depth][HALVES];
#pragma unroll
  for (int d = 0; d < depth; ++d) weights.load(held[d], d, mine);

  gpu::launch_dependents();
  gpu::wait_for_previous();

  const int first_row = static_cast<int>(blockIdx.y) * kMaxColumns, rows = a.rows - first_row;
  Columns<T, TILES> columns;
  columns.first = static_cast<const T*>(a.x) + (first_row + g) * a.x_stride + warp * kUnit + lane % 4 * 8;
  columns.between = 8 * a.x_stride;
  columns.last = rows - 1 - g < 0 ? -1 : (rows - 1 - g) / 8;
  gpu::Vector x[x_depth][TILES];
#pragma unroll
  for (int d = 0; d < x_depth; ++d)
#pragma unroll
    for (int t = 0; t < TILES; ++t) x[d][t] = columns.load(t, d, mine);
  QW_DYNAMIC_SHARED(gpu::Vector, norm_weight);
  __shared__ float scales[TILES * 8];
  float scale[TILES];
  if constexpr (NORM) {
    if (thread < norm_pieces) norm_weight[thread] = norm_piece;
#pragma unroll 1
    for (int i = thread + kThreads; i < norm_pieces; i += kThreads) norm_weight[i] = gpu::load_weight(norm_from + i * 8);
    norm_scales(a, columns, x, mine, scale, scales);
  }

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
        if (base + d < steps) {
#pragma unroll
          for (int t = 0; t < TILES; ++t) {
            gpu::Vector v = x[d % x_depth][t];
            if constexpr (NORM) {
              const int at = (base + d) * kStep + warp * kUnit + lane % 4 * 8;
              if (a.normed != nullptr && group == 0 && base + d < mine && t <= columns.last)
                gpu::store_vector(static_cast<T*>(a.normed) + static_cast<int64_t>(first_row + t * 8 + g) * a.k + at,
                                  normalized<T>(v, norm_weight[at / 8], scale[t]));
              if (base + d < mine)
                v = kScalesSum<T> ? weighted<T>(v, norm_weight[at / 8]) : normalized<T>(v, norm_weight[at / 8], scale[t]);
            }
            multiply<T, HALVES, TILES>(sums, held[d], v, t);
            x[d % x_depth][t] = columns.load(t, x_step, x_end);
          }
        } else {
#pragma unroll
          for (int t = 0; t < TILES; ++t) x[d % x_depth][t] = columns.load(t, x_step, x_end);
        }
        weights.load(held[d], ahead + d, end);
      }
    }
    reduce_and_write<T, HALVES, TILES>(a, sums, group, outputs, first_row, first_group, old,
                                       NORM && kScalesSum<T> ? scales : nullptr);
  }
}

template <class T, int HALVES, int TILES, bool NORM> void launch(const LinearArguments& a, void* stream) {
  const int outputs = outputs_of(a), here = a.epilogue == Epilogue::silu_mul ? HALVES * 4 : HALVES * 8;
  const int groups = (outputs + here - 1) / here, each = (groups + kProcessors - 1) / kProcessors;
  const int blocks = groups <= kResident<TILES> * kProcessors ? groups : (groups + each - 1) / each;
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>((a.rows + kMaxColumns - 1) / kMaxColumns));
  const size_t shared = NORM ? static_cast<size_t>(a.k) * sizeof(T) : 0;
  QW_LAUNCH_DEPENDENT((linear_mma_kernel<T, HALVES, TILES, NORM>), grid, dim3(kThreads), shared, gpu::stream_of(stream), a,
                      groups, outputs);
}

template <class T, int HALVES, bool NORM> void launch_rows(const LinearArguments& a, void* stream) {
  if (a.rows <= 8) return launch<T, HALVES, 1, NORM>(a, stream);
  if (a.rows <= 16) return launch<T, HALVES, 2, NORM>(a, stream);
  // Four halves and four tiles would need too many registers for two blocks.
  if (a.rows <= 32) return launch<T, HALVES == 4 ? 2 : HALVES, 4, NORM>(a, stream);
  launch<T, HALVES, 8, NORM>(a, stream);
}

// As many rows of weights to a block as leave about 128 to 192 groups. No sum depends on it.
template <class T> void launch_for(const LinearArguments& a, void* stream) {
  const int rows = outputs_of(a) * (a.epilogue == Epilogue::silu_mul ? 2 : 1);
  if (a.norm_weight != nullptr) return rows <= 3072 ? launch_rows<T, 2, true>(a, stream) : launch_rows<T, 4, true>(a, stream);
  if (rows <= 1024 && a.epilogue != Epilogue::silu_mul) return launch_rows<T, 1, false>(a, stream);
  launch_rows<T, 2, false>(a, stream);
}

}  // namespace

void linear_mma(const LinearArguments& a, void* stream) {
  a.dtype == DType::bf16 ? launch_for<gpu::bf16>(a, stream) : launch_for<gpu::fp16>(a, stream);
}

}  // namespace qwen3tts

#endif
