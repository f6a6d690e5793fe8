#include "common/decode/linear.h"

#include "common/decode/linear_parts.h"

namespace qwen3tts {
namespace {

constexpr int kMaxRows = 128;

void refuse(const std::string& what) { throw std::invalid_argument("linear: " + what); }

void check_shape(const LinearArguments& a) {
  if (a.rows < 0 || a.rows > kMaxRows) refuse(std::to_string(a.rows) + " rows, expected 0 to 128");
  if (a.k < 8 || a.k % 8 != 0) refuse("k is " + std::to_string(a.k) + ", expected a multiple of 8");
  if (a.parts < 1 || a.parts > 3) refuse(std::to_string(a.parts) + " weights, expected 1 to 3");
  std::int64_t all = 0;
  for (int part = 0; part < a.parts; ++part) {
    if (a.n[part] < 1) refuse("a weight with " + std::to_string(a.n[part]) + " outputs, expected at least 1");
    all += a.n[part];
  }
  if (all > (1 << 28)) refuse(std::to_string(all) + " outputs, expected at most 268435456");
  if (a.x_stride < 0 || a.x_stride > (1 << 24)) refuse("the row stride of x must be between 0 and 16777216");
  if (a.epilogue == Epilogue::silu_mul && (a.parts != 2 || a.n[0] != a.n[1]))
    refuse("silu_mul needs two weights of one size, gate and up");
  if (a.normed != nullptr && a.norm_weight == nullptr) refuse("normed is asked for, but there is no norm");
}

void check_dtypes(const LinearArguments& a) {
  if (a.weight_dtype != a.dtype && a.weight_dtype != DType::f32) refuse("the weights must have the dtype of x or be fp32");
  if (a.output != a.dtype && !(a.output == DType::f32 && a.epilogue == Epilogue::store))
    refuse("y must have the dtype of x; store may leave it in fp32");
  const auto aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  bool fits = aligned(a.x) && a.x_stride * static_cast<std::int64_t>(size_of(a.dtype)) % 16 == 0 && aligned(a.norm_weight) &&
              aligned(a.normed);
  for (int part = 0; part < a.parts; ++part) fits = fits && aligned(a.weight[part]);
  if (!fits) refuse("x and its rows, the weights, norm_weight and normed must begin at multiples of 16 bytes");
}

bool use_mma(const LinearArguments& a) {
  return QW_HAS_MMA && a.dtype != DType::f32 && a.weight_dtype == a.dtype && a.k % 32 == 0 &&
         (a.norm_weight == nullptr || a.k <= kMaxNormMma);
}

}  // namespace

void linear(const LinearArguments& a, void* stream) {
  check_shape(a);
  check_dtypes(a);
  if (a.rows == 0) return;
#if QW_HAS_MMA
  if (use_mma(a)) {
    if (!linear_few(a, stream) && !linear_stream(a, stream) && !linear_passes(a, stream)) linear_mma(a, stream);
    return;
  }
#endif
  linear_fma(a, stream);
}

}  // namespace qwen3tts
