// The picks of the persistent kernel: those of common/sampler.h, bit for bit, by the consumers of every block for itself.
// For device sources only.
//
// The logits arrive as keys, with the temperature in them. What can be picked is found in three steps: the keys' maxima of
// the threads are counted in bins by their distance from the largest; up to the bin in which the k-th of them lies there
// are at least k keys, and what is beyond is not among the top k; the others, some 60 of 2048, are ranked by comparing each
// with all. Every warp then adds up the ranked weights for itself. More than 64 for top_k, none, or more survivors than
// there is room for: the ways of common/sampler.cpp, which are slower here.
#pragma once

#include "cuda/persistent_product.h"

namespace qwen3tts {
namespace persistent {
__device__ __forceinline__ void consumers_barrier() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
// A barrier, too.
__device__ __forceinline__ bool any_consumer(bool p) {
  uint32_t any;
  asm volatile(
      "{\n.reg .pred one;\nsetp.ne.b32 one, %1, 0;\nbarrier.cta.red.popc.u32 %0, 1, 256, one;\n}"
      : "=r"(any)
      : "r"(static_cast<uint32_t>(p))
      : "memory");
  return any != 0;
}
}  // namespace persistent
}  // namespace qwen3tts

#define QW_SAMPLER_BARRIER qwen3tts::persistent::consumers_barrier
#include "common/sampler_parts.h"

namespace qwen3tts {
namespace persistent {

constexpr int kEach = Shape::vocab / kConsumers;
constexpr int kFastTopK = 64, kListed = 256, kBins = 256;
static_assert(kThreads == kConsumers, "the sampler's parts are for so many threads");

struct SlowSampling {  // in shared memory
  uint32_t keys[Shape::vocab];  // survivors
  uint16_t indices[Shape::vocab];
  uint32_t all[Shape::vocab];   // keys as they came
};
struct Sampling {
  Shared parts;
  alignas(16) u64 listed[kListed];
  alignas(16) uint2 ranked[kFastTopK];  // weight and index
  alignas(16) uint32_t bins[kBins];
  alignas(16) uint32_t top[kGroups], status[kGroups];
  uint32_t count;
  SamplerRow row;
  int frame;
  int token;
};

// Thread t owns logits 2 t, 2 t + 1, 512 + 2 t, ...
__device__ __forceinline__ uint32_t owned(int j) {
  return static_cast<uint32_t>(j / 2 * 512 + 2 * static_cast<int>(threadIdx.x) + j % 2);
}

// Returns the status of the thread's own.
__device__ __forceinline__ uint32_t receive_keys(uint32_t (&to)[kEach], const u64* from, uint32_t tag, Watch& watch) {
  u64 word[kEach];
  uint32_t seen;
  do {
    seen = 0;
#pragma unroll
    for (int j = 0; j < kEach; j += 2) load_long_words(from + owned(j), word[j], word[j + 1]);
#pragma unroll
    for (int j = 0; j < kEach; ++j) seen |= static_cast<uint32_t>(word[j] >> 32) ^ tag;
  } while (__any_sync(0xffffffffu, (seen & 3u) != 0) && !__any_sync(0xffffffffu, watch.over()));
#pragma unroll
  for (int j = 0; j < kEach; ++j) to[j] = static_cast<uint32_t>(word[j]);
  return seen >> 2;
}

// The bin of a distance from the largest logit: 32 to a doubling, from 1/8 to 32. Larger distance, same or later bin.
__device__ __forceinline__ int bin_of(float distance) {
  const int bin = static_cast<int>(gpu::to_bits(distance) >> 18) - ((127 - 3) << 5);
  return bin < 0 ? 0 : bin > kBins - 1 ? kBins - 1 : bin;
}

// As pick() of common/sampler.cpp behind the edge of the survivors: any top_k and top_p. The token in one thread, else -1.
static __device__ __noinline__ int draw_slowly(Sampling& s, SlowSampling& slow, float largest, uint32_t word) {
  const SamplerRow& row = s.row;
  uint32_t keys[kEach], most = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    keys[j] = slow.all[owned(j)];
    most = larger(most, keys[j]);
  }
  most = sort_group(most);
  const int places = (row.top_k + kGroups - 1) / kGroups;
  const bool bounded = row.top_k > 0 && places <= gpu::kGroup;
  if (gpu::group_lane() == (bounded ? places - 1 : 0)) s.parts.edge[gpu::group()] = bounded ? most : 0;
  sampler_barrier();
  uint32_t edge = s.parts.edge[0], mine = 0;
#pragma unroll
  for (int g = 1; g < kGroups; ++g) edge = smaller(edge, s.parts.edge[g]);
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const bool survives = keys[j] >= edge && gpu::sub_rn(value_of(keys[j]), largest) > -17.0f;
    keys[j] = survives ? keys[j] : 0;
    mine += keys[j] != 0 ? 1u : 0u;
  }
  uint32_t place = scan_group(mine);
  if (gpu::group_lane() == gpu::kGroup - 1) s.parts.count[gpu::group()] = place;
  place -= mine;
  sampler_barrier();
  uint32_t count = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (g == gpu::group()) place += count;
    count += s.parts.count[g];
  }
  const Survivors kept{slow.keys, slow.indices};
  const bool few = count <= kRanked;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (keys[j] == 0) continue;
    if (few) {
      s.parts.entries[place++] = entry_of(keys[j], owned(j));
    } else {
      kept.keys[place] = keys[j];
      kept.indices[place++] = static_cast<uint16_t>(owned(j));
    }
  }
  const uint32_t top_p = static_cast<uint32_t>(row.top_p);
  const int kept_count = static_cast<int>(count);
  if (few) return draw_ranked(kept_count, row.top_k, largest, top_p, word, s.parts);
  const int each = sort_survivors(kept, kept_count, s.parts);
  return draw(kept, row.top_k > 0 ? smaller(kept_count, row.top_k) : kept_count, each, largest, top_p, word, s.parts);
}

