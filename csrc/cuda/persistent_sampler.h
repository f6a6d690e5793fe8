// The picks of the persistent kernel: those of common/sampler.h, bit for bit, by the consumers of every block for itself.
// For device sources only.
#pragma once

#include "persistent_exchange.h"

namespace qwen3tts {
namespace persistent {
__device__ __forceinline__ void consumers_barrier() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
}  // namespace persistent
}  // namespace qwen3tts

#define QW_SAMPLER_BARRIER qwen3tts::persistent::consumers_barrier
#include "common/sampler_parts.h"

namespace qwen3tts {
namespace persistent {

constexpr int kEach = Shape::vocab / kConsumers;
static_assert(kThreads == kConsumers, "the sampler's parts are for so many threads");

struct Sampling {  // in shared memory
  Shared parts;
  uint32_t keys[Shape::vocab];
  uint16_t indices[Shape::vocab];
  SamplerRow row;
  int frame;
  int token;
};

// Thread t owns logits 2 t, 2 t + 1, 512 + 2 t, ...
__device__ __forceinline__ int owned(int j) { return j / 2 * 512 + 2 * static_cast<int>(threadIdx.x) + j % 2; }

__device__ __forceinline__ void receive_logits(float (&to)[kEach], const gpu::u64* from, uint32_t tag, Watch& watch) {
  gpu::u64 word[kEach];
  uint32_t wrong;
  do {
    wrong = 0;
#pragma unroll
    for (int j = 0; j < kEach; j += 2) load_long_words(from + owned(j), word[j], word[j + 1]);
#pragma unroll
    for (int j = 0; j < kEach; ++j) wrong |= static_cast<uint32_t>(word[j] >> 32) ^ tag;
  } while (__any_sync(0xffffffffu, wrong != 0) && !__any_sync(0xffffffffu, watch.over()));
#pragma unroll
  for (int j = 0; j < kEach; ++j) to[j] = gpu::from_bits(static_cast<uint32_t>(word[j]));
}

// As pick() of common/sampler.cpp. The token in one thread, -1 in the others.
__device__ __forceinline__ int pick(const float (&logits)[kEach], uint32_t word, Sampling& s, uint32_t& status) {
  const SamplerRow& row = s.row;
  const bool draws = row.do_sample != 0;
  const float temperature = draws ? row.temperature : 1.0f;
  uint32_t keys[kEach], most = 0;
  status = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (!is_finite(logits[j])) status |= kSamplerNotFinite;
    const float v = gpu::div_rn(logits[j], temperature);
    if (v != v) status |= kSamplerNoPick;
    keys[j] = v != v ? 0 : key_of(v);
    most = larger(most, keys[j]);
  }
  most = sort_group(most);
  const int places = (row.top_k + kGroups - 1) / kGroups;
  const bool bounded = row.top_k > 0 && places <= gpu::kGroup;
  for (int bit = 0; bit < 2; ++bit) status |= (gpu::ballot((status >> bit & 1u) != 0) != 0 ? 1u : 0u) << bit;
  if (gpu::group_lane() == 0) {
    s.parts.top[gpu::group()] = most;
    s.parts.status[gpu::group()] = status;
  }
  if (gpu::group_lane() == (bounded ? places - 1 : 0)) s.parts.edge[gpu::group()] = bounded ? most : 0;
  sampler_barrier();
  uint32_t edge = s.parts.edge[0], top = s.parts.top[0];
  status = s.parts.status[0];
#pragma unroll
  for (int g = 1; g < kGroups; ++g) {
    edge = smaller(edge, s.parts.edge[g]);
    top = larger(top, s.parts.top[g]);
    status |= s.parts.status[g];
  }
  const float largest = value_of(top);
  if (draws && (top == 0 || !is_finite(largest))) status |= kSamplerNoPick;
  if ((status & kSamplerNoPick) != 0) return threadIdx.x == 0 ? 0 : -1;
  if (!draws) {
    u64 best = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) best = larger(best, entry_of(keys[j], owned(j)));
    for (int mask = gpu::kGroup / 2; mask > 0; mask /= 2) best = larger(best, gpu::shfl_xor(best, mask));
    if (gpu::group_lane() == 0) s.parts.best[gpu::group()] = best;
    sampler_barrier();
#pragma unroll
    for (int g = 0; g < kGroups; ++g) best = larger(best, s.parts.best[g]);
    return threadIdx.x == 0 ? static_cast<int>(index_of(best)) : -1;
  }

  // Survivors, as keep_survivors().
  uint32_t mine = 0;
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
  const Survivors kept{s.keys, s.indices};
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (keys[j] == 0) continue;
    kept.keys[place] = keys[j];
    kept.indices[place++] = static_cast<uint16_t>(owned(j));
  }
  const uint32_t top_p = static_cast<uint32_t>(row.top_p);
  const int kept_count = static_cast<int>(count);
  if (kept_count <= kRanked) return draw_ranked(kept, kept_count, row.top_k, largest, top_p, word, s.parts);
  const int each = sort_survivors(kept, kept_count, s.parts);
  return draw(kept, row.top_k > 0 ? smaller(kept_count, row.top_k) : kept_count, each, largest, top_p, word, s.parts);
}

// The code of a pass, in all consumers. Block 0 writes it down.
__device__ __forceinline__ int sample(const PersistentArguments& a, const ExchangeArea& area, int copy, int pass, uint32_t tag,
                                      Sampling& s, bool writes, Watch& watch) {
  const uint32_t word = gpu::random_word(s.row.seed, static_cast<uint32_t>(s.frame), static_cast<uint32_t>(pass + 1), s.row.part);
  float logits[kEach];
  receive_logits(logits, area.copies[copy].logits[pass & 1], tag, watch);
  uint32_t status;
  const int winner = pick(logits, word, s, status);
  if (winner >= 0) {
    s.token = winner;
    if (writes) {
      a.codes[pass + 1] = winner;
      if (status != 0) *a.status |= static_cast<std::int32_t>(status);
    }
  }
  consumers_barrier();
  return s.token & (Shape::vocab - 1);
}

}  // namespace persistent
}  // namespace qwen3tts
