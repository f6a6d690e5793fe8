#include "common/transposed_conv.h"

#include "bindings/module.h"

namespace qwen3tts {
namespace {

using pybind11::arg;

TransposedConvArguments arguments(std::uintptr_t x, std::uintptr_t weight, std::uintptr_t bias, std::uintptr_t y,
                                  std::int64_t batch, std::int64_t in, std::int64_t out, std::int64_t steps,
                                  std::int64_t stride, std::int64_t taps, std::int64_t x_batch_stride,
                                  std::int64_t x_channel_stride, std::int64_t weight_in_stride,
                                  std::int64_t weight_out_stride, std::int64_t weight_tap_stride, int dtype) {
  return {pointer(x), pointer(weight), pointer(bias), pointer(y), batch, in, out, steps, stride, taps, x_batch_stride,
          x_channel_stride, weight_in_stride, weight_out_stride, weight_tap_stride, dtype_of(dtype)};
}

void direct(const TransposedConvArguments& a, std::uintptr_t stream) { transposed_conv_direct(a, pointer(stream)); }
void tiled(const TransposedConvArguments& a, std::uintptr_t stream) { transposed_conv_tiled(a, pointer(stream)); }
void by_gemm(const TransposedConvArguments& a, std::uintptr_t workspace, Blas& blas, std::uintptr_t stream) {
  transposed_conv_gemm(a, static_cast<float*>(pointer(workspace)), blas, pointer(stream));
}

}  // namespace

void bind_transposed_conv(pybind11::module_& m) {
  pybind11::class_<TransposedConvArguments>(m, "TransposedConvArguments", pybind11::module_local(),
                                                    "See csrc/common/transposed_conv.h.")
      .def(pybind11::init(&arguments), arg("x"), arg("weight"), arg("bias"), arg("y"), arg("batch"), arg("in_channels"),
           arg("out_channels"), arg("steps"), arg("stride"), arg("taps"), arg("x_batch_stride"), arg("x_channel_stride"),
           arg("weight_in_stride"), arg("weight_out_stride"), arg("weight_tap_stride"), arg("dtype"));
  m.def("transposed_conv_direct", &direct, arg("arguments"), arg("stream"));
  m.def("transposed_conv_tiled", &tiled, arg("arguments"), arg("stream"));
  m.def("transposed_conv_gemm", &by_gemm, arg("arguments"), arg("workspace"), arg("blas"), arg("stream"));
}

}  // namespace qwen3tts
