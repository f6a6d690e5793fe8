// What the two kinds of kernels of linear() share: which row of which weight, and what follows a sum. For device sources
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
  return gpu::div_rn(1.0f, sqrtf(gpu::add_rn(mean, eps)));
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

// Writes y[row, n]. `up` is the second sum of silu_mul, `old` what stood there before, for residual.
template <class T>
__device__ __forceinline__ void finish(const LinearArguments& a, int row, int n, float sum, float up, float old) {
  const int64_t at = row * a.y_stride + n;
  if (a.output == DType::f32 && sizeof(T) != 4) {
    static_cast<float*>(a.y)[at] = sum;
    return;
  }
  float v = sum;
  if (a.epilogue == Epilogue::residual) {
    v = gpu::add_rn(old, rounded<T>(sum));
  } else if (a.epilogue == Epilogue::silu_mul) {
    const float gate = rounded<T>(sum), silu = gpu::div_rn(gate, gpu::add_rn(1.0f, expf(-gate)));
    v = gpu::mul_rn(rounded<T>(silu), rounded<T>(up));
  }
  static_cast<T*>(a.y)[at] = gpu::narrow<T>(v);
}

// For any dtypes, and the only kind without tensor cores.
void linear_fma(const LinearArguments& arguments, void* stream);

// x and weights of one 16-bit dtype, k a multiple of 32, and at most kMaxNormMma of it with a norm, whose weights then
// have room in the 48 KB of shared memory that a launch gets without asking.
constexpr int kMaxNormMma = 2048;
void linear_mma(const LinearArguments& arguments, void* stream);

}  // namespace qwen3tts
