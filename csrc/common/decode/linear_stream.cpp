// linear() for 17 rows and more in bf16, at the shapes of the released models: weights stream through shared memory past
// rows of x that stay in registers, with all that a launch can know settled when it is compiled.
//
// The units, slices and chains of a sum are those of linear_mma.cpp, and so are its bits. Here x is the tall operand of
// the tensor cores, 16 rows at a time, and the weights are the 8-wide one: what a lane reads of them, 16 bytes, is
// what two products take, and x is put in order where it is multiplied with the norm's weight anyway.
//
// A block takes 8 to 96 rows of weights and up to 64 rows of x; about 128 blocks share out a matrix, so each reads x once.
// Its warps are 2 or 4 tiles of rows by groups of octets; each adds up its slices in order, in registers. With few octets
// half of the warps takes half of the slices instead, and what they find is added in shared memory at the end.
//
// Without a norm k is long and the outputs are few: clusters of four blocks share the slices out, and send each one's
// sums into the shared memory of the block that finishes them.
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
  constexpr bool halves = S::kHalves == 2;
  QW_DYNAMIC_SHARED(gpu::Vector, slots);
  gpu::Vector* const norm_weight = slots + S::kSlots * S::kStageVectors;
  float4* const sums_met = reinterpret_cast<float4*>(norm_weight + S::kNormVectors);  // [addend][item][lane]
  gpu::Vector* const staged = norm_weight + S::kNormVectors + S::kSumVectors;
  __shared__ float squares_of[S::kNorm ? kSlices : 1][S::kRows];
  __shared__ uint64_t box_at;
  const gpu::Box box{&box_at};
  const int thread = static_cast<int>(threadIdx.x), lane = gpu::group_lane(), warp = gpu::group(), g = lane / 4, q = lane % 4;
  const int half = halves ? warp / (S::kTiles * split) : 0, tile = warp / split % S::kTiles, part = warp % split;
  const int group = static_cast<int>(blockIdx.x) / cluster, first_row = static_cast<int>(blockIdx.y) * S::kRows;

  // What no kernel ahead writes.
  if constexpr (cluster > 1) {
    if (thread == 0) box.open();
    __syncthreads();
    gpu::cluster_arrive();
  }
  for (int i = thread; i < S::kNormVectors; i += kThreads) copy_async(norm_weight + i, a.norm_weight + i * 8, true);
  const StreamWeights<S> weights(a, group);
#pragma unroll 1
  for (int s = 0; s < S::kSlots; ++s) {
    weights.copy(slots + s * S::kStageVectors, s);
    commit_copies();
  }
  const StreamRows<S> x_at(a, first_row + tile * 16, first_slice<S>(half));

  gpu::launch_dependents();
  gpu::wait_for_previous();

  // Whole waves: their products are made together.
  const int wave_groups = gpu::wave_size() / gpu::kGroup;
  const bool active = first_row + (split >= wave_groups ? tile : tile / wave_groups * wave_groups) * 16 < a.rows;
  gpu::Vector x[S::kUnits][2] = {};
#pragma unroll
  for (int d = 0; d < S::kUnits; ++d) x_at.load(x[d], 0, d, active);

  // A cluster's block finishes the sums of one or two warps, a warp for each octet.
  const int rank = static_cast<int>(blockIdx.x) % cluster, finished = rank * S::kWarpsFinished + warp / own;
  const int row = first_row + finished / split * 16 + g, n = group * S::kOutputs + (finished % split * own + warp % own) * 8 + 2 * q;
  const bool mine = first_row + rank * S::kWarpsFinished / split * 16 < a.rows, finishes = mine && warp < S::kItems;
  __shared__ uint32_t old_of[cluster > 1 ? 2 : 1][kThreads];  // y before; on its way with the next stage's weights
  if constexpr (cluster > 1) {
    if (S::kEpilogue == Epilogue::residual && finishes)
#pragma unroll
      for (int i = 0; i < 2; ++i) copy_word(&old_of[i][thread], StreamOutputs<S>::place(a, row + 8 * i, n));
    if (thread == 0) box.close(mine ? S::kSumVectors * sizeof(float4) : 0);
    gpu::cluster_wait();
  }

  const int position = (tile * split + part) % S::kWarpsFinished * own;  // where a cluster's block has this warp's sums

  // This lane's weights of a slot.
  const int weights_at = (part * own * 8 + g) * S::kHalves * 4 + (halves ? (half ^ (g & 1)) * 4 : 0) + q;
  SliceSums<S> sums;
  float4 total[S::kMeet ? 1 : own];
  // Of the warps that have the same rows, the first ones see to the squares.
  constexpr int squared = split == 1 ? 2 : 1;
  float squares[squared] = {};
  int slot = 0;
  // Of pairs of slices, the first half has the even ones and the total; the odd ones come through shared memory.
  float4* const odd_sums = sums_met + (tile * S::kOctets + part * own) * gpu::kGroup + lane;
  float4* const totals = sums_met + (S::kItems + (tile * S::kOctets + part * own) / 2) * gpu::kGroup + lane;

