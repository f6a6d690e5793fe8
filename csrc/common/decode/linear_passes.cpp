// linear() for up to 128 rows in bf16 (made for 17 and more), at shapes of the released models: the products with a norm.
// (Gate and up of the 1.7B come here from linear_stream.cpp alone where a card has little shared memory.)
//
// The units, slices and chains of a sum are those of linear_mma.cpp, and so are its bits. As in linear_few.cpp a block has
// 8 warps, one for each slice, and `octets` times 8 rows of weights, whose k lies whole in registers before the wait; about
// 128 blocks share out a matrix, of gate and up of the 1.7B a third. The rows of x are the 16-tall operand of the tensor
// cores and go by in passes of 16, every element of them once, straight from the L2 cache: a pass asks for the x of the next
// one as it uses its own.
//
// A pass ends in one meeting of the warps, where its sums lie in one of two buffers; then slices are added up, and outputs
// written. Half of the warps do that before the products of the next pass and half after them, so that a scheduler has
// both kinds of work at a time.
//
// One H200, 64 rows, a pass: 1.0 us at k 1024, of which the outputs 0.3 to 0.4; x from the first-level cache instead would
// save less than 0.1. Registers, sm_90, no spills: 184 to 255.
#include "common/decode/linear_held.h"
#include "common/launch.h"

#if QW_HAS_MMA

namespace qwen3tts {
namespace {

using T = gpu::bf16;

constexpr int kTall = 16;  // rows of a pass
constexpr int kMostPasses = 8;

// A kind of product. STEPS: k / kStep. A block takes OCTETS times 8 rows of weights, of which silu_mul has gates and ups by
// turns. X_DEPTH: steps of x in registers.
template <Epilogue EPILOGUE, class Y, int OCTETS, int STEPS, int X_DEPTH = 4> struct Kind {
  using Output = Y;
  static constexpr bool kSilu = EPILOGUE == Epilogue::silu_mul;
  static constexpr int kOctets = OCTETS, kSteps = STEPS, kK = STEPS * kStep, kXDepth = X_DEPTH;
  static constexpr int kOutputs = kSilu ? OCTETS * 4 : OCTETS * 8;        // of a block
  static constexpr int kStride = OCTETS * 8 + (OCTETS % 2 == 0 ? 8 : 0);  // apart in the banks
  static constexpr int kPartial = kSumSlices * kTall * kStride;
  static constexpr int kTurns = (kTall * kOutputs + kThreads - 1) / kThreads;  // outputs of a thread in a pass
  static constexpr size_t kShared = sizeof(gpu::Vector) * (kK / 8) + sizeof(float) * 2 * kPartial;
  static_assert(STEPS % X_DEPTH == 0, "whole turns of the ring");
  static_assert(!kSilu || OCTETS % 2 == 0, "an up for each gate");
  static_assert(EPILOGUE != Epilogue::residual && (!kSilu || sizeof(Y) == sizeof(T)), "kinds of products with a norm");
};

// The normed x, shared out among the blocks. squares[pass][slice][row].
template <class K>
__device__ __forceinline__ void write_normed(const HeldArguments& a, const float (&squares)[kMostPasses][kSumSlices][kTall]) {
  constexpr int pieces = K::kK / 8;
#pragma unroll 1
  for (int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x); i < a.rows * pieces;
       i += static_cast<int>(gridDim.x) * kThreads) {
    const int row = i / pieces, at = i % pieces * 8;
    const float scale = norm_scale<K::kK>(sum_of_slices(&squares[row / kTall][0][row % kTall], kTall), a.eps);
    const gpu::Vector v = gpu::load_vector(a.x + row * a.x_stride + at), weight = gpu::load_vector(a.norm_weight + at);
    gpu::store_vector(a.normed + static_cast<int64_t>(row) * K::kK + at, normalized<T>(v, weight, scale));
  }
}

template <class K> __global__ void __launch_bounds__(kThreads, 1) linear_passes_kernel(HeldArguments a) {
  using Y = typename K::Output;
  constexpr int steps = K::kSteps, octets = K::kOctets, x_depth = K::kXDepth;
  QW_DYNAMIC_SHARED(gpu::Vector, norm);  // its weights; a warp needs and has copied those of its slice
  float* const partials = reinterpret_cast<float*>(norm + K::kK / 8);  // [pass % 2][slice][row][row of weights]
  __shared__ float squares_of[kMostPasses][kSumSlices][kTall];
  const int thread = static_cast<int>(threadIdx.x), lane = gpu::group_lane(), slice = gpu::group();
  const int g = lane / 4, q = lane % 4, offset = slice * kSumUnit + q * 8;

  // What no kernel ahead writes.
  gpu::Vector held[steps][octets];
#pragma unroll
  for (int o = 0; o < octets; ++o) {
    const T* const from = seek<K>(a, static_cast<int>(blockIdx.x), o);
#pragma unroll
    for (int d = 0; d < steps; ++d) held[d][o] = gpu::load_weight(from + d * kStep);
  }
  if (lane < steps * 4)  // a piece each
    gpu::copy_async(norm + (g * kStep + offset) / 8, a.norm_weight + g * kStep + offset);
  // This thread's outputs of the first pass: where their sums meet, where they go.
  Y* y_at[K::kTurns];
  int column[K::kTurns], sum_at[K::kTurns];
  float bias[K::kTurns] = {};
#pragma unroll
  for (int i = 0; i < K::kTurns; ++i) {
    const int item = thread + i * kThreads, o = item % K::kOutputs, n = static_cast<int>(blockIdx.x) * K::kOutputs + o;
    const bool exists = item < kTall * K::kOutputs;
    column[i] = exists ? item / K::kOutputs : kTall * kMostPasses;
    sum_at[i] = (exists ? column[i] : 0) * K::kStride + (K::kSilu ? o / 8 * 16 + o % 8 : o);
    y_at[i] = static_cast<Y*>(a.y) + (exists ? column[i] : 0) * a.y_stride + n;
    if (!K::kSilu && a.bias != nullptr) bias[i] = gpu::widen(a.bias[n]);
  }

  gpu::launch_dependents();
  gpu::wait_for_previous();

  const T* x_at[2];  // of the pass whose x is asked for; past the last row, rows that exist and whose sums nobody uses
  const auto seek_rows = [&](int first) {
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const int row = first + t * 8 + g;
      x_at[t] = a.x + (row < a.rows ? row : a.rows - 1) * a.x_stride + offset;
    }
  };
  gpu::Vector x[x_depth][2];
  seek_rows(0);
#pragma unroll
  for (int d = 0; d < x_depth; ++d)
#pragma unroll
    for (int t = 0; t < 2; ++t) x[d][t] = gpu::load_in_place(x_at[t] + d * kStep);
  gpu::wait_for_copies();
  gpu::group_sync();

