// linear() for 17 to 128 rows in bf16, where k is long or the outputs are many: gate and up of the 1.7B, o and down of both
// released models. Weights stream through shared memory past rows of x in registers, and all that a launch can know is
// settled when it is compiled.
//
// The units, slices and chains of a sum are those of linear_mma.cpp, and so are its bits. Here x is the tall operand of
// the tensor cores, 16 rows at a time, and the weights are the 8-wide one: what a lane reads of them, 16 bytes, is
// what two products take, and x is put in order where it is multiplied with the norm's weight anyway.
//
// A block has up to 96 rows of weights and 32 or 64 rows of x, 128 blocks share out a matrix, and each reads x once: what
// the second-level cache gives is as scarce as what memory gives. Half of the warps takes the even slices and half the
// odd ones, whose units lie side by side in memory; the former keep the total in registers and add what the latter leave
// in shared memory.
//
// Without a norm k is long and the outputs are few: clusters of two or four blocks share the slices out and send each one's
// sums into the shared memory of the block that finishes them. A card of 132 multiprocessors has places for 66 clusters of
// two, one block to a multiprocessor, but for 30 of four: those must fit twice, or two of 32 clusters come late (down of
// the 1.7B at 64 rows: 28 us in clusters of four, 16 in clusters of two).
//
// Registers, sm_90, no spills, 32 rows / 64 rows: gate and up 210 / 254, all others 124 to 128.
#include "common/decode/linear_stream_parts.h"
#include "common/launch.h"

#if QW_HAS_MMA

