// What kernels call: indices, barriers, wave operations, atomics and intrinsics.
#pragma once

#include "emulation/threads.h"

#include <type_traits>

#define threadIdx (emulation::position.thread)
#define blockIdx (emulation::block_index)
#define blockDim (emulation::block_size)
#define gridDim (emulation::grid_size)

#define QW_DYNAMIC_SHARED(type, name) type* name = reinterpret_cast<type*>(emulation::dynamic_shared)

#define QW_WAIT_FOR_PREVIOUS emulation::wait_for_previous

// ---------------------------------------------------------------- barriers and fences

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulation::barrier({"__syncthreads", file, line});
}
inline void __threadfence() { emulation::interleave(); }
inline void __threadfence_block() { emulation::interleave(); }

// ---------------------------------------------------------------- wave operations

namespace emulation {

template <class T> uint64_t to_word(T v) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8), "a shuffle moves 32 or 64 bits");
  uint64_t word = 0;
  std::memcpy(&word, &v, sizeof v);
  return word;
}
template <class T> T from_word(uint64_t word) {
  T v;
  std::memcpy(&v, &word, sizeof v);
  return v;
}
// `source` is a lane of the wave; out of the caller's segment of `width` lanes the caller's own value comes back.
template <class T> T shuffle(T v, int source, int width, const Site& site) {
  const int lane = static_cast<int>(position.lane);
  const uint64_t* given = exchange(to_word(v), site);
  return source < 0 || source / width != lane / width ? v : from_word<T>(given[source]);
}
inline unsigned long long vote(bool p, const Site& site) {
  const uint64_t* given = exchange(p, site);
  unsigned long long mask = 0;
  for (unsigned lane = 0; lane < lanes_of_wave(); ++lane)
    if (given[lane] != 0) mask |= 1ull << lane;
  return mask;
}

}  // namespace emulation

#define EMU_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()
template <class T> T __shfl(T v, int source, int width = warpSize, EMU_SITE) {
  const int first = static_cast<int>(emulation::position.lane) / width * width;
  return emulation::shuffle(v, first + (source & (width - 1)), width, {"__shfl", file, line});
}
template <class T> T __shfl_xor(T v, int mask, int width = warpSize, EMU_SITE) {
  return emulation::shuffle(v, static_cast<int>(emulation::position.lane) ^ mask, width, {"__shfl_xor", file, line});
}
template <class T> T __shfl_up(T v, unsigned delta, int width = warpSize, EMU_SITE) {
  const int source = static_cast<int>(emulation::position.lane) - static_cast<int>(delta);
  return emulation::shuffle(v, source, width, {"__shfl_up", file, line});
}
template <class T> T __shfl_down(T v, unsigned delta, int width = warpSize, EMU_SITE) {
  const int source = static_cast<int>(emulation::position.lane + delta);
  return emulation::shuffle(v, source, width, {"__shfl_down", file, line});
}
inline unsigned long long __ballot(int p, EMU_SITE) { return emulation::vote(p != 0, {"__ballot", file, line}); }
inline int __any(int p, EMU_SITE) { return emulation::vote(p != 0, {"__any", file, line}) != 0; }
inline int __all(int p, EMU_SITE) { return emulation::vote(p == 0, {"__all", file, line}) == 0; }
#undef EMU_SITE

// ---------------------------------------------------------------- atomics: one thread runs at a time

namespace emulation {
template <class T> struct Same { using type = T; };
template <class T, class F> T update(T* at, F next) {
  interleave();
  const T old = *at;
  *at = next(old);
  return old;
}
}  // namespace emulation

#define EMU_ATOMIC(name, expression)                                                     \
  template <class T> T name(T* at, typename emulation::Same<T>::type v) {                \
    return emulation::update(at, [v](T old) -> T { return expression; });                \
  }
EMU_ATOMIC(atomicAdd, old + v)
EMU_ATOMIC(atomicSub, old - v)
EMU_ATOMIC(atomicMax, old < v ? v : old)
EMU_ATOMIC(atomicMin, v < old ? v : old)
EMU_ATOMIC(atomicExch, (static_cast<void>(old), v))
EMU_ATOMIC(atomicAnd, old & v)
EMU_ATOMIC(atomicOr, old | v)
EMU_ATOMIC(atomicXor, old ^ v)
#undef EMU_ATOMIC
template <class T>
T atomicCAS(T* at, typename emulation::Same<T>::type expected, typename emulation::Same<T>::type v) {
  return emulation::update(at, [=](T old) { return old == expected ? v : old; });
}

// ---------------------------------------------------------------- intrinsics

inline unsigned __float_as_uint(float v) { return static_cast<unsigned>(emulation::to_word(v)); }
inline int __float_as_int(float v) { return static_cast<int>(__float_as_uint(v)); }
inline float __uint_as_float(unsigned v) { return emulation::from_word<float>(v); }
inline float __int_as_float(int v) { return __uint_as_float(static_cast<unsigned>(v)); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t{a} * b >> 32); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __ffs(unsigned v) { return __builtin_ffs(static_cast<int>(v)); }
inline int __ffsll(unsigned long long v) { return __builtin_ffsll(static_cast<long long>(v)); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v)); }
inline int __clzll(long long v) { return v == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(v)); }
inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
template <class T> T __ldg(const T* at) { return *at; }

template <class T> constexpr T min(T a, T b) { return b < a ? b : a; }
template <class T> constexpr T max(T a, T b) { return a < b ? b : a; }
