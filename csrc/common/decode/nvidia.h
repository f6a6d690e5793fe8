// Tensor-core products and loads with cache hints, behind functions that compile everywhere. For device sources only.
//
// QW_HAS_MMA: 1 where mma() can be used, on NVIDIA and in the emulation (QWEN3TTS_EMULATE_MMA). Elsewhere kernels use
// fused multiply-adds.
#pragma once

#include "common/dtype.h"
#include "common/gpu.h"
#include "common/reduce.h"

#if defined(QWEN3TTS_CUDA)
#define QW_HAS_MMA 1
#elif defined(QWEN3TTS_EMULATE_MMA)
#define QW_HAS_MMA 1
#include "emulation/mma.h"
#else
#define QW_HAS_MMA 0
#endif

namespace gpu {

// 16 bytes: 4 elements of fp32 or 8 of the others.
struct alignas(16) Vector { uint32_t word[4]; };

// A weight, or zeros if it is not `wanted`. It is read once, so it need not stay in the first-level cache. The load stands
// where it is written, before a wait_for_previous() for instance: an ordinary read-only load would be moved down to its
// use. No branch, in whose end the registers would have to be waited for.
__device__ __forceinline__ Vector load_weight(const void* from, bool wanted = true) {
  Vector v{{0, 0, 0, 0}};
#ifdef QWEN3TTS_CUDA
  asm volatile(
      "{\n.reg .pred wanted;\nsetp.ne.b32 wanted, %5, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@wanted ld.relaxed.gpu.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=&r"(v.word[0]), "=&r"(v.word[1]), "=&r"(v.word[2]), "=&r"(v.word[3])
      : "l"(from), "r"(static_cast<int>(wanted)));
#else
  if (wanted) v = *static_cast<const Vector*>(from);
#endif
  return v;
}

// As load_weight(), into registers that stay as they are if it is not `wanted`.
__device__ __forceinline__ void load_weight_over(Vector& v, const void* from, bool wanted) {
#ifdef QWEN3TTS_CUDA
  asm volatile(
      "{\n.reg .pred wanted;\nsetp.ne.b32 wanted, %5, 0;\n"
      "@wanted ld.relaxed.gpu.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "+r"(v.word[0]), "+r"(v.word[1]), "+r"(v.word[2]), "+r"(v.word[3])
      : "l"(from), "r"(static_cast<int>(wanted)));
#else
  if (wanted) v = *static_cast<const Vector*>(from);
#endif
}

// Waits here for `v`, and for what else the compiler lets it wait for: it keeps account of all vectors on their way as
// one, so what is used after later loads waits for those too, unless it has been waited for before them. `any` is an
// address that exists (its line may be called into the second-level cache).
__device__ __forceinline__ void wait_for_load(const Vector& v, const void* any) {
#ifdef QWEN3TTS_CUDA
  asm volatile("{\n.reg .pred none;\nsetp.eq.b32 none, %0, 0;\n@none prefetch.global.L2 [%1];\n}" ::"r"(v.word[0]),
               "l"(any));
#else
  static_cast<void>(v);
  static_cast<void>(any);
#endif
}

// The group's lanes are all here. To be said where the compiler cannot see it, in a loop with its way out in the middle:
// shuffles would each look for them, and wait for all loads that are on their way.
__device__ __forceinline__ void converge() {
#ifdef QWEN3TTS_CUDA
  __syncwarp();
#endif
}

// An ordinary load, or zeros, that the compiler leaves where it is written, between products for instance: it would
// gather many of them far ahead, at the price of their registers. Nothing that this thread wrote may be read so.
__device__ __forceinline__ Vector load_in_place(const void* from, bool wanted = true) {
  Vector v{{0, 0, 0, 0}};
#ifdef QWEN3TTS_CUDA
  asm volatile(
      "{\n.reg .pred wanted;\nsetp.ne.b32 wanted, %5, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@wanted ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=&r"(v.word[0]), "=&r"(v.word[1]), "=&r"(v.word[2]), "=&r"(v.word[3])
      : "l"(from), "r"(static_cast<int>(wanted)));
#else
  if (wanted) v = *static_cast<const Vector*>(from);
#endif
  return v;
}

// A hint: the 128 bytes around `from` will be loaded soon. Nothing that is read later depends on it.
__device__ __forceinline__ void prefetch(const void* from) {
#ifdef QWEN3TTS_CUDA
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
#else
  static_cast<void>(from);
#endif
}

// The same for `bytes` from there on, multiples of 16 both, by a group of 32 lanes.
__device__ __forceinline__ void prefetch_range(const void* from, uint32_t bytes) {
#if defined(QWEN3TTS_CUDA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (group_lane() == 0) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes));
#else
  for (uint32_t at = static_cast<uint32_t>(group_lane()) * 128; at < bytes; at += kGroup * 128)
    prefetch(static_cast<const char*>(from) + at);
#endif
}

__device__ __forceinline__ Vector load_vector(const void* from) { return *static_cast<const Vector*>(from); }
__device__ __forceinline__ void store_vector(void* to, const Vector& v) { *static_cast<Vector*>(to) = v; }

// ---------------------------------------------------------------- copies into shared memory

// 16 bytes, or zeros. They are on their way until this thread waits for them; other threads see them after a barrier.
__device__ __forceinline__ void copy_async(Vector* to, const void* from, bool wanted = true) {
#ifdef QWEN3TTS_CUDA
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(wanted ? 16 : 0)
               : "memory");
#else
  *to = wanted ? *static_cast<const Vector*>(from) : Vector{{0, 0, 0, 0}};
#endif
}
// Ends a group of this thread's copies.
__device__ __forceinline__ void commit_copies() {
#ifdef QWEN3TTS_CUDA
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until no more than PENDING of this thread's groups are missing; without a number, for all copies.
template <int PENDING> __device__ __forceinline__ void wait_for_copies() {
#ifdef QWEN3TTS_CUDA
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}
__device__ __forceinline__ void wait_for_copies() {
#ifdef QWEN3TTS_CUDA
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// A barrier of the caller's group of 32 lanes. All lanes of the wave must call this together.
#if QW_HAS_MMA
__device__ __forceinline__ void group_sync() {
#ifdef QWEN3TTS_CUDA
  __syncwarp();
#else
  static_cast<void>(shfl_xor(0.0f, 1));
#endif
}
#endif

// ---------------------------------------------------------------- two 16-bit elements in a word, the first one low

template <class T> __device__ __forceinline__ void unpack(uint32_t word, float& first, float& second);
template <> __device__ __forceinline__ void unpack<bf16>(uint32_t word, float& first, float& second) {
  first = from_bits(word << 16);
  second = from_bits(word & 0xffff0000u);
}
template <> __device__ __forceinline__ void unpack<fp16>(uint32_t word, float& first, float& second) {
#ifdef QWEN3TTS_CUDA
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}"
      : "=f"(first), "=f"(second)
      : "r"(word));
#else
  first = widen(fp16{static_cast<uint16_t>(word & 0xffffu)});
  second = widen(fp16{static_cast<uint16_t>(word >> 16)});
#endif
}

