// linear() on tensor cores, for bf16 and fp16 and any number of rows; made for 17 to 128.
//
// The weights are the tall operand, 16 of their rows at a time; the rows of x are its columns, 8 at a time. For
// silu_mul the halves of 16 rows are 8 gates and the 8 ups that belong to them, so that both sums of an output meet in
// one lane.
//
// The order of a sum: a unit is 32 elements of k, and unit u is step u / 8 of slice u % 8. A lane (g = lane / 4,
// q = lane % 4) has elements 8 q .. 8 q + 7 of weight rows g and g + 8 and of column g of x: both operands have their k
// in the same other order, which a sum over k cannot tell. The steps of a slice are added in order, in two chains (the
// halves of each unit), then the chains to each other, and the slices in order.
//
// A block has 16 M rows of weights and 32 N columns. Four of its warps take the first half of the slices and four the
// second one, 8 N columns each, so a block reads x once, straight into registers. The weights lie in shared memory for
// all warps and arrive there while the kernel ahead runs: all of them, or through a ring. The first half adds its
// slices up as they come, those of the second half are kept and added at the end.
//
// With a norm in bf16, squares are summed along the way and nothing waits for the scale. In fp16 x is read twice.
//
// Without a norm k is long and the outputs are few. Where there are clusters, four blocks then share 16 M rows and take
// two slices each; every slice's sums go into the shared memory of the block that finishes its columns.
//
// Two tiles of weights to a cluster, whatever their number: with four, the 1.7B's o and down took 13.4 and 32.2 us at 64
// rows instead of 9.5 and 26.3 (a ring of three, spills).
//
// Registers: 103 to 128, so that two blocks fit on a multiprocessor. Bytes spilled for sm_90, bf16, N = 2: 276 with
// M = 3, 84 with M = 2 and a norm; at most 40 otherwise. Shared memory: 8 M KB a stage, up to four of them; the norm's
// weights; sums of slices, 10 M N KB beside a ring and 4 M N KB in a cluster.
#include "common/cluster.h"
#include "common/decode/linear_mma_parts.h"
#include "common/launch.h"

#if QW_HAS_MMA

