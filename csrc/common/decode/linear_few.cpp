// linear() for up to 16 rows in bf16, at the shapes of the released models: what a launch costs after its wait is settled
// when it is compiled.
//
// The units, slices and chains of a sum are those of linear_mma.cpp, and so are its bits. A block has 8 warps, one for
// each slice, and `octets` times 8 rows of weights; about 128 blocks share out a matrix. Their weights for all of k are
// in registers before the wait, with the norm's, their places and everything else that no kernel ahead writes. What
// is left after it, one after another:
//
//   x from the L2 cache, all of it at once, and with it what `residual` adds to; the products, and beside them the squares
//   for the norm; one meeting of the warps; the sum of 8 slices, scale and epilogue of one output a thread, and its store.
//
// Larger matrices do not fit: the registers are a ring of weights then, `depth` steps of them, loaded anew for the steps
// to come or, where a block takes up several groups of rows, for the next group.
//
// The dependents may start once this kernel has asked for its weights: earlier, theirs would come first; later, theirs
// would come late. (One H200, code predictor's pass at 1 row: at the very start 71.7 us, so 66.9, after x has been asked
// for 77.9, after the products 83.7.)
//
// Registers, sm_90, no spills (gate and up at k 2048 with 16 columns: 4 bytes), 8 columns / 16 columns:
//   k 1024   q k v 115 / 148, gate and up 154 / 202, heads of 2048 and 3072 outputs 80 and 100 / 100 and 128
//   k 2048   q k v 123 / 238, gate and up 126 / 128, o 86 and 114 / 116 and 152, heads 142 to 198 / 156 to 238
//   k 3072   down 118 / 164
//   k 6144   down 126 / 128
#include "common/decode/linear_held.h"
#include "common/launch.h"

#if QW_HAS_MMA

