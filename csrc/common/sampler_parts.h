// Ranking and drawing by one block of the sampler. For its device source only.
#pragma once

#include "common/gpu.h"
#include "common/reduce.h"
#include "common/sampling.h"

namespace qwen3tts {
namespace {

using gpu::entry_of;
using gpu::index_of;
using gpu::is_finite;
using gpu::key_of;
using gpu::kOne;
using gpu::u64;
using gpu::value_of;

constexpr int kThreads = 256;
constexpr int kGroups = kThreads / gpu::kGroup;
constexpr int kRanked = 128;   // survivors that are ranked by comparing each with all
constexpr int kOwn = 2;        // neighbours of them that a thread ranks: what it loads is compared with both
constexpr int kHelpers = kThreads / kRanked * kOwn;
constexpr int kEntryBytes = 6;  // of a survivor in shared memory: its key and its 16-bit index

// Of the kThreads that sample. QW_SAMPLER_BARRIER: where the block has other threads beside them.
__device__ __forceinline__ void sampler_barrier() {
#ifdef QW_SAMPLER_BARRIER
  QW_SAMPLER_BARRIER();
#else
  __syncthreads();
#endif
}

template <class T> __device__ __forceinline__ T larger(T a, T b) { return a > b ? a : b; }
template <class T> __device__ __forceinline__ T smaller(T a, T b) { return a < b ? a : b; }

__device__ __forceinline__ uint32_t bits_in(uint32_t v) {
#if defined(__CUDACC__) || defined(__HIP_PLATFORM_AMD__)
  return static_cast<uint32_t>(__popc(v));
#else
  return static_cast<uint32_t>(__builtin_popcount(v));
#endif
}

// Neighbours that are loaded in one piece.
template <class T> struct alignas(2 * sizeof(T)) Two { T x, y; };

struct Shared {
  u64 exchange[2][kThreads];  // partners farther than a group, written and read in turns
  u64 sums[kGroups];
  u64 total;                  // of what top-k keeps
  u64 prefix_total;           // of the shortest prefix of it that top-p keeps
  alignas(Two<u64>) u64 entries[kRanked];  // of survivors that are ranked
  alignas(Two<uint32_t>) uint32_t weights[kRanked];
  u64 best[kGroups];
  uint32_t edge[kGroups];     // the group's ceil(k/8)-th maximum
  uint32_t top[kGroups];
  uint32_t count[kGroups];
  uint32_t status[kGroups];
  int winner;
};

// More survivors, in dynamic shared memory: room for the power of two at or above vocab, and at least kThreads.
struct Survivors {
  uint32_t* keys;
  uint16_t* indices;
};

// Sorts one value per lane of each group, descending.
__device__ __forceinline__ uint32_t sort_group(uint32_t v) {
  const int lane = gpu::group_lane();
#pragma unroll
  for (int size = 2; size <= gpu::kGroup; size *= 2)
#pragma unroll
    for (int stride = size / 2; stride > 0; stride /= 2) {
      const uint32_t other = gpu::shfl_xor(v, stride);
      const bool first = (lane & stride) == 0, descending = (lane & size) == 0;
      v = first == descending ? larger(v, other) : smaller(v, other);
    }
  return v;
}

// Inclusive prefix sum over the group.
template <class T> __device__ __forceinline__ T scan_group(T v) {
#pragma unroll
  for (int delta = 1; delta < gpu::kGroup; delta *= 2) {
    const T before = gpu::shfl_up(v, delta);
    if (gpu::group_lane() >= delta) v += before;
  }
  return v;
}

// Sorts the first `size` (a power of two, at most kThreads) of one value per thread, descending.
__device__ __forceinline__ u64 sort_threads(u64 v, int size, Shared& s) {
  const int t = static_cast<int>(threadIdx.x);
  int turn = 0;
  for (int block = 2; block <= size; block *= 2)
    for (int stride = block / 2; stride > 0; stride /= 2) {
      u64 other;
      if (stride < gpu::kGroup) {
        other = gpu::shfl_xor(v, stride);
      } else {
        s.exchange[turn][t] = v;
        sampler_barrier();
        other = s.exchange[turn][t ^ stride];
        turn ^= 1;  // the next write cannot meet a late reader of this half: a barrier lies between
      }
      const bool first = (t & stride) == 0, descending = (t & block) == 0;
      v = first == descending ? larger(v, other) : smaller(v, other);
    }
  return v;
}

// Sorts the first `size` (a power of two above kThreads) survivors, descending.
__device__ void sort_shared(const Survivors& kept, int size) {
  for (int block = 2; block <= size; block *= 2)
    for (int stride = block / 2; stride > 0; stride /= 2) {
      for (int pair = static_cast<int>(threadIdx.x); pair < size / 2; pair += kThreads) {
        const int i = 2 * pair - (pair & (stride - 1)), j = i + stride;
        const uint32_t key_i = kept.keys[i], key_j = kept.keys[j];
        const uint16_t index_i = kept.indices[i], index_j = kept.indices[j];
        const bool in_order = key_i > key_j || (key_i == key_j && index_i < index_j);
        if (in_order == ((i & block) == 0)) continue;
        kept.keys[i] = key_j;
        kept.keys[j] = key_i;
        kept.indices[i] = index_j;
        kept.indices[j] = index_i;
      }
      sampler_barrier();
    }
}

// Sorts `count` survivors in place; returns how many neighbours each thread owns.
__device__ __forceinline__ int sort_survivors(const Survivors& kept, int count, Shared& s) {
  const int t = static_cast<int>(threadIdx.x);
  int size = gpu::kGroup;
  while (size < count) size *= 2;
  if (size > kThreads) {
    for (int i = count + t; i < size; i += kThreads) {
      kept.keys[i] = 0;
      kept.indices[i] = 0;
    }
    sampler_barrier();
    sort_shared(kept, size);
    return size / kThreads;
  }
  sampler_barrier();
  const u64 entry = sort_threads(t < count ? entry_of(kept.keys[t], kept.indices[t]) : 0, size, s);
  if (t < count) {  // only this thread reads its place from here on, and it alone has read it before
    kept.keys[t] = static_cast<uint32_t>(entry >> 32);
    kept.indices[t] = static_cast<uint16_t>(index_of(entry));
  }
  return 1;
}

// Top-p and the draw from sorted survivors, of which each thread owns `each` neighbours. The winner's thread returns
// its index, the others -1.
__device__ __forceinline__ int draw(const Survivors& kept, int count, int each, float largest, uint32_t top_p,
                                    uint32_t word, Shared& s) {
  const int first = static_cast<int>(threadIdx.x) * each, end = smaller(first + each, count);
  const auto weight = [&](int i) { return static_cast<u64>(gpu::exp_weight(gpu::sub_rn(value_of(kept.keys[i]), largest))); };
  u64 sum = 0;
  for (int i = first; i < end; ++i) sum += weight(i);
  u64 start = scan_group(sum);
  if (gpu::group_lane() == gpu::kGroup - 1) s.sums[gpu::group()] = start;
  start -= sum;
  sampler_barrier();
  u64 total = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (g == gpu::group()) start += total;
    total += s.sums[g];
  }
  if (top_p < kOne) {
    const u64 wanted = top_p * total;
    u64 running = start;
    for (int i = first; i < end; ++i) {
      const u64 next = running + weight(i);
      if (next * kOne >= wanted && (i == 0 || running * kOne < wanted)) s.prefix_total = next;
      running = next;
    }
    sampler_barrier();
    total = s.prefix_total;
  }
  const u64 threshold = ((word >> 8) * total) >> gpu::kShift;
  u64 running = start;
  for (int i = first; i < end; ++i) {
    const u64 next = running + weight(i);
    if (running <= threshold && threshold < next) return kept.indices[i];
    running = next;
  }
  return -1;
}

// The same for at most kRanked survivors, in s.entries, which need not be sorted: the sum ahead of one is that of all larger
// ones.
__device__ __forceinline__ int draw_ranked(int count, int top_k, float largest, uint32_t top_p, uint32_t word, Shared& s) {
  const int t = static_cast<int>(threadIdx.x), helper = t % kHelpers, first = t / kHelpers * kOwn;
  sampler_barrier();
  if (t < kRanked) {  // past the last one, what is above nothing
    const u64 entry = t < count ? s.entries[t] : 0;
    s.weights[t] = gpu::exp_weight(gpu::sub_rn(value_of(static_cast<uint32_t>(entry >> 32)), largest));
    s.entries[t] = entry;
  }
  sampler_barrier();
  const u64 own[kOwn] = {s.entries[first], s.entries[first + 1]};
  uint32_t rank[kOwn] = {}, before[kOwn] = {};  // at most kRanked weights of 2^24
#pragma unroll 4
  for (int i = helper * 2; i < count; i += kHelpers * 2) {
    const auto others = *reinterpret_cast<const Two<u64>*>(s.entries + i);
    const auto weights = *reinterpret_cast<const Two<uint32_t>*>(s.weights + i);
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const bool x = others.x > own[k], y = others.y > own[k];
      rank[k] += (x ? 1u : 0u) + (y ? 1u : 0u);
      before[k] += (x ? weights.x : 0u) + (y ? weights.y : 0u);
    }
  }
#pragma unroll
  for (int mask = 1; mask < kHelpers; mask *= 2)
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      rank[k] += gpu::shfl_xor(rank[k], mask);
      before[k] += gpu::shfl_xor(before[k], mask);
    }
  // One of the helpers for each from here on.
  const int k = helper % kOwn, mine = first + k;
  const uint32_t place = k == 0 ? rank[0] : rank[1];
  const uint32_t last = static_cast<uint32_t>(top_k > 0 ? smaller(count, top_k) : count) - 1;
  const bool in = helper < kOwn && mine < count && place <= last;
  const u64 start = k == 0 ? before[0] : before[1], next = start + (in ? s.weights[mine] : 0u);
  if (in && place == last) s.total = next;
  sampler_barrier();
  u64 total = s.total;
  if (top_p < kOne) {
    const u64 wanted = top_p * total;
    if (in && next * kOne >= wanted && (place == 0 || start * kOne < wanted)) s.prefix_total = next;
    sampler_barrier();
    total = s.prefix_total;
  }
  const u64 threshold = ((word >> 8) * total) >> gpu::kShift;
  return in && start <= threshold && threshold < next ? static_cast<int>(index_of(k == 0 ? own[0] : own[1])) : -1;
}

// The lowest index of the largest key, in every thread.
template <int EACH> __device__ __forceinline__ int pick_largest(const uint32_t (&keys)[EACH], Shared& s) {
  u64 best = 0;
#pragma unroll
  for (int j = 0; j < EACH; ++j) best = larger(best, entry_of(keys[j], threadIdx.x + j * kThreads));
  for (int mask = gpu::kGroup / 2; mask > 0; mask /= 2) best = larger(best, gpu::shfl_xor(best, mask));
  if (gpu::group_lane() == 0) s.best[gpu::group()] = best;
  sampler_barrier();
#pragma unroll
  for (int g = 0; g < kGroups; ++g) best = larger(best, s.best[g]);
  return static_cast<int>(index_of(best));
}

}  // namespace
}  // namespace qwen3tts