  // The outputs of a pass whose sums all warps have left; y_at goes on to the next one.
  const auto finish = [&](int pass) {
    const float* const partial = partials + pass % 2 * K::kPartial;
#pragma unroll
    for (int i = 0; i < K::kTurns; ++i) {
      if (pass * kTall + column[i] < a.rows) {
        constexpr int between = kTall * K::kStride;
        const float scale = norm_scale<K::kK>(sum_of_slices(&squares_of[pass][0][column[i]], kTall), a.eps);
        float sum = gpu::mul_rn(sum_of_slices(partial + sum_at[i], between), scale), up = 0.0f;
        if constexpr (K::kSilu) up = gpu::mul_rn(sum_of_slices(partial + sum_at[i] + 8, between), scale);
        if (!K::kSilu && a.bias != nullptr) sum = gpu::add_rn(sum, bias[i]);
        if constexpr (sizeof(Y) == sizeof(float)) *y_at[i] = sum;
        else *y_at[i] = gpu::narrow<T>(outcome<T>(K::kSilu ? Epilogue::silu_mul : Epilogue::store, sum, up, 0.0f));
      }
      y_at[i] += kTall * a.y_stride;
    }
  };

  const int passes = (a.rows + kTall - 1) / kTall;
  const bool early = slice < kSumSlices / 2;  // two such warps, or none, share a wave
#pragma unroll 1
  for (int pass = 0; pass < passes; ++pass) {
    if (early && pass > 0) finish(pass - 1);
    const bool more = pass + 1 < passes;
    float sums[2][octets][4] = {};
    float squares[2] = {};
#pragma unroll
    for (int d = 0; d < steps; ++d) {
      gpu::Vector v[2];
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        squares[t] = add_squares<T>(squares[t], x[d % x_depth][t]);
        v[t] = weighted<T>(x[d % x_depth][t], norm[(d * kStep + offset) / 8]);
      }
      if (d + x_depth == steps) seek_rows((pass + 1) * kTall);
#pragma unroll
      for (int t = 0; t < 2; ++t)
        x[d % x_depth][t] = gpu::load_in_place(x_at[t] + (d + x_depth) % steps * kStep, d + x_depth < steps || more);
#pragma unroll
      for (int c = 0; c < 2; ++c)
#pragma unroll
        for (int o = 0; o < octets; ++o)
          gpu::mma<T>(sums[c][o], v[0].word[2 * c], v[1].word[2 * c], v[0].word[2 * c + 1], v[1].word[2 * c + 1],
                      held[d][o].word[2 * c], held[d][o].word[2 * c + 1]);
    }
    if (!early && pass > 0) finish(pass - 1);

