// The products of a decoder layer, with what stands before and after them:
//
//   scale[r] = 1/sqrt(mean(x[r]^2) + eps)                                              in fp32
//   v = x   or   v = round(norm_weight * round(x * scale))                             the RMSNorm of model/layers.py
//   s[r, n] = sum over i of v[r, i] * weight[n, i]  (+ bias[n])                        in fp32
//   store      y[r, n] = round(s[r, n])                                                n runs over all parts in turn
//   residual   y[r, n] = round(y[r, n] + round(s[r, n]))
//   silu_mul   y[r, n] = round(round(silu(round(gate[r, n]))) * round(up[r, n]))      parts: gate and up
//
// In bf16 the norm stands around the sum: v = round(norm_weight * x) and s[r, n] = scale[r] * (sum) (+ bias[n]), so that
// a product need not wait for its norm. That is one rounding less. (In fp16, norm_weight * x might overflow.)
//
// x [rows, k] and y [rows, n] with row strides of their own; up to three weights [n_p, k] as nn.Linear stores them, so
// that q, k and v need no copy that has them together. x, norm_weight and normed have one dtype; the weights and the
// bias have it too or are fp32. y has the dtype of x, or is fp32 and not rounded (store only). 1 to 128 rows.
//
// y may not overlap x: other blocks still read it. normed may be nullptr; else [rows, k] without gaps, and the
// normed x is written there, as model/layers.py rounds it in every dtype (only with norm_weight).
//
// k is a multiple of 8, and rows of x, weights and norm_weight begin at multiples of 16 bytes.
//
// A dependent launch (common/launch.h): weights are on their way before the kernel ahead has ended.
//
// Bytes that must move: the weights, once (in fp32 and with mixed dtypes: once for every 8 rows).
//
// The order of a sum depends on k and the dtypes alone: not on rows, n, parts, strides or the grid. So a row has the
// same bits alone and among others.
#pragma once

#include "common/types.h"

#include <cstdint>

namespace qwen3tts {

enum class Epilogue : int { store = 0, residual = 1, silu_mul = 2 };

struct LinearArguments {
  const void* x;
  std::int64_t x_stride;    // elements from row to row
  const void* norm_weight;  // nullptr: no norm
  float eps;
  const void* weight[3];
  std::int32_t n[3];        // outputs of each part; silu_mul: two equal ones
  std::int32_t parts;       // 1 to 3
  const void* bias;         // nullptr: none; [all n]
  void* y;
  std::int64_t y_stride;
  void* normed;             // nullptr: not wanted
  std::int32_t rows, k;
  DType dtype, weight_dtype, output;  // of x, of weights and bias, of y
  Epilogue epilogue;
};

// Asynchronous. Raises std::invalid_argument for impossible arguments, std::runtime_error if the launch fails.
void linear(const LinearArguments& arguments, void* stream);

}  // namespace qwen3tts
