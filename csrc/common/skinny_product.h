// A linear layer on a few rows:
//
//   y[r, n] = round(sum over i of x[r, i] * weight[n, i]  (+ bias[n]))
//
// x [rows, k] and y [rows, n] with their own row strides, weight [n, k] as nn.Linear stores it, bias [n] or none; x,
// weight and bias have one dtype, y has it too or is fp32. Sums are fp32. Eight rows are done at a time.
//
// Bytes that must move: n * k * size, the weight, once for up to eight rows; x and y are small.
//
// Shape: reading the weight is all the cost, so every multiprocessor must have loads in flight from the start. 32 lanes
// share an output and read its row of the weight 16 bytes a lane; a lane asks for up to four such pieces of each of its
// outputs before it uses the first, and long rows are divided among up to eight groups of lanes. At 2048 x 1024 in bf16
// that is 2048 groups, 16 a multiprocessor, whose loads are all on their way at once. With more rows a group takes two
// or four outputs, so that x, which comes from the cache again for every group, is read and widened less often.
//
// The order of a sum depends on k and the dtype alone: not on rows, n, alignment, strides or the wave's width. So a row
// has the same bits alone and among others.
#pragma once

#include "common/types.h"

#include <cstdint>

namespace qwen3tts {

struct SkinnyProductArguments {
  const void* x;
  const void* weight;
  const void* bias;  // nullptr: none
  void* y;
  std::int64_t rows, n, k;
  std::int64_t x_stride, y_stride;  // elements from row to row
  DType dtype, output;              // of x, weight and bias; of y
};

// Asynchronous. Raises std::invalid_argument for impossible arguments, std::runtime_error if the launch fails.
void skinny_product(const SkinnyProductArguments& arguments, void* stream);

}  // namespace qwen3tts