    float* const mine = partials + pass % 2 * K::kPartial + (slice * kTall + g) * K::kStride + 2 * q;
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int o = 0; o < octets; ++o) {
        struct alignas(8) Pair { float first, second; };
        *reinterpret_cast<Pair*>(mine + t * 8 * K::kStride + o * 8) = {
            gpu::add_rn(sums[0][o][2 * t], sums[1][o][2 * t]), gpu::add_rn(sums[0][o][2 * t + 1], sums[1][o][2 * t + 1])};
      }
      const float sum = sum_of_quarters(squares[t]);
      if (q == 0) squares_of[pass][slice][t * 8 + g] = sum;
    }
    __syncthreads();
  }
  finish(passes - 1);
  if (a.normed != nullptr) write_normed<K>(a, squares_of);
}

// Whether each part has whole blocks, and these find their places in so many turns.
template <class K, int TURNS = 1> bool try_launch(const LinearArguments& a, void* stream) {
  const int blocks = outputs_of(a) / K::kOutputs;
  if (!whole_groups<K>(a) || blocks > TURNS * kProcessors) return false;
  auto* const kernel = &linear_passes_kernel<K>;
  constexpr size_t squares = sizeof(float) * kMostPasses * kSumSlices * kTall;  // shared memory of a fixed size
  if (K::kShared + squares > 48 * 1024) gpu::allow_shared(kernel, K::kShared);
  QW_LAUNCH_DEPENDENT(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), K::kShared, gpu::stream_of(stream),
                      held_arguments(a, blocks));
  return true;
}

template <class Y, int STEPS> bool store(const LinearArguments& a, void* stream) {
  return try_launch<Kind<Epilogue::store, Y, 2, STEPS>>(a, stream) || try_launch<Kind<Epilogue::store, Y, 3, STEPS>>(a, stream) ||
         try_launch<Kind<Epilogue::store, Y, 4, STEPS>>(a, stream);
}

}  // namespace

bool linear_passes(const LinearArguments& a, void* stream) {
  if (a.dtype != DType::bf16 || a.weight_dtype != DType::bf16 || a.norm_weight == nullptr || a.rows > kTall * kMostPasses)
    return false;
  const bool wide = a.output == DType::f32;
  if (a.epilogue == Epilogue::store) {
    if (a.k == 1024) return wide ? store<float, 4>(a, stream) : store<T, 4>(a, stream);
    return a.k == 2048 && (wide ? store<float, 8>(a, stream) : store<T, 8>(a, stream));
  }
  if (a.epilogue != Epilogue::silu_mul || a.bias != nullptr) return false;
  if (a.k == 1024) return try_launch<Kind<Epilogue::silu_mul, T, 6, 4>>(a, stream);
  return a.k == 2048 && try_launch<Kind<Epilogue::silu_mul, T, 4, 8>, 3>(a, stream);
}

}  // namespace qwen3tts

#endif