// Rounds to nearest, ties to even.
template <class T> __device__ __forceinline__ uint32_t pack(float first, float second) {
  return static_cast<uint32_t>(narrow<T>(first).bits) | static_cast<uint32_t>(narrow<T>(second).bits) << 16;
}
#ifdef QWEN3TTS_CUDA
template <> __device__ __forceinline__ uint32_t pack<bf16>(float first, float second) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  return word;
}
template <> __device__ __forceinline__ uint32_t pack<fp16>(float first, float second) {
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  return word;
}
#endif

// Both products, each rounded once.
template <class T> __device__ __forceinline__ uint32_t multiply_pairs(uint32_t v, uint32_t w) {
  float v0, v1, w0, w1;
  unpack<T>(v, v0, v1);
  unpack<T>(w, w0, w1);
  return pack<T>(mul_rn(v0, w0), mul_rn(v1, w1));  // exact in fp32 but for the last step
}
#ifdef QWEN3TTS_CUDA
template <> __device__ __forceinline__ uint32_t multiply_pairs<bf16>(uint32_t v, uint32_t w) {
  uint32_t product;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(v), "r"(w), "r"(0x80008000u));  // + -0: changes no sign
  return product;
}
template <> __device__ __forceinline__ uint32_t multiply_pairs<fp16>(uint32_t v, uint32_t w) {
  uint32_t product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(v), "r"(w));
  return product;
}
#endif

// ---------------------------------------------------------------- tensor cores

// c += a b for a 16 x 16, b 16 x 8, c 16 x 8 in fp32, of the caller's group of 32 lanes. With lane = 4 g + q:
//   a0: row g,     k 2q, 2q+1        a1: row g + 8, k 2q, 2q+1        b0: k 2q, 2q+1, column g
//   a2: row g,     k 2q+8, 2q+9      a3: row g + 8, k 2q+8, 2q+9      b1: k 2q+8, 2q+9, column g
//   c[0], c[1]: row g, columns 2q and 2q+1                            c[2], c[3]: row g + 8
// All lanes of the wave must call this together.
#if QW_HAS_MMA
template <class T>
__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                    uint32_t b1);
#ifdef QWEN3TTS_CUDA
template <>
__device__ __forceinline__ void mma<bf16>(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                          uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma<fp16>(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                          uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
#else
template <class T>
__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                    uint32_t b1) {
  emulation::mma(c, a0, a1, a2, a3, b0, b1, [](uint32_t word, float (&to)[2]) { unpack<T>(word, to[0], to[1]); });
}
#endif
#endif

}  // namespace gpu
