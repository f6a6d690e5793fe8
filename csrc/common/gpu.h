// The few names of the GPU runtimes that differ, and wave helpers of any width. For device sources only (*.cpp under
// csrc/common, csrc/cuda, csrc/hip, compiled by nvcc, by clang for AMD, or by g++ against the CPU emulation of HIP).
//
// QWEN3TTS_CUDA: the CUDA backend. Otherwise <hip/hip_runtime.h> decides: AMD, HIP's headers for NVIDIA, or emulation.
#pragma once

#ifdef QWEN3TTS_CUDA
#include <cuda_runtime.h>
#else
#include <hip/hip_runtime.h>
#endif

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace gpu {

#ifdef QWEN3TTS_CUDA
using Stream = cudaStream_t;
using Status = cudaError_t;
constexpr Status kSuccess = cudaSuccess;
inline const char* status_text(Status status) { return cudaGetErrorString(status); }
inline Status last_status() { return cudaGetLastError(); }
#else
using Stream = hipStream_t;
using Status = hipError_t;
constexpr Status kSuccess = hipSuccess;
inline const char* status_text(Status status) { return hipGetErrorString(status); }
inline Status last_status() { return hipGetLastError(); }
#endif

inline void check(Status status, const char* what) {
  if (status != kSuccess) throw std::runtime_error(std::string(what) + ": " + status_text(status));
}

inline Stream stream_of(void* handle) { return static_cast<Stream>(handle); }

// ---------------------------------------------------------------- launches

// QW_LAUNCH(kernel, grid, block, dynamic shared bytes, stream, arguments...): every launch is checked. A kernel with
// template commas goes into parentheses: QW_LAUNCH((kernel<float, 4>), ...).
#ifdef QWEN3TTS_CUDA
#define QW_LAUNCH(kernel, grid, block, shared, stream, ...)                                   \
  do {                                                                                        \
    kernel<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__);                             \
    gpu::check(gpu::last_status(), "launch of " #kernel);                                     \
  } while (0)
#else
#define QW_LAUNCH(kernel, grid, block, shared, stream, ...)                                   \
  do {                                                                                        \
    hipLaunchKernelGGL(HIP_KERNEL_NAME(kernel), (grid), (block), (shared), (stream), __VA_ARGS__); \
    gpu::check(gpu::last_status(), "launch of " #kernel);                                     \
  } while (0)
#endif

// QW_DYNAMIC_SHARED(type, name): a pointer to the launch's dynamic shared memory, 16-byte aligned.
#ifndef QW_DYNAMIC_SHARED  // the emulation brings its own
#define QW_DYNAMIC_SHARED(type, name)                          \
  extern __shared__ __align__(16) unsigned char qw_dynamic[];  \
  type* name = reinterpret_cast<type*>(qw_dynamic)
#endif

// ---------------------------------------------------------------- waves

// A wave has 32 or 64 lanes and nothing may assume which. kMaxWaves sizes shared partials for 1024 threads of 32.
constexpr int kMaxWaves = 32;

__device__ __forceinline__ int wave_size() {
#ifdef QWEN3TTS_CUDA
  return 32;
#else
  return warpSize;
#endif
}
__device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % wave_size(); }
__device__ __forceinline__ int wave() { return static_cast<int>(threadIdx.x) / wave_size(); }

// All lanes of the wave must call these together.
#if defined(QWEN3TTS_CUDA) || defined(__HIP_PLATFORM_NVIDIA__)
template <class T> __device__ __forceinline__ T shfl_xor(T v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
template <class T> __device__ __forceinline__ T shfl_up(T v, int delta) { return __shfl_up_sync(0xffffffffu, v, delta); }
template <class T> __device__ __forceinline__ T shfl(T v, int source) { return __shfl_sync(0xffffffffu, v, source); }
__device__ __forceinline__ unsigned long long ballot(bool p) { return __ballot_sync(0xffffffffu, p); }
#else
template <class T> __device__ __forceinline__ T shfl_xor(T v, int mask) { return __shfl_xor(v, mask); }
template <class T> __device__ __forceinline__ T shfl_up(T v, int delta) { return __shfl_up(v, delta); }
template <class T> __device__ __forceinline__ T shfl(T v, int source) { return __shfl(v, source); }
__device__ __forceinline__ unsigned long long ballot(bool p) { return __ballot(p); }
#endif

// ---------------------------------------------------------------- arithmetic that is rounded once, whatever the flags

#if defined(QWEN3TTS_CUDA) || defined(__HIP_PLATFORM_NVIDIA__)
__device__ __forceinline__ float mul_rn(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float add_rn(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float sub_rn(float a, float b) { return __fsub_rn(a, b); }
__device__ __forceinline__ float div_rn(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ float reciprocal_rn(float v) { return __frcp_rn(v); }
#else  // clang contracts across statements unless told not to; g++ is told by -ffp-contract=off
#ifdef __clang__
#define QW_NO_CONTRACTION _Pragma("clang fp contract(off)")
#else
#define QW_NO_CONTRACTION
#endif
__device__ __forceinline__ float mul_rn(float a, float b) { QW_NO_CONTRACTION return a * b; }
__device__ __forceinline__ float add_rn(float a, float b) { QW_NO_CONTRACTION return a + b; }
__device__ __forceinline__ float sub_rn(float a, float b) { QW_NO_CONTRACTION return a - b; }
__device__ __forceinline__ float div_rn(float a, float b) { QW_NO_CONTRACTION return a / b; }
__device__ __forceinline__ float reciprocal_rn(float v) { return div_rn(1.0f, v); }
#endif

}  // namespace gpu