namespace qwen3tts {
namespace {

using T = gpu::bf16;

// A kind of product. STEPS: k / kStep, DEPTH of them are in registers before the wait. A group is the rows of weights that
// a block takes at a time: OCTETS times 8, of which silu_mul has gates and ups by turns. RESIDENT: blocks of a
// multiprocessor. ROUNDS: a block takes several groups.
template <Epilogue EPILOGUE, class Y, int OCTETS, int STEPS, bool NORM, int DEPTH = STEPS, int RESIDENT = 1, bool ROUNDS = false>
struct Kind {
  using Output = Y;
  static constexpr Epilogue kEpilogue = EPILOGUE;
  static constexpr int kOctets = OCTETS, kSteps = STEPS, kMostDepth = DEPTH, kResident = RESIDENT, kK = STEPS * kStep;
  static constexpr bool kNorm = NORM, kRounds = ROUNDS, kSilu = EPILOGUE == Epilogue::silu_mul;
  static constexpr int kOutputs = kSilu ? OCTETS * 4 : OCTETS * 8;  // of a group
  static constexpr bool kNormShared = NORM && STEPS > 4;            // its weights: in shared memory, or in registers
  static_assert(STEPS % DEPTH == 0 && (!kSilu || OCTETS % 2 == 0), "whole turns of the ring; an up for each gate");
  static_assert(!ROUNDS || (kSilu && NORM), "the rounds of gate and up");
};

template <class K, int TILES> struct Shape : K {
  static constexpr int kTiles = TILES, kColumns = TILES * 8;
  // The weights are the 8-wide operand of the tensor cores where they would half fill the 16-tall one, or x fills it.
  static constexpr bool kWideWeights = K::kOctets == 1 || TILES == 2;
  static constexpr int kSums = kWideWeights ? K::kOctets : (K::kOctets + 1) / 2;
  static constexpr int kStride = K::kOctets * 8 + (kWideWeights ? (K::kOctets % 2 == 0 ? 8 : 0) : 4);  // apart in the banks
  static constexpr int kPartial = kSumSlices * kColumns * kStride;
  static constexpr int kTurns = (kColumns * K::kOutputs + kThreads - 1) / kThreads;  // outputs of a thread
  // Steps of x in registers. In rounds, 8 columns stay there, 16 are read anew, from the first-level cache.
  static constexpr bool kKeepsX = K::kRounds && TILES == 1;
  static constexpr int kDepth = K::kRounds && TILES == 2 ? K::kMostDepth / 2 : K::kMostDepth;
  static constexpr int kXDepth = K::kRounds && TILES == 2 ? 4 : K::kSteps < 12 ? K::kSteps : 12 / TILES;
  static constexpr int kNormVectors = K::kNormShared ? K::kK / 8 : 0;
  static constexpr size_t kShared = kNormVectors * sizeof(gpu::Vector) + sizeof(float) * kPartial * (K::kRounds ? 2 : 1);
  static_assert(K::kSteps % kXDepth == 0, "whole turns of the ring");
};

// Of each octet.
template <class S> __device__ __forceinline__ void seek_all(const T* (&at)[S::kOctets], const HeldArguments& a, int group) {
#pragma unroll
  for (int o = 0; o < S::kOctets; ++o) at[o] = seek<S>(a, group, o);
}

// sums[half of a unit] += one unit.
template <class S>
__device__ __forceinline__ void multiply(float (&sums)[2][S::kSums][4], const gpu::Vector (&weight)[S::kOctets],
                                         const gpu::Vector (&v)[S::kTiles]) {
  constexpr gpu::Vector zero{{0, 0, 0, 0}};
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const int i0 = 2 * c, i1 = 2 * c + 1;  // the words of a half
#pragma unroll
    for (int s = 0; s < S::kSums; ++s) {
      if constexpr (S::kWideWeights) {
        const gpu::Vector& high = S::kTiles == 2 ? v[S::kTiles - 1] : zero;
        gpu::mma<T>(sums[c][s], v[0].word[i0], high.word[i0], v[0].word[i1], high.word[i1], weight[s].word[i0],
                    weight[s].word[i1]);
      } else {
        const gpu::Vector& low = weight[2 * s];
        const gpu::Vector& high = 2 * s + 1 < S::kOctets ? weight[2 * s + 1 < S::kOctets ? 2 * s + 1 : 0] : zero;
        gpu::mma<T>(sums[c][s], low.word[i0], high.word[i0], low.word[i1], high.word[i1], v[0].word[i0], v[0].word[i1]);
      }
    }
  }
}

// This slice's sums: partial[column][row of weights].
template <class S> __device__ __forceinline__ void put(float* partial, const float (&sums)[2][S::kSums][4], int rows) {
  const int lane = gpu::group_lane(), g = lane / 4, q = lane % 4;
  if constexpr (S::kWideWeights) {
#pragma unroll
    for (int t = 0; t < S::kTiles; ++t)
      if (t * 8 + g < rows)
#pragma unroll
        for (int o = 0; o < S::kOctets; ++o) {
          struct alignas(8) Pair { float first, second; };
          *reinterpret_cast<Pair*>(partial + (t * 8 + g) * S::kStride + o * 8 + 2 * q) = {
              gpu::add_rn(sums[0][o][2 * t], sums[1][o][2 * t]), gpu::add_rn(sums[0][o][2 * t + 1], sums[1][o][2 * t + 1])};
        }
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (2 * q + i < rows)
#pragma unroll
        for (int o = 0; o < S::kOctets; ++o)
          partial[(2 * q + i) * S::kStride + o * 8 + g] =
              gpu::add_rn(sums[0][o / 2][o % 2 * 2 + i], sums[1][o / 2][o % 2 * 2 + i]);
  }
}

// The normed x, by one block, when its outputs are on their way. squares[slice][column].
template <class S>
__device__ __forceinline__ void write_normed(const HeldArguments& a, const float (&squares)[kSumSlices][S::kColumns]) {
  constexpr int pieces = S::kK / 8;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < a.rows * pieces; i += kThreads) {
    const int row = i / pieces, at = i % pieces * 8;
    const float scale = norm_scale<S::kK>(sum_of_slices(&squares[0][row], S::kColumns), a.eps);
    const gpu::Vector v = gpu::load_vector(a.x + row * a.x_stride + at), weight = gpu::load_vector(a.norm_weight + at);
    gpu::store_vector(a.normed + static_cast<int64_t>(row) * S::kK + at, normalized<T>(v, weight, scale));
  }
}

