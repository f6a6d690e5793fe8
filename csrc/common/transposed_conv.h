// Transposed convolution whose kernel has one or two taps per phase, as the codec's upsampling layers have:
//
//   y[b, o, t * stride + p] = round(bias[o] + sum over i of  weight[i, o, p] * x[b, i, t + taps - 1]
//                                                          + weight[i, o, p + stride] * x[b, i, t])      (two taps only)
//
// for p < stride, t < steps. x [batch, in, steps + taps - 1], time contiguous: with two taps it begins with the one
// sample before the first new one, so a stream may be cut anywhere. weight is nn.ConvTranspose1d's [in, out, taps *
// stride] with any strides, bias [out] or none, y [batch, out, steps * stride] contiguous; all of one dtype, sums in fp32.
//
// Bytes that must move: the weight once, x once, y once. The work is 2 * batch * steps * stride * out * in * taps
// operations, far more than the bytes for all but the shortest pieces.
//
// Shape: a phase is a matrix product. With the weight stored as [taps * stride, out, in] ("packed"), all phases of one
// tap are one row-major matrix [stride * out, in], and the products
//
//   z[b] = W[0 .. stride) x[b, :, 1 ...]  +  W[stride .. 2 stride) x[b, :, ... steps]      [stride * out, steps], fp32
//
// read x as it lies, shifted by one sample; one kernel adds the bias and interleaves the phases. The direct kernel (a
// thread per output) and the tiled one (x and weights through shared memory, 32 x 32 outputs of a phase per block, four
// channels a thread) take their sums in the order i, then tap: equal to each other bit for bit, at any cutting.
#pragma once

#include "common/blas.h"
#include "common/types.h"

#include <cstdint>

namespace qwen3tts {

struct TransposedConvArguments {
  const void* x;
  const void* weight;
  const void* bias;  // nullptr: none
  void* y;
  std::int64_t batch, in, out, steps, stride, taps;
  std::int64_t x_batch_stride, x_channel_stride;                        // elements
  std::int64_t weight_in_stride, weight_out_stride, weight_tap_stride;  // elements; packed: 1, in, in * out
  DType dtype;
};

// All are asynchronous and raise std::invalid_argument for impossible arguments, std::runtime_error if a launch fails.
void transposed_conv_direct(const TransposedConvArguments& arguments, void* stream);
void transposed_conv_tiled(const TransposedConvArguments& arguments, void* stream);

// Needs a packed weight. `workspace` is on the device, of batch * stride * out * steps floats.
void transposed_conv_gemm(const TransposedConvArguments& arguments, float* workspace, Blas& blas, void* stream);

}  // namespace qwen3tts