#pragma unroll 1
  for (int stage = 0; stage < S::kStages; ++stage) {
    if (stage == 0) wait_for_copies<S::kSlots - 1>();
    else wait_for_copies<S::kSlots < 2 ? 0 : S::kSlots - 2>();
    __syncthreads();
    if (S::kStages > S::kSlots && stage > 0) {
      const int next = stage + S::kSlots - 1;
      if (next < S::kStages) weights.copy(slots + (slot == 0 ? S::kSlots - 1 : slot - 1) * S::kStageVectors, next);
    }
    if (stage > 0) commit_copies();
    if constexpr (S::kPairs)
      if (half == 0 && stage > 0 && stage % S::kParts == 0)
#pragma unroll
        for (int o = 0; o < own; ++o) total[o] = add_rn(total[o], odd_sums[o * gpu::kGroup]);
    if (active) {
      const gpu::Vector* const here = slots + slot * S::kStageVectors + weights_at;
      const gpu::Vector* const norm_here = norm_weight + ((first_slice<S>(half) + stage / S::kParts * S::kBetween) * kUnit +
                                                          stage % S::kParts * (S::kUnits * kStep)) / 8 + q;
      const auto weight = [&](int i) {
        return load_shared(here + (i / own * S::kWeightRows + i % own * 8) * S::kHalves * 4);
      };
      gpu::Vector w[S::kAhead];
#pragma unroll
      for (int i = 0; i < S::kAhead; ++i) w[i] = weight(i);
#pragma unroll
      for (int d = 0; d < S::kUnits; ++d) {
        gpu::Vector v[2] = {in_turn(x[d][0]), in_turn(x[d][1])};
        if constexpr (S::kNorm) {
          if constexpr (squared == 2) {
#pragma unroll
            for (int i = 0; i < 2; ++i) squares[i] = add_squares<T>(squares[i], v[i]);
          } else if (part < 2) {
            squares[0] = add_squares<T>(squares[0], chosen(part == 0, v[0], v[1]));
          }
          const gpu::Vector of_norm = norm_here[d * kStep / 8];
#pragma unroll
          for (int i = 0; i < 2; ++i) v[i] = weighted<T>(v[i], of_norm);
        }
#pragma unroll
        for (int o = 0; o < own; ++o) {
          const int i = d * own + o;
          sums.add(o, v, w[i % S::kAhead]);
          if (i + S::kAhead < S::kUnits * own) w[i % S::kAhead] = weight(i + S::kAhead);
        }
        x_at.load(x[d], stage + 1, d, stage + 1 < S::kStages);
      }
    }
    if (++slot == S::kSlots) slot = 0;
    if (stage % S::kParts != S::kParts - 1) continue;

    const int round = stage / S::kParts, slice = first_slice<S>(half) + round * S::kBetween;
    if constexpr (S::kNorm) {
#pragma unroll
      for (int i = 0; i < squared; ++i) {
        const float sum = sum_of_quarters(squares[i]);
        if (q == 0 && part < 2) squares_of[slice][tile * 16 + g + 8 * (split == 1 ? i : part)] = sum;
        squares[i] = 0.0f;
      }
    }
    if constexpr (cluster > 1) {
      if (first_row + tile * 16 < a.rows)
#pragma unroll
        for (int o = 0; o < own; ++o)
          box.send_to(static_cast<unsigned>((tile * split + part) / S::kWarpsFinished),
                      reinterpret_cast<float*>(sums_met + (slice * S::kItems + position + o) * gpu::kGroup + lane), sums.take(o));
    } else if constexpr (S::kPairs) {
#pragma unroll
      for (int o = 0; o < own; ++o) {
        const float4 sum = sums.take(o);
        if (half == 1) odd_sums[o * gpu::kGroup] = sum;
        else total[o] = round == 0 ? sum : add_rn(total[o], sum);
      }
    } else if constexpr (S::kMeet) {  // the first half adds up, what the others found is kept
      float4* const to = sums_met + ((half == 0 ? 0 : 1 + round) * S::kItems + tile * S::kOctets + part * own) * gpu::kGroup + lane;
#pragma unroll
      for (int o = 0; o < own; ++o) {
        const float4 sum = sums.take(o);
        to[o * gpu::kGroup] = half == 1 || round == 0 ? sum : add_rn(to[o * gpu::kGroup], sum);
      }
    } else {
#pragma unroll
      for (int o = 0; o < own; ++o) {
        const float4 sum = sums.take(o);
        total[o] = round == 0 ? sum : add_rn(total[o], sum);
      }
    }
  }

  if constexpr (cluster > 1) {
    if (!finishes) return;
    wait_for_copies<0>();
    box.wait();
    const uint32_t old[2] = {old_of[0][thread], old_of[1][thread]};
    float4 sum = sums_met[warp * gpu::kGroup + lane];
#pragma unroll
    for (int s = 1; s < kSlices; ++s) sum = add_rn(sum, sums_met[(s * S::kItems + warp) * gpu::kGroup + lane]);
    StreamOutputs<S>::write(a, row, n, sum, old);
  } else {
    if constexpr (S::kPairs)
      if (half == 0)
#pragma unroll
        for (int o = own / 2; o < own; ++o) totals[(o - own / 2) * gpu::kGroup] = total[o];
    if (S::kNorm || S::kMeet || S::kPairs) __syncthreads();
    // Each warp finishes its octets; where sums have met, its share of them, all of one tile.
    constexpr int count = S::kMeet ? S::kItems / 8 : S::kPairs ? own / 2 : own;
    static_assert(!S::kMeet || (S::kItems % 8 == 0 && S::kOctets % count == 0), "one tile");
    const int lane_now = anew(lane), first = S::kMeet ? warp * count : tile * S::kOctets + part * own + (S::kPairs ? half * count : 0);
    const int r = first / S::kOctets * 16 + lane_now / 4;
    float scale[2];
    if constexpr (S::kNorm)
#pragma unroll
      for (int i = 0; i < 2; ++i) scale[i] = norm_scale<S::kK>(sum_of_slices(&squares_of[0][r + 8 * i], S::kRows), a.eps);
    const float4* const met = sums_met + first * gpu::kGroup + lane_now;
#pragma unroll
    for (int j = 0; j < count; ++j) {
      const int octet = first % S::kOctets + j;
      float4 sum = total[S::kMeet ? 0 : j];
      if constexpr (S::kMeet) {
        sum = met[j * gpu::kGroup];
#pragma unroll
        for (int s = 1; s < S::kAddendCount; ++s) sum = add_rn(sum, met[(s * S::kItems + j) * gpu::kGroup]);
      }
      if constexpr (S::kPairs) {
        if (half == 1) sum = totals[j * gpu::kGroup];
        sum = add_rn(sum, odd_sums[(half * count + j) * gpu::kGroup]);
      }
      if constexpr (S::kNorm)
        sum = make_float4(gpu::mul_rn(sum.x, scale[0]), gpu::mul_rn(sum.y, scale[0]), gpu::mul_rn(sum.z, scale[1]),
                          gpu::mul_rn(sum.w, scale[1]));
      if constexpr (S::kSilu) {
        StreamOutputs<S>::stage(reinterpret_cast<T*>(staged), r, octet * 4 + lane_now % 4, sum);
      } else {
        const int to = group * S::kOutputs + octet * 8 + lane_now % 4 * 2;
        uint32_t old[2] = {};
        if (S::kEpilogue == Epilogue::residual)
#pragma unroll
          for (int i = 0; i < 2; ++i) old[i] = *StreamOutputs<S>::place(a, first_row + r + 8 * i, to);
        StreamOutputs<S>::write(a, first_row + r, to, sum, old);
      }
    }
    if constexpr (S::kSilu) {
      __syncthreads();
      StreamOutputs<S>::write_staged(a, staged, first_row, group * S::kOutputs);
    }
    if constexpr (S::kNorm)
      if (a.normed != nullptr) write_stream_normed<S>(a, squares_of, norm_weight, first_row);
  }
}