template <class S> __global__ void __launch_bounds__(kThreads, S::kResident) linear_few_kernel(HeldArguments a) {
  using Y = typename S::Output;
  constexpr int steps = S::kSteps, depth = S::kDepth, x_depth = S::kXDepth, tiles = S::kTiles, octets = S::kOctets;
  QW_DYNAMIC_SHARED(gpu::Vector, norm_shared);
  float* const partials = reinterpret_cast<float*>(norm_shared + S::kNormVectors);  // [slice][column][row of weights]
  __shared__ float squares_of[S::kNorm ? kSumSlices : 1][S::kColumns];
  const int thread = static_cast<int>(threadIdx.x), lane = gpu::group_lane(), slice = gpu::group();
  const int g = lane / 4, q = lane % 4, offset = slice * kSumUnit + q * 8;
  int group = static_cast<int>(blockIdx.x);

  // What no kernel ahead writes.
  const T* weights_at[octets];
  seek_all<S>(weights_at, a, group);
  gpu::Vector held[depth][octets];
#pragma unroll
  for (int d = 0; d < depth; ++d)
#pragma unroll
    for (int o = 0; o < octets; ++o) held[d][o] = gpu::load_weight(weights_at[o] + d * kStep);
  gpu::Vector norm_held[S::kNorm && !S::kNormShared ? steps : 1];
  if constexpr (S::kNormShared) {  // a warp needs those of its slice
    static_assert(steps * 4 <= gpu::kGroup, "a lane copies one piece");
    const int at = g * kStep + offset;
    if (lane < steps * 4) gpu::copy_async(norm_shared + at / 8, a.norm_weight + at);
  } else if constexpr (S::kNorm) {
#pragma unroll
    for (int d = 0; d < steps; ++d) norm_held[d] = gpu::load_weight(a.norm_weight + d * kStep + offset);
  }
  const T* x_at[tiles];
  bool there[tiles];
#pragma unroll
  for (int t = 0; t < tiles; ++t) {
    there[t] = t * 8 + g < a.rows;
    x_at[t] = a.x + (there[t] ? t * 8 + g : 0) * a.x_stride + offset;
  }
  // This thread's outputs: where their sums meet, where they go.
  Y* y_at[S::kTurns];
  bool mine[S::kTurns];
  int column[S::kTurns], sum_at[S::kTurns];
  float bias[S::kTurns] = {};
  const bool has_bias = S::kEpilogue == Epilogue::store && a.bias != nullptr;
#pragma unroll
  for (int i = 0; i < S::kTurns; ++i) {
    const int item = thread + i * kThreads, o = item % S::kOutputs;
    column[i] = item / S::kOutputs;
    mine[i] = column[i] < a.rows;
    sum_at[i] = column[i] * S::kStride + (S::kSilu ? o / 8 * 16 + o % 8 : o);
    y_at[i] = static_cast<Y*>(a.y) + (mine[i] ? column[i] : 0) * a.y_stride + group * S::kOutputs + o;
    if (has_bias) bias[i] = gpu::widen(a.bias[group * S::kOutputs + o]);
  }

  gpu::launch_dependents();
  gpu::wait_for_previous();

  gpu::Vector x[x_depth][tiles];
  const auto load_x = [&](int step, int t) {
    x[step % x_depth][t] = gpu::load_in_place(x_at[t] + step * kStep, there[t]);
  };
#pragma unroll
  for (int d = 0; d < x_depth; ++d)
#pragma unroll
    for (int t = 0; t < tiles; ++t) load_x(d, t);
  float old[S::kTurns] = {};
  if constexpr (S::kEpilogue == Epilogue::residual)
#pragma unroll
    for (int i = 0; i < S::kTurns; ++i)
      if (mine[i]) old[i] = gpu::widen(*y_at[i]);

  if constexpr (S::kNormShared) {
    gpu::wait_for_copies();
    gpu::group_sync();
  }

  float squares[tiles] = {}, scale[S::kTurns] = {};
  // x of a step as it enters the products. The squares are taken along (and not looked at after the first round).
  const auto take = [&](int step, int t) {
    gpu::Vector v = x[step % x_depth][t];
    if constexpr (S::kNorm) {
      squares[t] = add_squares<T>(squares[t], v);
      if constexpr (S::kNormShared) v = weighted<T>(v, norm_shared[(step * kStep + offset) / 8]);
      else v = weighted<T>(v, norm_held[step]);
    }
    return v;
  };
  if constexpr (S::kKeepsX)
#pragma unroll
    for (int d = 0; d < steps; ++d)
#pragma unroll
      for (int t = 0; t < tiles; ++t) x[d][t] = take(d, t);

  int round = 0;
#pragma unroll 1
  do {
    const int next = group + static_cast<int>(gridDim.x);
    const bool more = S::kRounds && next < a.groups;
    float sums[2][S::kSums][4] = {};
#pragma unroll
    for (int d = 0; d < steps; ++d) {
      gpu::Vector v[tiles];
#pragma unroll
      for (int t = 0; t < tiles; ++t) v[t] = S::kKeepsX ? x[d][t] : take(d, t);
      multiply<S>(sums, held[d % depth], v);
      // Of this group, or already of the next one.
      if (S::kRounds && d + depth == steps) seek_all<S>(weights_at, a, more ? next : group);
      if (S::kRounds || d + depth < steps)
#pragma unroll
        for (int o = 0; o < octets; ++o)
          held[d % depth][o] = gpu::load_weight(weights_at[o] + (d + depth) % steps * kStep, d + depth < steps || more);
      if (!S::kKeepsX && (S::kRounds || d + x_depth < steps))
#pragma unroll
        for (int t = 0; t < tiles; ++t) load_x((d + x_depth) % steps, t);
    }

    float* const partial = partials + (S::kRounds ? round % 2 * S::kPartial : 0);
    put<S>(partial + slice * S::kColumns * S::kStride, sums, a.rows);
    if (S::kNorm && round == 0)
#pragma unroll
      for (int t = 0; t < tiles; ++t) {
        const float sum = sum_of_quarters(squares[t]);
        if (q == 0) squares_of[slice][t * 8 + g] = sum;
      }
    __syncthreads();

#pragma unroll
    for (int i = 0; i < S::kTurns; ++i) {
      if (!mine[i]) continue;
      float sum = sum_of_slices(partial + sum_at[i], S::kColumns * S::kStride);
      float up = S::kSilu ? sum_of_slices(partial + sum_at[i] + 8, S::kColumns * S::kStride) : 0.0f;
      if constexpr (S::kNorm) {
        if (round == 0) scale[i] = norm_scale<S::kK>(sum_of_slices(&squares_of[0][column[i]], S::kColumns), a.eps);
        sum = gpu::mul_rn(sum, scale[i]);
        up = gpu::mul_rn(up, scale[i]);
      }
      if (has_bias) sum = gpu::add_rn(sum, bias[i]);
      if constexpr (sizeof(Y) == sizeof(float)) *y_at[i] = sum;
      else *y_at[i] = gpu::narrow<T>(outcome<T>(S::kEpilogue, sum, up, old[i]));
      y_at[i] += static_cast<int64_t>(gridDim.x) * S::kOutputs;
    }
    ++round;
    group = next;
  } while (S::kRounds && group < a.groups);

  if constexpr (S::kNorm)
    if (a.normed != nullptr && blockIdx.x == 0) write_normed<S>(a, squares_of);
}

