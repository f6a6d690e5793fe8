// How the blocks of the persistent kernel hand values to each other: words with a tag. For device sources only.
#pragma once

#include "common/decode/nvidia.h"
#include "common/decode/persistent.h"
#include "common/sampling.h"

namespace qwen3tts {
namespace persistent {

using Shape = PersistentShape;

constexpr int kBlocks = 128;
constexpr int kConsumerWarps = 8;  // = slices of a sum
constexpr int kConsumers = kConsumerWarps * 32;
constexpr int kColumns = 2;        // of pass 0: position 1 is column 0, as later positions are; position 0 is column 1
constexpr int kMain = 0, kExtra = 1;
#ifndef QW_PERSISTENT_COPIES
#define QW_PERSISTENT_COPIES 2
#endif
constexpr int kCopies = QW_PERSISTENT_COPIES;  // of every exchanged word, so that not all blocks read the same lines

// Words of a vector that is to be multiplied lie as the warps take them: slice after slice of its sums.
template <int K> __device__ __forceinline__ int word_place(int word) {
  const int unit = word / 16, steps = K / 256;
  return (unit % kConsumerWarps * steps + unit / kConsumerWarps) * 16 + word % 16;
}

// [buffer of two][column][words]
struct alignas(256) Exchange {
  uint32_t qkv[2][kColumns][(Shape::heads + 2 * Shape::kv_heads) * Shape::head_dim / 2];
  uint32_t attended[2][kColumns][Shape::hidden / 2];  // x after the attention
  uint32_t gated[2][kColumns][Shape::intermediate / 2];
  uint32_t x[2][kColumns][Shape::hidden / 2];         // x after the layer
  gpu::u64 logits[2][Shape::vocab];
};
struct alignas(256) ExchangeArea {
  Exchange copies[kCopies];
  struct alignas(128) Flag { uint32_t pass; } stored[Shape::kv_heads];  // passes whose keys and values are there
};

// ---------------------------------------------------------------- waiting, not for ever

__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

// A warp's patience.
struct Watch {
  uint64_t deadline;
  volatile uint32_t* stuck;  // of the block
  uint32_t tries;

  // Called after a try in vain by a whole warp, or by one thread for itself.
  __device__ __forceinline__ bool over() {
    if ((++tries & 1023u) != 0) return false;
    if (*stuck == 0 && nanoseconds() < deadline) return false;
    *stuck = 1;
    tries = ~0u;  // the next try in vain comes here at once
    return true;
  }
};


// ---------------------------------------------------------------- words

constexpr uint32_t kTagBits = 0x40004000u;  // the highest exponent bits of two bf16
constexpr uint32_t kShrink = 0x2f802f80u, kGrow = 0x4f804f80u, kUnit = 0x3f803f80u;  // 2^-32, 2^32 and 1 in both halves
constexpr float kGrowth = 4294967296.0f;

// The n-th use of a word in a launch has the tag n % 3 + 1, its last one 0.
__device__ __forceinline__ uint32_t tag_of(int use, bool last, bool constant) {
  return constant ? 1u : last ? 0u : static_cast<uint32_t>(use % 3 + 1);
}
__device__ __forceinline__ uint32_t pair_tag(uint32_t tag) { return (tag & 1u) << 14 | tag >> 1 << 30; }

__device__ __forceinline__ gpu::Vector load_shared_words(const uint32_t* from) {
  gpu::Vector v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ void store_word(uint32_t* to, uint32_t v) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}
__device__ __forceinline__ void load_long_words(const gpu::u64* from, gpu::u64& a, gpu::u64& b) {
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(from) : "memory");
}
__device__ __forceinline__ void store_long_word(gpu::u64* to, gpu::u64 v) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(v) : "memory");
}

// Two bf16 in a word, tagged. `lost` gathers what does not fit: infinities, NaN and what is 2^33 or more.
__device__ __forceinline__ uint32_t encoded(float first, float second, uint32_t tag, uint32_t& lost) {
  const uint32_t word = gpu::multiply_pairs<gpu::bf16>(gpu::pack<gpu::bf16>(first, second), kShrink);
  lost |= word & kTagBits;
  return (word & ~kTagBits) | tag;
}
__device__ __forceinline__ gpu::Vector scaled(const gpu::Vector& v, uint32_t factor) {
  gpu::Vector out;
#pragma unroll
  for (int i = 0; i < 4; ++i) out.word[i] = gpu::multiply_pairs<gpu::bf16>(v.word[i], factor);
  return out;
}

// N vectors of words at from[n], all with the lane's tag: tries until all lanes have theirs, then returns them without the
// tags. check 0: they are ordinary values, which are there.
template <int N, class Address>
__device__ __forceinline__ void receive(gpu::Vector (&to)[N], const Address& from, uint32_t tag, uint32_t check,
                                        Watch& watch) {
  uint32_t wrong;
  do {
    wrong = 0;
#pragma unroll
    for (int n = 0; n < N; ++n) to[n] = load_shared_words(from(n));
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        to[n].word[i] ^= tag;
        wrong |= to[n].word[i];
      }
  } while (__any_sync(0xffffffffu, (wrong & check) != 0) && !__any_sync(0xffffffffu, watch.over()));
}

}  // namespace persistent
}  // namespace qwen3tts