// The last step of the fast way, by every warp for itself: the token.
__device__ __forceinline__ int draw_from_ranked(const Sampling& s, uint32_t word) {
  const int lane = gpu::group_lane();
  const uint4 two = reinterpret_cast<const uint4*>(s.ranked)[lane];  // weights x and z, indices y and w
  uint32_t sum = two.x + two.z;
  sum = scan_group(sum);
  const u64 first = sum - two.z, second = sum;
  u64 total = gpu::shfl(sum, gpu::kGroup - 1);
  const u64 top_p = static_cast<uint32_t>(s.row.top_p);
  if (top_p < kOne) {
    const u64 wanted = top_p * total;
    const int at = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, second * kOne >= wanted))) - 1;
    total = gpu::shfl(static_cast<uint32_t>(first * kOne >= wanted ? first : second), at);
  }
  const u64 threshold = ((word >> 8) * total) >> gpu::kShift;
  const int at = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, second > threshold))) - 1;
  return gpu::shfl(static_cast<int>(first > threshold ? two.y : two.w), at);
}

// The code of a pass, in all consumers; -1: this block has waited in vain. Block 0 writes it down. `table`: what it enters
// the next pass as, or nullptr.
__device__ __forceinline__ int sample(const PersistentArguments& a, const ExchangeArea& area, int copy, int pass,
                                      uint32_t tag, const void* table, Sampling& s, SlowSampling& slow, Watch& watch) {
  const int thread = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
  const int lane = thread % 32, warp = thread / 32;
  s.bins[thread] = 0;
  s.listed[thread] = 0;
  if (thread < kFastTopK) s.ranked[thread] = make_uint2(0, 0);
  if (thread == 0) s.count = 0;
  const uint32_t word = gpu::random_word(s.row.seed, static_cast<uint32_t>(s.frame), static_cast<uint32_t>(pass + 1),
                                         s.row.part);
  const bool draws = s.row.do_sample != 0;
  const int top_k = s.row.top_k;
  uint32_t keys[kEach];
  const uint32_t own_status = receive_keys(keys, area.copies[copy].logits[pass & 1], tag, watch);
  uint32_t most = keys[0];
#pragma unroll
  for (int j = 1; j < kEach; ++j) most = larger(most, keys[j]);
  {
    const uint32_t warps = __reduce_max_sync(0xffffffffu, most), bad = __reduce_or_sync(0xffffffffu, own_status);
    if (lane == 0) {
      s.top[warp] = warps;
      s.status[warp] = bad;
    }
  }
  if (any_consumer(*watch.stuck != 0)) return -1;
  uint32_t top = 0, status = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    top = larger(top, s.top[g]);
    status |= s.status[g];
  }
  const float largest = value_of(top);
  if (draws && (top == 0 || !is_finite(largest))) status |= kSamplerNoPick;
  const bool none = (status & kSamplerNoPick) != 0;  // every condition below is the row's: all threads go the same way

  int token = 0;
  bool known = none;
  if (!none && draws && top_k > 0 && top_k <= kFastTopK) {
    const int my_bin = bin_of(gpu::sub_rn(largest, value_of(most)));
    atomicAdd(&s.bins[my_bin], 1u);
    consumers_barrier();
    const uint4* four = reinterpret_cast<const uint4*>(s.bins) + 2 * lane;
    const uint4 low = four[0], high = four[1];
    const uint32_t eight[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += eight[i];
    const uint32_t upto = scan_group(sum), k = static_cast<uint32_t>(top_k);
    const int at = __ffs(static_cast<int>(__ballot_sync(0xffffffffu, upto >= k))) - 1;
    uint32_t running = upto - sum;
    int within = 0;
#pragma unroll
    for (int i = 0; i < 7; ++i) {
      running += eight[i];
      if (running < k) within = i + 1;
    }
    const int last_bin = gpu::shfl(8 * lane + within, at);
    if (__any_sync(0xffffffffu, my_bin <= last_bin)) {
      uint32_t votes[kEach], all = 0;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        votes[j] = __ballot_sync(0xffffffffu, bin_of(gpu::sub_rn(largest, value_of(keys[j]))) <= last_bin);
        all += static_cast<uint32_t>(__popc(static_cast<int>(votes[j])));
      }
      uint32_t place = 0;
      if (lane == 0) place = atomicAdd(&s.count, all);
      place = gpu::shfl(place, 0);
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const uint32_t mine = place + static_cast<uint32_t>(__popc(static_cast<int>(votes[j] & ((1u << lane) - 1u))));
        if ((votes[j] >> lane & 1u) != 0 && mine < kListed) s.listed[mine] = entry_of(keys[j], owned(j));
        place += static_cast<uint32_t>(__popc(static_cast<int>(votes[j])));
      }
    }
    consumers_barrier();
    const int count = static_cast<int>(s.count);
    if (count <= kListed) {
      known = true;
      // One of these will be wanted next; a block sees to it that its one is near.
      if (table != nullptr && block < count && thread < Shape::hidden * 2 / 128)
        gpu::prefetch(static_cast<const char*>(table) +
                      static_cast<int64_t>(index_of(s.listed[block])) * Shape::hidden * 2 + thread * 128);
#pragma unroll 1
      for (int base = 0; base < count; base += 64) {
        const int i = base + thread / 4;
        const u64 entry = s.listed[i];
        int rank = 0;
#pragma unroll 1
        for (int other = 0; other < count; other += 64) {
          const ulonglong2* from = reinterpret_cast<const ulonglong2*>(s.listed + other) + thread % 4;
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const ulonglong2 pair = from[4 * j];
            rank += pair.x > entry ? 1 : 0;
            rank += pair.y > entry ? 1 : 0;
          }
        }
        rank += gpu::shfl_xor(rank, 1);
        rank += gpu::shfl_xor(rank, 2);
        if (thread % 4 == 0 && i < count && rank < top_k)
          s.ranked[rank] = make_uint2(
              gpu::exp_weight(gpu::sub_rn(value_of(static_cast<uint32_t>(entry >> 32)), largest)), index_of(entry));
      }
      consumers_barrier();
      token = draw_from_ranked(s, word);
    }
  }
  if (!known) {
    int winner;
    if (draws) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) slow.all[owned(j)] = keys[j];
      winner = draw_slowly(s, slow, largest, word);
    } else {
      u64 best = 0;
#pragma unroll
      for (int j = 0; j < kEach; ++j) best = larger(best, entry_of(keys[j], owned(j)));
      for (int mask = gpu::kGroup / 2; mask > 0; mask /= 2) best = larger(best, gpu::shfl_xor(best, mask));
      if (lane == 0) s.parts.best[warp] = best;
      consumers_barrier();
#pragma unroll
      for (int g = 0; g < kGroups; ++g) best = larger(best, s.parts.best[g]);
      winner = thread == 0 ? static_cast<int>(index_of(best)) : -1;
    }
    if (winner >= 0) s.token = winner;
    consumers_barrier();
    token = s.token;
  }
  token &= Shape::vocab - 1;
  if (thread == 0) {
    if (known) s.token = token;  // for the finisher; else it is there, and others may still be reading it
    if (block == 0) {
      a.codes[pass + 1] = token;
      if (status != 0) *a.status |= static_cast<std::int32_t>(status);
    }
  }
  return token;
}

}  // namespace persistent
}  // namespace qwen3tts