template <class S> void launch(const HeldArguments& a, int blocks, void* stream) {
  static_assert(S::kShared + sizeof(float) * kSumSlices * S::kColumns <= 48 * 1024, "given without asking");
  QW_LAUNCH_DEPENDENT(linear_few_kernel<S>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), S::kShared,
                      gpu::stream_of(stream), a);
}

// Whether there are whole groups in each part, and no more than find their places at once.
template <class K, int MOST_TILES = 2> bool try_launch(const LinearArguments& a, void* stream) {
  if (a.rows > 8 * MOST_TILES) return false;
  if (!whole_groups<K>(a)) return false;
  constexpr int places = K::kResident * kProcessors;
  const int outputs = outputs_of(a), groups = outputs / K::kOutputs, each = (groups + places - 1) / places;
  if (each > 1 && !K::kRounds) return false;
  const HeldArguments few = held_arguments(a, groups);
  const int blocks = (groups + each - 1) / each;
  if (a.rows <= 8) launch<Shape<K, 1>>(few, blocks, stream);
  else launch<Shape<K, MOST_TILES>>(few, blocks, stream);
  return true;
}

template <class Y, int STEPS> bool store_normed(const LinearArguments& a, void* stream) {
  return try_launch<Kind<Epilogue::store, Y, 2, STEPS, true>>(a, stream) ||
         try_launch<Kind<Epilogue::store, Y, 3, STEPS, true>>(a, stream) ||
         try_launch<Kind<Epilogue::store, Y, 4, STEPS, true>>(a, stream);
}

}  // namespace

bool linear_few(const LinearArguments& a, void* stream) {
  constexpr Epilogue store = Epilogue::store, residual = Epilogue::residual, silu_mul = Epilogue::silu_mul;
  if (a.dtype != DType::bf16 || a.weight_dtype != DType::bf16 || a.rows > 16) return false;
  const bool norm = a.norm_weight != nullptr, wide = a.output == DType::f32;
  if (a.epilogue == store && norm) {
    if (a.k == 1024) return wide ? store_normed<float, 4>(a, stream) : store_normed<T, 4>(a, stream);
    if (a.k != 2048) return false;
    if (wide) return store_normed<float, 8>(a, stream);
    return try_launch<Kind<store, T, 2, 8, true, 8, 2>, 1>(a, stream) || try_launch<Kind<store, T, 2, 8, true>>(a, stream) ||
           try_launch<Kind<store, T, 4, 8, true>>(a, stream);
  }
  if (a.epilogue == store) return a.k == 2048 && !wide && try_launch<Kind<store, T, 1, 8, false>>(a, stream);
  if (a.bias != nullptr) return false;
  if (a.epilogue == residual && !norm) {
    if (a.k == 2048)
      return try_launch<Kind<residual, T, 1, 8, false>>(a, stream) || try_launch<Kind<residual, T, 2, 8, false>>(a, stream);
    if (a.k == 3072) return try_launch<Kind<residual, T, 1, 12, false>>(a, stream);
    return a.k == 6144 && try_launch<Kind<residual, T, 1, 24, false, 12, 2>>(a, stream);
  }
  if (a.epilogue == silu_mul && norm) {
    if (a.k == 1024) return try_launch<Kind<silu_mul, T, 6, 4, true>>(a, stream);
    return a.k == 2048 && try_launch<Kind<silu_mul, T, 2, 8, true, 8, 2, true>>(a, stream);
  }
  return false;
}

}  // namespace qwen3tts

#endif
