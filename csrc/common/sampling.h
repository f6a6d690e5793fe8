// The arithmetic of qwen3tts/model/sampling.py and philox.py for device sources: order of logits, weights, random words.
#pragma once

#include "common/dtype.h"
#include "common/gpu.h"

namespace gpu {

using u64 = unsigned long long;

constexpr int kShift = 24;
constexpr u64 kOne = 1ull << kShift;  // weight of the largest logit

// ---------------------------------------------------------------- order

// Larger float, larger key; -0 and +0 are equal. 0 is no float's key: it stands for "absent".
__device__ __forceinline__ uint32_t key_of(float v) {
  const uint32_t u = to_bits(add_rn(v, 0.0f));
  return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}
__device__ __forceinline__ float value_of(uint32_t key) {
  return from_bits((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

// Rank order in one word: by key, then the lower index first.
__device__ __forceinline__ u64 entry_of(uint32_t key, uint32_t index) {
  return (static_cast<u64>(key) << 32) | (0xffffffffu - index);
}
__device__ __forceinline__ uint32_t index_of(u64 entry) { return 0xffffffffu - static_cast<uint32_t>(entry); }

__device__ __forceinline__ bool is_finite(float v) { return (to_bits(v) & 0x7f800000u) != 0x7f800000u; }

// ---------------------------------------------------------------- draw

// sampling.exp_weights: every operation rounded on its own.
__device__ __forceinline__ uint32_t exp_weight(float x) {
  if (!(x > -17.0f)) return 0;
  const float n = floorf(add_rn(mul_rn(x, 1.44269504088896341f), 0.5f));
  float r = sub_rn(x, mul_rn(n, 0.693359375f));
  r = sub_rn(r, mul_rn(n, -2.12194440054690583e-4f));
  float p = 1.0f / 720.0f;
  p = add_rn(mul_rn(p, r), 1.0f / 120.0f);
  p = add_rn(mul_rn(p, r), 1.0f / 24.0f);
  p = add_rn(mul_rn(p, r), 1.0f / 6.0f);
  p = add_rn(mul_rn(p, r), 0.5f);
  p = add_rn(mul_rn(p, r), 1.0f);
  p = add_rn(mul_rn(p, r), 1.0f);
  return static_cast<uint32_t>(mul_rn(p, 16777216.0f)) >> static_cast<int>(-n);
}

// First output word of Philox4x32-10.
__device__ __forceinline__ uint32_t random_word(uint64_t seed, uint32_t frame, uint32_t codebook, uint32_t part) {
  uint32_t c0 = frame, c1 = codebook, c2 = part, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
  for (int i = 0; i < 10; ++i) {
    const u64 p0 = static_cast<u64>(0xD2511F53u) * c0, p1 = static_cast<u64>(0xCD9E8D57u) * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c0;
}

}  // namespace gpu
