// Versions, keywords and vector types.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifndef EMU_WAVE
#error "EMU_WAVE must be 32 or 64"
#endif
static_assert(EMU_WAVE == 32 || EMU_WAVE == 64, "EMU_WAVE must be 32 or 64");

#define __HIP_PLATFORM_EMULATION__ 1
#define HIP_VERSION_MAJOR 5
#define HIP_VERSION_MINOR 7
#define HIP_VERSION_PATCH 0
#define HIP_VERSION (HIP_VERSION_MAJOR * 10000000 + HIP_VERSION_MINOR * 100000 + HIP_VERSION_PATCH)

#define __global__ static
#define __device__
#define __host__
#define __constant__ static const
// Zero-initialized, so it lies in .bss, between two markers that build.py links around the kernels (runtime/scheduler.cpp).
#define __shared__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define HIP_KERNEL_NAME(...) __VA_ARGS__

constexpr int warpSize = EMU_WAVE;

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

#define EMU_VECTOR_TYPES(T, name)                                                                       \
  struct alignas(2 * sizeof(T)) name##2 { T x, y; };                                                    \
  struct alignas(4 * sizeof(T)) name##4 { T x, y, z, w; };                                              \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                            \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMU_VECTOR_TYPES(float, float)
EMU_VECTOR_TYPES(int, int)
EMU_VECTOR_TYPES(unsigned, uint)
EMU_VECTOR_TYPES(unsigned short, ushort)
#undef EMU_VECTOR_TYPES