#ifdef QWEN3TTS_CUDA
constexpr int kMostSlots = 8;
constexpr int kMostCluster = 4;
#else
constexpr int kMostSlots = 2;  // copies are there at once, and room is scarce
constexpr int kMostCluster = 1;
#endif

// Whether there are clusters and room for all shared memory.
bool runs_here(size_t shared, int cluster) {
#ifdef QWEN3TTS_CUDA
  int device = 0, bytes = 0, major = 0;
  gpu::check(cudaGetDevice(&device), "device");
  gpu::check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "shared memory");
  gpu::check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "compute capability");
  return static_cast<size_t>(bytes) >= shared + 8 * 1024 && (cluster == 1 || major >= 9);
#else
  return shared + 8 * 1024 <= 64 * 1024 && cluster == 1;
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
  s.end[0] = a.n[0];
  s.end[1] = a.parts > 1 ? a.n[0] + a.n[1] : a.n[0];
  s.rows = a.rows;
  s.eps = a.eps;
  auto* const kernel = &linear_stream_kernel<S, RESIDENT>;
  if (S::kShared > 40 * 1024) gpu::allow_shared(kernel, S::kShared);
  const dim3 grid(static_cast<unsigned>(outputs_of(a) / S::kOutputs * S::kCluster),
                  static_cast<unsigned>((a.rows + S::kRows - 1) / S::kRows));
  QW_LAUNCH_CLUSTER(kernel, S::kCluster, grid, dim3(kThreads), S::kShared, gpu::stream_of(stream), s);
  return true;
}

