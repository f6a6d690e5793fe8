// Runs rms_norm on rows of an allocation that ends where the last row ends, and compares with a plain loop.
#include "common/rms_norm.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <random>
#include <vector>

static std::unique_ptr<float[]> draw(std::mt19937& generator, long count) {
  std::normal_distribution<float> normal;
  std::unique_ptr<float[]> values(new float[static_cast<std::size_t>(count)]);
  for (long i = 0; i < count; ++i) values[i] = normal(generator);
  return values;
}

int main(int count, char** words) {
  if (count != 4) return 2;
  const long rows = std::atol(words[1]), width = std::atol(words[2]);
  std::mt19937 generator(static_cast<unsigned>(std::atol(words[3])));
  const auto x = draw(generator, rows * width), weight = draw(generator, width), y = draw(generator, rows * width);
  qwen3tts::RmsNormArguments a{};
  a.x = x.get();
  a.weight = weight.get();
  a.y = y.get();
  a.rows = rows;
  a.width = a.x_stride = a.y_stride = width;
  a.eps = 1e-6f;
  a.dtype = qwen3tts::DType::f32;
  try {
    qwen3tts::rms_norm(a, nullptr);
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    return 3;
  }
  for (long row = 0; row < rows; ++row) {
    double squares = 0.0;
    for (long i = 0; i < width; ++i) squares += double{x[row * width + i]} * x[row * width + i];
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(width) + 1e-6);
    for (long i = 0; i < width; ++i) {
      const double want = x[row * width + i] * scale * weight[i], got = y[row * width + i];
      if (!(std::fabs(got - want) <= 1e-5 * (1.0 + std::fabs(want)))) {  // a NaN is different too
        std::printf("different: row %ld, element %ld: %g, expected %g\n", row, i, got, want);
        return 1;
      }
    }
  }
  std::printf("equal\n");
}
