// What the kinds of kernels of linear() share: which row of which weight, and what follows a sum. For device sources
// only.
#pragma once

#include "common/decode/linear.h"
#include "common/decode/nvidia.h"
#include "common/dtype.h"
#include "common/gpu.h"

namespace qwen3tts {

// y [rows, outputs]: a gate and an up make one of them.
inline int outputs_of(const LinearArguments& a) {
  if (a.epilogue == Epilogue::silu_mul) return a.n[0];
  int sum = 0;
  for (int part = 0; part < a.parts; ++part) sum += a.n[part];
  return sum;
}

// Row n, counted through all parts.
template <class W> __device__ __forceinline__ const W* weight_row(const LinearArguments& a, int n) {
  const void* weight = a.weight[0];
  if (a.parts > 1 && n >= a.n[0]) {
    n -= a.n[0];
    weight = a.weight[1];
    if (a.parts > 2 && n >= a.n[1]) {
      n -= a.n[1];
      weight = a.weight[2];
    }
  }
  return static_cast<const W*>(weight) + static_cast<int64_t>(n) * a.k;
}

// 1/sqrt(mean + eps) of k elements.
__device__ __forceinline__ float norm_scale(float squares, int k, float eps) {
  const float mean = gpu::div_rn(squares, static_cast<float>(k));
  return gpu::reciprocal_rn(sqrtf(gpu::add_rn(mean, eps)));
}
// The same, for a k that is a power of two: its division is exact.
template <int K> __device__ __forceinline__ float norm_scale(float squares, float eps) {
  static_assert((K & (K - 1)) == 0, "a power of two");
  return gpu::reciprocal_rn(sqrtf(gpu::add_rn(gpu::mul_rn(squares, 1.0f / K), eps)));
}

// The order of a sum on tensor cores (docs/decode.md): kSumUnit elements of k are a unit, unit u belongs to slice
// u % kSumSlices; a slice adds its units in order, in two chains, one for each half of them, and then the chains; the slices
// are added in order. Lane (g = lane / 4, q = lane % 4) has the elements 8 q .. 8 q + 7 of a unit, of row g of the weights and
// of column g of x; words 0 and 1 of these 16 bytes are the first half.
constexpr int kSumUnit = 32;
constexpr int kSumSlices = 8;

// first[0] + first[between] + ...
__device__ __forceinline__ float sum_of_slices(const float* first, int between) {
  float sum = first[0];
#pragma unroll
  for (int s = 1; s < kSumSlices; ++s) sum = gpu::add_rn(sum, first[s * between]);
  return sum;
}

// A slice's squares of a column, from the four lanes that have a quarter of it each.
__device__ __forceinline__ float sum_of_quarters(float squares) {
  squares = gpu::add_rn(squares, gpu::shfl_xor(squares, 1));
  return gpu::add_rn(squares, gpu::shfl_xor(squares, 2));
}

// Whether the norm's scale is multiplied with the finished sum (linear.h).
template <class T> constexpr bool kScalesSum = false;
template <> constexpr bool kScalesSum<gpu::bf16> = true;

// sum += the squares of eight elements, in order.
template <class T> __device__ __forceinline__ float add_squares(float sum, const gpu::Vector& v) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float a, b;
    gpu::unpack<T>(v.word[i], a, b);
    sum = fmaf(b, b, fmaf(a, a, sum));
  }
  return sum;
}

// Eight elements of x times the norm's weight, where the scale comes later.
template <class T> __device__ __forceinline__ gpu::Vector weighted(const gpu::Vector& v, const gpu::Vector& weight) {
  gpu::Vector out;
#pragma unroll
  for (int i = 0; i < 4; ++i) out.word[i] = gpu::multiply_pairs<T>(v.word[i], weight.word[i]);
  return out;
}

// Eight elements of the normed x, for bf16 and fp16.
template <class T>
__device__ __forceinline__ gpu::Vector normalized(const gpu::Vector& v, const gpu::Vector& weight, float scale) {
  gpu::Vector out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float first, second;
    gpu::unpack<T>(v.word[i], first, second);
    const uint32_t unit = gpu::pack<T>(gpu::mul_rn(first, scale), gpu::mul_rn(second, scale));
    out.word[i] = gpu::multiply_pairs<T>(unit, weight.word[i]);
  }
  return out;
}

template <class T> __device__ __forceinline__ float rounded(float v) { return gpu::widen(gpu::narrow<T>(v)); }

template <class W> __device__ __forceinline__ float biased(const LinearArguments& a, int n, float sum) {
  return a.bias == nullptr ? sum : gpu::add_rn(sum, gpu::widen(static_cast<const W*>(a.bias)[n]));
}

// What the epilogue makes of a sum, before it is rounded to T. `up` is the second sum of silu_mul, `old` what stood in y,
// for residual.
template <class T> __device__ __forceinline__ float outcome(Epilogue epilogue, float sum, float up, float old) {
  if (epilogue == Epilogue::residual) return gpu::add_rn(old, rounded<T>(sum));
  if (epilogue == Epilogue::store) return sum;
  const float gate = rounded<T>(sum), silu = gpu::div_rn(gate, gpu::add_rn(1.0f, expf(-gate)));
  return gpu::mul_rn(rounded<T>(silu), rounded<T>(up));
}

// Writes y[row, n].
template <class T>
__device__ __forceinline__ void finish(const LinearArguments& a, int row, int n, float sum, float up, float old) {
  const int64_t at = row * a.y_stride + n;
  if (a.output == DType::f32 && sizeof(T) != 4) {
    static_cast<float*>(a.y)[at] = sum;
    return;
  }
  static_cast<T*>(a.y)[at] = gpu::narrow<T>(outcome<T>(a.epilogue, sum, up, old));
}

// For any dtypes, and the only kind without tensor cores.
void linear_fma(const LinearArguments& arguments, void* stream);

// x and weights of one 16-bit dtype, k a multiple of 32, and at most kMaxNormMma of it with a norm, whose weights then
// have room in the 48 KB of shared memory that a launch gets without asking.
constexpr int kMaxNormMma = 2048;
void linear_mma(const LinearArguments& arguments, void* stream);
// Whether this device runs code that was compiled for clusters, and has the shared memory for them.
bool has_clusters();

// The same bits, where there is a kernel for just this shape, of up to 16 rows in bf16. False: there is none.
bool linear_few(const LinearArguments& arguments, void* stream);

// The same for 17 to 128 rows, with more outputs or a longer k than linear_passes() has registers for.
bool linear_stream(const LinearArguments& arguments, void* stream);
// The same for up to 128 rows.
bool linear_passes(const LinearArguments& arguments, void* stream);

}  // namespace qwen3tts