// Whether all parts are whole blocks.
template <class K> bool fits(const LinearArguments& a) {
  for (int part = 0; part < (K::kSilu ? 1 : a.parts); ++part)
    if (a.n[part] % K::kOutputs != 0) return false;
  return true;
}

template <Epilogue EPILOGUE, class Y, int OCTETS, int STEPS, bool NORM, int HALVES, int CLUSTER, int RING, int RESIDENT,
          int FEW_HALVES = HALVES, bool PAIRS = false>
bool try_launch(const LinearArguments& a, void* stream) {
  using K = StreamKind<EPILOGUE, Y, OCTETS, STEPS, NORM>;
  constexpr int cluster = CLUSTER < kMostCluster ? CLUSTER : kMostCluster, ring = RING < kMostSlots ? RING : kMostSlots;
  if (!fits<K>(a)) return false;
  if (a.rows <= 32) return launch<StreamShape<K, 2, FEW_HALVES, cluster, ring, RESIDENT == 2, PAIRS>, RESIDENT>(a, stream);
  return launch<StreamShape<K, 4, HALVES, cluster, ring, RESIDENT == 2, PAIRS>, RESIDENT>(a, stream);
}

}  // namespace

bool linear_stream(const LinearArguments& a, void* stream) {
  constexpr Epilogue store = Epilogue::store, residual = Epilogue::residual, silu_mul = Epilogue::silu_mul;
  const bool norm = a.norm_weight != nullptr, wide = a.output == DType::f32;
  const auto aligned = [&](const void* p, int64_t stride) {
    return reinterpret_cast<std::uintptr_t>(p) % 16 == 0 && stride * static_cast<int64_t>(size_of(a.output)) % 16 == 0;
  };
  if (a.dtype != DType::bf16 || a.weight_dtype != DType::bf16 || a.bias != nullptr || !aligned(a.y, a.y_stride)) return false;
  if (a.epilogue == silu_mul && norm) return a.k == 2048 && try_launch<silu_mul, T, 12, 8, true, 1, 1, 3, 2>(a, stream);
  if (a.epilogue == residual && !norm) {
    const bool many = a.n[0] >= 2048;
    if (a.k == 2048)
      return many ? try_launch<residual, T, 8, 8, false, 2, 4, 2, 2>(a, stream)
                  : try_launch<residual, T, 4, 8, false, 2, 4, 2, 2>(a, stream);
    if (a.k == 3072) return try_launch<residual, T, 4, 12, false, 2, 4, 3, 2>(a, stream);
    return a.k == 6144 && try_launch<residual, T, 8, 24, false, 2, 4, 3, 2>(a, stream);
  }
  if (a.epilogue == store && norm && !wide) {
    return a.k == 2048 && try_launch<store, T, 4, 8, true, 2, 1, 4, 2>(a, stream);
  }
  return false;
}

}  // namespace qwen3tts

#endif
