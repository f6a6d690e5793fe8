#include "common/blas.h"

namespace qwen3tts {

void check_gemm(const Gemm& g) {
  const auto refuse = [](const std::string& what) { throw std::invalid_argument("gemm: " + what); };
  constexpr std::int64_t limit = 0x7fffffff;  // the libraries count in int
  const std::int64_t sizes[] = {g.m, g.n, g.k, g.batch, g.row_a, g.row_b, g.row_c};
  for (const std::int64_t size : sizes)
    if (size < 0 || size > limit) refuse("size or row step " + std::to_string(size) + ", expected 0 to 2147483647");
  if (g.k == 0) refuse("k is 0, expected at least 1");
  const std::int64_t columns_b = g.b_transposed ? g.k : g.n;
  if (g.row_a < g.k || g.row_b < columns_b || g.row_c < g.n)
    refuse("row steps " + std::to_string(g.row_a) + ", " + std::to_string(g.row_b) + ", " + std::to_string(g.row_c) +
           " of A, B and C, expected at least " + std::to_string(g.k) + ", " + std::to_string(columns_b) + ", " +
           std::to_string(g.n));
  if (g.beta != 0.0f && g.beta != 1.0f) refuse("beta " + std::to_string(g.beta) + ", expected 0 or 1");
  if (g.output != g.input && g.output != DType::f32) refuse("the output must be of the inputs' type or fp32");
}

}  // namespace qwen3tts
