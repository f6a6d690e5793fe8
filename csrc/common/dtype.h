// Element types. bf16 and fp16 are stored as 16-bit words and widened in code that compiles everywhere.
#pragma once

#include "common/gpu.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif
#include <cstring>

namespace gpu {

struct bf16 { uint16_t bits; };
struct fp16 { uint16_t bits; };

__device__ __forceinline__ float from_bits(uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}
__device__ __forceinline__ uint32_t to_bits(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}

__device__ __forceinline__ float widen(float v) { return v; }
__device__ __forceinline__ float widen(bf16 v) { return from_bits(static_cast<uint32_t>(v.bits) << 16); }
// The compilers for cards have one instruction for this; spelled out, it costs many registers where it is unrolled.
#if defined(__CUDACC__)
__device__ __forceinline__ float widen(fp16 v) { return __half2float(__ushort_as_half(v.bits)); }
#elif defined(__HIP_PLATFORM_AMD__)
__device__ __forceinline__ float widen(fp16 v) {
  _Float16 half;
  memcpy(&half, &v.bits, 2);
  return static_cast<float>(half);
}
#else
__device__ __forceinline__ float widen(fp16 v) {
  const uint32_t sign = static_cast<uint32_t>(v.bits & 0x8000u) << 16, rest = v.bits & 0x7fffu;
  if (rest >= 0x7c00u) return from_bits(sign | 0x7f800000u | ((rest & 0x3ffu) << 13));          // Inf, NaN
  if (rest >= 0x0400u) return from_bits(sign | ((rest << 13) + (112u << 23)));                   // normal
  return from_bits(sign | to_bits(static_cast<float>(rest) * 5.9604644775390625e-8f));           // subnormal: * 2^-24
}
#endif

// Round to nearest, ties to even, as torch does.
template <class T> __device__ __forceinline__ T narrow(float v);
template <> __device__ __forceinline__ float narrow<float>(float v) { return v; }
template <> __device__ __forceinline__ bf16 narrow<bf16>(float v) {
  const uint32_t u = to_bits(v);
  if ((u & 0x7fffffffu) > 0x7f800000u) return bf16{static_cast<uint16_t>((u >> 16) | 0x40u)};    // NaN stays one
  return bf16{static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}
template <> __device__ __forceinline__ fp16 narrow<fp16>(float v) {
  const uint32_t u = to_bits(v), sign = (u >> 16) & 0x8000u, rest = u & 0x7fffffffu;
  if (rest > 0x7f800000u) return fp16{static_cast<uint16_t>(sign | 0x7e00u)};                    // NaN
  if (rest >= 0x477ff000u) return fp16{static_cast<uint16_t>(sign | 0x7c00u)};                   // 65520 and above
  if (rest < 0x38800000u) {                                                                      // below 2^-14: the
    const float shifted = from_bits(rest) + 0.5f;                                                // adder rounds to 2^-24
    return fp16{static_cast<uint16_t>(sign | (to_bits(shifted) - 0x3f000000u))};
  }
  const uint32_t rounded = rest + 0xfffu + ((rest >> 13) & 1u);
  return fp16{static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13))};
}

}  // namespace gpu