namespace qwen3tts {
namespace {

// ---------------------------------------------------------------- shared memory

// The rest of it, after the stages. A tile's sums are float4 [lane].
template <class T, int M, int N, bool NORM, int CLUSTER> struct alignas(16) Shared {
  static constexpr int columns = kColumnGroups * 8 * N;
  static constexpr int all_tiles = kColumnGroups * M * N;
  const T* rows[2][16 * M];  // of weights; for two groups
  float4 sums[CLUSTER == 1 ? 1 : kSlices][CLUSTER == 1 ? 1 : M * N][gpu::kGroup];  // that the blocks of a cluster sent
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

// One chunk of weights with as many units x of columns. In the place of those come the ones that stand `next` elements
// from the columns' begin and of which `next_units` exist. of_norm: the norm's weights from the chunk's first unit on,
// of which `units` exist.
template <class T, int M, int N, bool NORM, bool WHOLE>
__device__ __forceinline__ void multiply_chunk(const gpu::Vector* chunk, const gpu::Vector* of_norm, int units,
                                               const float (&scale)[N], float (&squares)[N],
                                               gpu::Vector (&x)[kChunk][N], Sums<M, N>& sums,
                                               const Columns<T, N, WHOLE>& columns, int next, int next_units) {
  const int lane = gpu::group_lane(), g = lane / 4, q = lane % 4;
  const gpu::Vector* const here = chunk + g * kRowVectors + q;
  const gpu::Vector* const even = here + (g & 1) * 4;  // see WeightRows
  const gpu::Vector* const odd = here - (g & 1) * 4;
#pragma unroll
  for (int d = 0; d < kChunk; ++d) {
    if constexpr (NORM) {
      const gpu::Vector w = WHOLE || d < units ? of_norm[d * kStep / 8 + q] : gpu::Vector{{0, 0, 0, 0}};
#pragma unroll
      for (int t = 0; t < N; ++t) {
        if constexpr (kScalesSum<T>) {
          squares[t] = add_squares<T>(squares[t], x[d][t]);
          x[d][t] = weighted<T>(x[d][t], w);
        } else {
          x[d][t] = normalized<T>(x[d][t], w, scale[t]);
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
    for (int t = 0; t < N; ++t) columns.load(x[d][t], t, next, d, next_units);
  }
}

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
    for (int i = thread; i < a.k / 8; i += kThreads)
      gpu::copy_async(norm_weight + i, static_cast<const T*>(a.norm_weight) + i * 8, true);
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
    gpu::commit_copies();
  };
#pragma unroll 1
  for (int slot = 0; slot < slots; ++slot) load_stage(slot);

  gpu::launch_dependents();
  if (!ring) {
    gpu::wait_for_copies<0>();
#pragma unroll 1
    for (int s = 0; s < slots; ++s) weights.interleave(chunks + s * 2 * kChunkVectors<M>);
  }
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
  float scale[N] = {};
  if constexpr (NORM && !kScalesSum<T>) {
    sum_squares<T, N>(columns.at, units, first_slice, rounds, squares, shared.squares, first_column);
    __syncthreads();
    find_scales(a, shared.squares, shared.scale);
    __syncthreads();
#pragma unroll
    for (int t = 0; t < N; ++t) scale[t] = shared.scale[first_column + t * 8 + g];
  }

  // Sums of slices (kAddends) of this lane: float4 [tiles][lane], for half 0 the first, for half 1 the others. In place
  // of weights that have been used, if those are not loaded anew.
  int first_stage = 0;
  const int apart = ring ? shared.all_tiles * gpu::kGroup : parts * 2 * kChunkVectors<M>;  // those of half 1
  const auto addends = [&](int of_half) {
    float4* const at = ring ? reinterpret_cast<float4*>(&shared + 1)
                            : reinterpret_cast<float4*>(dynamic + first_stage * 2 * kChunkVectors<M>);
    return at + of_half * (ring ? shared.all_tiles * gpu::kGroup : kChunkVectors<M>) +
           anew(column_group * M * N * gpu::kGroup + lane);
  };
  Sums<M, N> sums;
  Place place{first_slice, 0};
  int slot = 0;
  if constexpr (CLUSTER > 1) gpu::cluster_wait();

#pragma unroll 1
  for (int stage = 0; stage < total; ++stage) {
    gpu::Vector* const chunk = chunks + slot * 2 * kChunkVectors<M>;
    if (ring) {
      gpu::wait_for_copies<kRing<M> - 2>();
      weights.interleave(chunk);
    }
    if (ring || stage == 0) __syncthreads();
    if (ring) {
      if (stage > 0) load_stage(slot == 0 ? slots - 1 : slot - 1);
      else gpu::commit_copies();
    }
    if (++slot == slots) slot = 0;
    if (active) {
      const int next_units = stage + 1 < total ? x_ahead.units(units) : 0;
      multiply_chunk<T, M, N, NORM, WHOLE>(chunk, norm_weight + place.element() / 8, place.units(units), scale,
                                           squares, x, sums, columns, x_ahead.element(), next_units);
    }
    x_ahead.advance(parts, first_slice, rounds);
    const int slice = place.slice;
    const bool slice_ends = place.part == parts - 1, group_ends = place.advance(parts, first_slice, rounds);
    if (!slice_ends) continue;
    if constexpr (NORM && kScalesSum<T>)
      if (active) end_squares<N>(squares, shared.squares[slice] + first_column);

    if constexpr (CLUSTER > 1) {
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int t = 0; t < N; ++t) {
          const float4 sum = sums.take(m, t);
          if (exists)
            box.send_to(static_cast<unsigned>(column_group),
                        reinterpret_cast<float*>(&shared.sums[slice][m * N + t][lane]), sum);
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
      if constexpr (NORM && kScalesSum<T>) find_scales(a, shared.squares, shared.scale);
      __syncthreads();
      if (exists) {
        float4 totals[finished];
        const int odd = anew(half);
        const float4* const low = addends(0) + odd * gpu::kGroup;
        const float4* const high = addends(1) + odd * gpu::kGroup;
#pragma unroll
        for (int j = 0; j < finished; ++j) {
          const int tile = (2 * j + odd < M * N ? 2 * j : -odd) * gpu::kGroup;  // or one that exists
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

  if constexpr (NORM)
    if (a.normed != nullptr)
      write_normed<T, N>(a, columns.at, norm_weight, shared.scale, first_row, first_column, half);
}

// What a block may have.
size_t shared_limit() {
#ifdef QWEN3TTS_CUDA
  return static_cast<size_t>(gpu::device_facts().block_shared);
#else
  return 64 * 1024;
#endif
}

template <class T, int M, int N, bool NORM, int CLUSTER, bool WHOLE = true>
void launch(const LinearArguments& a, void* stream) {
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
  launch_rows<T, 2, false, 4>(a, stream);
}

}  // namespace

bool has_clusters() {
#ifdef QWEN3TTS_CUDA
  static thread_local std::pair<int, bool> known{-1, false};
  const gpu::DeviceFacts& facts = gpu::device_facts();
  if (known.first != facts.device) {
    cudaFuncAttributes attributes{};
    gpu::check(cudaFuncGetAttributes(&attributes, linear_mma_kernel<gpu::bf16, 2, 1, false, 4, true>), "attributes");
    known = {facts.device, attributes.ptxVersion >= 90 && facts.block_shared >= 160 * 1024};
  }
  return known.second;
#else
  return false;
#endif
}

void linear_mma(const LinearArguments& a, void* stream) {
  a.dtype == DType::bf16 ? launch_for<gpu::bf16>(a, stream) : launch_for<gpu::fp16>(a, stream);
}

}  // namespace qwen3tts

#endif
