#include "common/decode/linear.h"

#include "bindings/module.h"

#include <pybind11/stl.h>

#include <utility>
#include <vector>

namespace qwen3tts {
namespace {

void call(std::uintptr_t x, std::int64_t x_stride, std::uintptr_t norm_weight, float eps,
          const std::vector<std::pair<std::uintptr_t, std::int32_t>>& weights, std::uintptr_t bias, std::uintptr_t y,
          std::int64_t y_stride, std::uintptr_t normed, std::int32_t rows, std::int32_t k, int dtype, int weight_dtype,
          int output, int epilogue, std::uintptr_t stream) {
  if (weights.empty() || weights.size() > 3)
    throw std::invalid_argument("linear: " + std::to_string(weights.size()) + " weights, expected 1 to 3");
  if (epilogue < 0 || epilogue > 2)
    throw std::invalid_argument("linear: epilogue " + std::to_string(epilogue) + ", expected 0, 1 or 2");
  LinearArguments a{};
  a.x = pointer(x);
  a.x_stride = x_stride;
  a.norm_weight = pointer(norm_weight);
  a.eps = eps;
  a.parts = static_cast<std::int32_t>(weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    a.weight[i] = pointer(weights[i].first);
    a.n[i] = weights[i].second;
  }
  a.bias = pointer(bias);
  a.y = pointer(y);
  a.y_stride = y_stride;
  a.normed = pointer(normed);
  a.rows = rows;
  a.k = k;
  a.dtype = dtype_of(dtype);
  a.weight_dtype = dtype_of(weight_dtype);
  a.output = dtype_of(output);
  a.epilogue = static_cast<Epilogue>(epilogue);
  linear(a, pointer(stream));
}

}  // namespace

void bind_linear(pybind11::module_& m) {
  using pybind11::arg;
  m.def("linear", &call, arg("x"), arg("x_stride"), arg("norm_weight"), arg("eps"), arg("weights"), arg("bias"), arg("y"),
        arg("y_stride"), arg("normed"), arg("rows"), arg("k"), arg("dtype"), arg("weight_dtype"), arg("output"),
        arg("epilogue"), arg("stream"),
        "See csrc/common/decode/linear.h; weights: (address, outputs) of each part; norm_weight, bias and normed are 0 for "
        "none; epilogue: 0 store, 1 residual, 2 silu_mul.");
}

}  // namespace qwen3tts
