// Runs the tiled transposed convolution, and compares with the direct kernel: equal bit for bit.
#include "common/transposed_conv.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <random>
#include <vector>

int main(int count, char** words) {
  if (count != 4) return 2;
  const long in = std::atol(words[1]), steps = std::atol(words[2]), out = 33, stride = 3, taps = 2;
  std::mt19937 generator(static_cast<unsigned>(std::atol(words[3])));
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(in * (steps + 1))), weight(static_cast<std::size_t>(in * out * taps * stride));
  std::vector<float> want(static_cast<std::size_t>(out * steps * stride)), got(want.size());
  for (float& v : x) v = normal(generator);
  for (float& v : weight) v = normal(generator);
  qwen3tts::TransposedConvArguments a{};
  a.x = x.data();
  a.weight = weight.data();
  a.batch = 1;
  a.in = in;
  a.out = out;
  a.steps = steps;
  a.stride = stride;
  a.taps = taps;
  a.x_channel_stride = steps + 1;
  a.x_batch_stride = in * (steps + 1);
  a.weight_tap_stride = 1;
  a.weight_out_stride = taps * stride;
  a.weight_in_stride = out * taps * stride;
  a.dtype = qwen3tts::DType::f32;
  try {
    a.y = want.data();
    qwen3tts::transposed_conv_direct(a, nullptr);
    a.y = got.data();
    qwen3tts::transposed_conv_tiled(a, nullptr);
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    return 3;
  }
  const bool equal = std::memcmp(want.data(), got.data(), want.size() * sizeof(float)) == 0;
  std::printf(equal ? "equal\n" : "different\n");
  return equal ? 0 : 1;
}
