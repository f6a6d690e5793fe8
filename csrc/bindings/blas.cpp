#include "common/blas.h"

#include "bindings/module.h"

namespace qwen3tts {
namespace {

void call(Blas& blas, std::uintptr_t a, std::uintptr_t b, std::uintptr_t c, std::int64_t m, std::int64_t n, std::int64_t k,
          std::int64_t batch, std::int64_t row_a, std::int64_t row_b, std::int64_t row_c, std::int64_t step_a,
          std::int64_t step_b, std::int64_t step_c, bool b_transposed, float beta, int input, int output,
          std::uintptr_t stream) {
  blas.gemm({m, n, k, batch, pointer(a), pointer(b), pointer(c), row_a, row_b, row_c, step_a, step_b, step_c, b_transposed,
             beta, dtype_of(input), dtype_of(output)},
            pointer(stream));
}

}  // namespace

void bind_blas(pybind11::module_& m) {
  using pybind11::arg;
  pybind11::class_<Blas>(m, "Blas", pybind11::module_local(), "See csrc/common/blas.h.")
      .def(pybind11::init(&open_blas), arg("device"), arg("workspace_bytes"), arg("path") = "")
      .def_property_readonly("library", &Blas::library)
      .def("gemm", &call, arg("a"), arg("b"), arg("c"), arg("m"), arg("n"), arg("k"), arg("batch"), arg("row_a"),
           arg("row_b"), arg("row_c"), arg("step_a"), arg("step_b"), arg("step_c"), arg("b_transposed"), arg("beta"),
           arg("input"), arg("output"), arg("stream"));
}

}  // namespace qwen3tts
