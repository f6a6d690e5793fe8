// RMSNorm, with or without a residual added first:
//
//   s = x                  or  s = round(x + residual), written to `sum`
//   y = round(weight * round(s * 1/sqrt(mean(s^2) + eps)))
//
// All of it in fp32; round is to the tensors' dtype, twice, where the official model rounds. x, residual, sum and y are
// [rows, width], each with its own row stride; weight is [width]; all have one dtype.
//
// Bytes that must move: rows * width * size * 2 (x in, y out), or * 4 with a residual, plus the weight once.
//
// Shape: a row belongs to as many threads as it has groups of 4 elements, 32 to 512 of them, so that a row of a
// decoding step is read in one load per thread and stays in registers for the second half of the formula. The heads'
// norms have rows of 32 threads, and four of them share a block. Which thread adds what depends on the width alone, and
// lanes are combined in groups of 32: one row gives the same bits at any number of rows, alignment and wave width.
#pragma once

#include "common/types.h"

#include <cstdint>

namespace qwen3tts {

struct RmsNormArguments {
  const void* x;
  const void* residual;  // nullptr: none, and no `sum`
  const void* weight;
  void* sum;             // may be x or residual itself
  void* y;               // may be x itself
  std::int64_t rows, width;
  std::int64_t x_stride, residual_stride, sum_stride, y_stride;  // elements from row to row
  float eps;
  DType dtype;
};

// Asynchronous. Raises std::invalid_argument for impossible arguments, std::runtime_error if the launch fails.
void rms_norm(const RmsNormArguments& arguments, void* stream);

}  // namespace qwen3tts
