#include "bindings/module.h"
#include "common/rms_norm.h"

namespace qwen3tts {
namespace {

void call(std::uintptr_t x, std::uintptr_t residual, std::uintptr_t weight, std::uintptr_t sum, std::uintptr_t y,
          std::int64_t rows, std::int64_t width, std::int64_t x_stride, std::int64_t residual_stride,
          std::int64_t sum_stride, std::int64_t y_stride, float eps, int dtype, std::uintptr_t stream) {
  rms_norm({pointer(x), pointer(residual), pointer(weight), pointer(sum), pointer(y), rows, width, x_stride,
            residual_stride, sum_stride, y_stride, eps, dtype_of(dtype)},
           pointer(stream));
}

}  // namespace

void bind_rms_norm(pybind11::module_& m) {
  using pybind11::arg;
  m.def("rms_norm", &call, arg("x"), arg("residual"), arg("weight"), arg("sum"), arg("y"), arg("rows"), arg("width"),
        arg("x_stride"), arg("residual_stride"), arg("sum_stride"), arg("y_stride"), arg("eps"), arg("dtype"),
        arg("stream"), "See csrc/common/rms_norm.h; residual and sum are 0 for the plain norm.");
}

}  // namespace qwen3tts