namespace qwen3tts {
namespace {

using T = gpu::bf16;  // fp16 needs the norm's scale before the product

template <class S> struct SliceSums {
  float chain[2][S::kOwn][4] = {};

  // += octet o of a unit: rows of x v[0] (g) and v[1] (g + 8).
  __device__ __forceinline__ void add(int o, const gpu::Vector (&v)[2], const gpu::Vector& w) {
#pragma unroll
    for (int c = 0; c < 2; ++c)
      gpu::mma<T>(chain[c][o], v[0].word[2 * c], v[1].word[2 * c], v[0].word[2 * c + 1], v[1].word[2 * c + 1],
                  w.word[2 * c], w.word[2 * c + 1]);
  }
  // The sum of a slice; then a new one begins.
  __device__ __forceinline__ float4 take(int o) {
    float s[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[i] = gpu::add_rn(chain[0][o][i], chain[1][o][i]);
      chain[0][o][i] = chain[1][o][i] = 0.0f;
    }
    return make_float4(s[0], s[1], s[2], s[3]);
  }
};

template <class S, int RESIDENT> __global__ void __launch_bounds__(kThreads, RESIDENT) linear_stream_kernel(StreamArguments a) {
  constexpr int own = S::kOwn, split = S::kSplit, cluster = S::kCluster;
  QW_DYNAMIC_SHARED(gpu::Vector, slots);
  gpu::Vector* const norm_weight = slots + S::kSlots * S::kStageVectors;
  float4* const sums_met = reinterpret_cast<float4*>(norm_weight + S::kNormVectors);  // [slice][item][lane]
  gpu::Vector* const staged = norm_weight + S::kNormVectors + S::kSumVectors;
  __shared__ float squares_of[S::kNorm ? kSlices : 1][S::kRows];
  __shared__ uint64_t box_at;
  const gpu::Box box{&box_at};
  const int thread = static_cast<int>(threadIdx.x), lane = gpu::group_lane(), warp = gpu::group(), g = lane / 4, q = lane % 4;
  const int half = warp / 4, position = warp % 4, tile = position / split, part = position % split;
  const int group = static_cast<int>(blockIdx.x) / cluster, first_row = static_cast<int>(blockIdx.y) * S::kRows;

  // What no kernel ahead writes.
  if constexpr (cluster > 1) {
    if (thread == 0) box.open();
    __syncthreads();
    gpu::cluster_arrive();
  }
  for (int i = thread; i < S::kNormVectors; i += kThreads) gpu::copy_async(norm_weight + i, a.norm_weight + i * 8);
  const StreamWeights<S> weights(a, group);
#pragma unroll 1
  for (int s = 0; s < S::kSlots; ++s) {
    weights.copy(slots + s * S::kStageVectors, s);
    gpu::commit_copies();
  }
  const StreamRows<S> x_at(a, first_row + tile * 16, first_slice<S>(half));

  gpu::launch_dependents();
  gpu::wait_for_previous();

  // Whole waves: their products are made together.
  const int wave_groups = gpu::wave_size() / gpu::kGroup;
  const bool exists = first_row + tile * 16 < a.rows;
  const bool active = split > 1 || wave_groups == 1 ? exists : first_row + tile / wave_groups * wave_groups * 16 < a.rows;
  gpu::Vector x[S::kUnits][2] = {};
#pragma unroll
  for (int d = 0; d < S::kUnits; ++d) x_at.load(x[d], 0, d, active);

  // A cluster's block finishes the sums of as many positions.
  constexpr int finished = 4 / cluster;
  const int rank = static_cast<int>(blockIdx.x) % cluster;
  const bool finishes = first_row + rank * finished / split * 16 < a.rows;
  if constexpr (cluster > 1) {
    unsigned sent = 0;
#pragma unroll
    for (int p = 0; p < finished; ++p)
      if (first_row + (rank * finished + p) / split * 16 < a.rows) sent += kSlices * own * gpu::kGroup * sizeof(float4);
    if (thread == 0) box.close(sent);
    gpu::cluster_wait();
  }

  // Of this warp's octets: the sums that meet, and half of them where the total is exchanged at last.
  const int item = (tile * S::kOctets + part * own) * gpu::kGroup + lane;
  float4* const odd_sums = sums_met + item;
  float4* const totals = sums_met + S::kItems * gpu::kGroup + (item - lane) / 2 + lane;
  const int weights_at = ((part * own * 8 + g) * 2 + (half ^ (g & 1))) * 4 + q;  // this lane's of a slot
  SliceSums<S> sums;
  float4 total[cluster == 1 ? own : 1];
  constexpr int squared = split == 1 ? 2 : 1;  // rows of this lane; warps with the same ones share them out
  float squares[squared] = {};
  int slot = 0;

#pragma unroll 1
  for (int turn = 0; turn < S::kTurns; ++turn) {
    const int round = turn / S::kParts, slice = first_slice<S>(half) + 2 * round;
#pragma unroll
    for (int s = 0; s < S::kStagesOfTurn; ++s) {
      const int stage = turn * S::kStagesOfTurn + s, next = stage + S::kSlots - 1;
      if (stage == 0) gpu::wait_for_copies<S::kSlots - 1>();
      else gpu::wait_for_copies<S::kSlots < 2 ? 0 : S::kSlots - 2>();
      __syncthreads();
      if (S::kStages > S::kSlots && stage > 0 && next < S::kStages)
        weights.copy(slots + (slot == 0 ? S::kSlots - 1 : slot - 1) * S::kStageVectors, next);
      if (stage > 0) gpu::commit_copies();
      if constexpr (cluster == 1) {
        if (s == 0 && turn > 0 && turn % S::kParts == 0 && half == 0) {
#pragma unroll
          for (int o = 0; o < own; ++o) total[o] = add_rn(total[o], odd_sums[o * gpu::kGroup]);
        }
      }
      const gpu::Vector* const here = slots + slot * S::kStageVectors + weights_at;
      if (++slot == S::kSlots) slot = 0;
      if (!active) continue;

#pragma unroll
      for (int u = 0; u < S::kStageUnits; ++u) {
        const int d = s * S::kStageUnits + u;
        gpu::Vector v[2] = {x[d][0], x[d][1]};
        if constexpr (S::kNorm) {
          const gpu::Vector of_norm = norm_weight[(slice * kUnit + (turn % S::kParts * S::kUnits + d) * kStep) / 8 + q];
#pragma unroll
          for (int i = 0; i < squared; ++i)
            squares[i] = add_squares<T>(squares[i], split == 1 ? v[i] : chosen(part == 0, v[0], v[1]));
#pragma unroll
          for (int i = 0; i < 2; ++i) v[i] = weighted<T>(v[i], of_norm);
        }
#pragma unroll
        for (int o = 0; o < own; ++o) sums.add(o, v, here[(u * S::kWeightRows + o * 8) * 2 * 4]);
        if (S::kTurns > 1) x_at.load(x[d], turn + 1, d, turn + 1 < S::kTurns);
      }
    }
    if (turn % S::kParts != S::kParts - 1) continue;

    if constexpr (S::kNorm) {
#pragma unroll
      for (int i = 0; i < squared; ++i) {
        const float sum = sum_of_quarters(squares[i]);
        if (q == 0) squares_of[slice][tile * 16 + g + 8 * (split == 1 ? i : part)] = sum;
        squares[i] = 0.0f;
      }
    }
    if constexpr (cluster > 1) {
      const int now = anew(thread), of = now / gpu::kGroup % 4;  // needs no registers till here
      float4* const to = sums_met + (slice * S::kItems + of % finished * own) * gpu::kGroup + now % gpu::kGroup;
#pragma unroll
      for (int o = 0; o < own; ++o) {
        const float4 sum = sums.take(o);
        if (exists) box.send_to(static_cast<unsigned>(of / finished), reinterpret_cast<float*>(to + o * gpu::kGroup), sum);
      }
    } else {
#pragma unroll
      for (int o = 0; o < own; ++o) {
        const float4 sum = sums.take(o);
        if (half == 1) odd_sums[o * gpu::kGroup] = sum;
        else total[o] = round == 0 ? sum : add_rn(total[o], sum);
      }
    }
  }

  if constexpr (cluster > 1) {
    const int now = anew(thread), w = now / gpu::kGroup, from = rank * finished + w / own;
    const int row = first_row + from / split * 16 + now % gpu::kGroup / 4;
    const int n = group * S::kOutputs + (from % split * own + w % own) * 8 + now % 4 * 2;
    if (!finishes || w >= S::kItems) return;
    const uint32_t old[2] = {*StreamOutputs<S>::place(a, row, n), *StreamOutputs<S>::place(a, row + 8, n)};
    box.wait();
    float4 sum = sums_met[now];
#pragma unroll
    for (int s = 1; s < kSlices; ++s) sum = add_rn(sum, sums_met[s * S::kItems * gpu::kGroup + now]);
    StreamOutputs<S>::add(a, row, n, sum, old);
  } else {
    // Both halves finish half of the octets.
    constexpr int count = own / 2;
    if (half == 0) {
#pragma unroll
      for (int j = 0; j < count; ++j) totals[j * gpu::kGroup] = total[count + j];
    }
    __syncthreads();
    const int r = tile * 16 + g, first = part * own + half * count;
    float scale[2];
    if constexpr (S::kNorm) {
#pragma unroll
      for (int i = 0; i < 2; ++i) scale[i] = norm_scale<S::kK>(sum_of_slices(&squares_of[0][r + 8 * i], S::kRows), a.eps);
    }
#pragma unroll
    for (int j = 0; j < count; ++j) {
      float4 sum = half == 0 ? total[j] : totals[j * gpu::kGroup];
      sum = add_rn(sum, odd_sums[(half * count + j) * gpu::kGroup]);
      if constexpr (S::kNorm) {
        sum = make_float4(gpu::mul_rn(sum.x, scale[0]), gpu::mul_rn(sum.y, scale[0]), gpu::mul_rn(sum.z, scale[1]),
                          gpu::mul_rn(sum.w, scale[1]));
        StreamOutputs<S>::stage(reinterpret_cast<T*>(staged), r, (first + j) * 4 + q, sum);
      } else {
        const int n = group * S::kOutputs + (first + j) * 8 + 2 * q;
        const uint32_t old[2] = {*StreamOutputs<S>::place(a, first_row + r, n), *StreamOutputs<S>::place(a, first_row + r + 8, n)};
        StreamOutputs<S>::add(a, first_row + r, n, sum, old);
      }
    }
    if constexpr (S::kNorm) {
      __syncthreads();
      StreamOutputs<S>::write_staged(a, staged, first_row, group * S::kOutputs);
      if (a.normed != nullptr) write_stream_normed<S>(a, squares_of, norm_weight, first_row);
    }
  }
}

// Emulated, there are no clusters, copies are there at once, and room is scarce.
#ifdef QWEN3TTS_CUDA
constexpr bool kEmulated = false;
#else
constexpr bool kEmulated = true;
#endif

// Whether there are clusters and room for all shared memory.
bool runs_here(size_t shared, int cluster) {
#ifdef QWEN3TTS_CUDA
  return static_cast<size_t>(gpu::device_facts().block_shared) >= shared + 4 * 1024 && (cluster == 1 || has_clusters());
#else
  return shared + 4 * 1024 <= 64 * 1024 && cluster == 1;
#endif
}

template <class S, int RESIDENT> bool launch(const LinearArguments& a, void* stream) {
  if (!runs_here(S::kShared, S::kCluster)) return false;
  StreamArguments s{};
  s.x = static_cast<const T*>(a.x);
  s.norm_weight = static_cast<const T*>(a.norm_weight);
  for (int part = 0; part < a.parts; ++part) s.weight[part] = static_cast<const T*>(a.weight[part]);
  s.y = a.y;
  s.normed = static_cast<T*>(a.normed);
  s.x_stride = a.x_stride;
  s.y_stride = a.y_stride;
  s.rows = a.rows;
  s.eps = a.eps;
  auto* const kernel = &linear_stream_kernel<S, RESIDENT>;
  if (S::kShared > 40 * 1024) gpu::allow_shared(kernel, S::kShared);
  const dim3 grid(static_cast<unsigned>(a.n[0] / S::kOutputs * S::kCluster),
                  static_cast<unsigned>((a.rows + S::kRows - 1) / S::kRows));
  QW_LAUNCH_CLUSTER(kernel, S::kCluster, grid, dim3(kThreads), S::kShared, gpu::stream_of(stream), s);
  return true;
}

template <int OCTETS, int STEPS, bool NORM, int CLUSTER, int UNITS, int STAGE, int SLOTS, int RESIDENT>
bool try_launch(const LinearArguments& a, void* stream) {
  using K = StreamKind<kEmulated && NORM ? 4 : OCTETS, STEPS, NORM>;
  constexpr int cluster = kEmulated ? 1 : CLUSTER, stage = kEmulated ? 2 : STAGE, slots = kEmulated ? 2 : SLOTS;
  if (a.n[0] % K::kOutputs != 0) return false;
  if (a.rows <= 32) return launch<StreamShape<K, 2, cluster, UNITS, stage, slots>, RESIDENT>(a, stream);
  return launch<StreamShape<K, 4, cluster, UNITS, stage, slots>, RESIDENT>(a, stream);
}

}  // namespace

bool linear_stream(const LinearArguments& a, void* stream) {
  const auto aligned = [](const void* p, int64_t stride) {
    return reinterpret_cast<std::uintptr_t>(p) % 16 == 0 && stride % 8 == 0;
  };
  if (a.dtype != DType::bf16 || a.weight_dtype != DType::bf16 || a.bias != nullptr || !aligned(a.y, a.y_stride)) return false;
  const bool norm = a.norm_weight != nullptr;
  if (a.epilogue == Epilogue::silu_mul && norm) return a.k == 2048 && try_launch<12, 8, true, 1, 4, 4, 3, 1>(a, stream);
  if (a.epilogue != Epilogue::residual || norm || a.parts != 1) return false;
  const bool many = a.n[0] >= 2048;
  if (a.k == 2048)
    return many ? try_launch<4, 8, false, 2, 4, 4, 4, 2>(a, stream) : try_launch<4, 8, false, 4, 4, 4, 2, 2>(a, stream);
  if (a.k == 3072) return try_launch<4, 12, false, 4, 4, 4, 3, 2>(a, stream);
  return a.k == 6144 && try_launch<4, 24, false, 2, 4, 4, 6, 2>(a, stream);
}

}  // namespace qwen3tts

#endif
