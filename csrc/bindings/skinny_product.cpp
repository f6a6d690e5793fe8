#include "common/skinny_product.h"

#include "bindings/module.h"

namespace qwen3tts {
namespace {

void call(std::uintptr_t x, std::uintptr_t weight, std::uintptr_t bias, std::uintptr_t y, std::int64_t rows, std::int64_t n,
          std::int64_t k, std::int64_t x_stride, std::int64_t y_stride, int dtype, int output, std::uintptr_t stream) {
  skinny_product({pointer(x), pointer(weight), pointer(bias), pointer(y), rows, n, k, x_stride, y_stride, dtype_of(dtype),
                  dtype_of(output)},
                 pointer(stream));
}

}  // namespace

void bind_skinny_product(pybind11::module_& m) {
  using pybind11::arg;
  m.def("skinny_product", &call, arg("x"), arg("weight"), arg("bias"), arg("y"), arg("rows"), arg("n"), arg("k"),
        arg("x_stride"), arg("y_stride"), arg("dtype"), arg("output"), arg("stream"),
        "See csrc/common/skinny_product.h; bias is 0 for none.");
}

}  // namespace qwen3tts
