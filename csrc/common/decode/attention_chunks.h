// A chunk of 32 positions as the tensor cores take it, norm and rotation in its layout, and softmax over chunks. For the
// device source attention_mma.cpp only, which says how this goes together.
#pragma once

#include "common/decode/attention_runs.h"

#if QW_HAS_MMA

namespace qwen3tts {
namespace {

constexpr int kSize = 128;                    // elements of a head
constexpr int kUnits = kSize / 32;            // 16 bytes of each lane
constexpr int kChunk = 32;                    // positions
constexpr int kEights = kChunk / 8;
constexpr int kHalves = 2;                    // 64 elements of values

// The caller's place in its group.
struct Lane {
  int g, q;
  __device__ __forceinline__ Lane() : g(gpu::group_lane() / 4), q(gpu::group_lane() % 4) {}
};

// A group's chunks, one after another: those of its first run, then those of the next one.
struct Walk {
  int index, run;  // of the chunk, of its run

  // groups: of all blocks; end: where chunks end.
  __device__ __forceinline__ void advance(int groups, int end) {
    index += kRuns;
    if (index < end) return;
    run += groups;
    index = run;
  }
};

// A chunk as the lanes of a group hold it. SMALL: pages may be smaller than a chunk. Positions that do not exist have what
// was there before, zeros or other positions of the row: their scores are not looked at, and their values get no weight.
template <class T, bool SMALL> struct Chunk {
  gpu::Vector keys[kEights][kUnits];         // position 8 e + g, elements 32 u + 8 q and up
  gpu::Vector values[2][kEights][kHalves];   // position 8 e + q + 4 s, elements 64 h + 8 g and up

  // Entries of the page table: the chunk's, or those of eights, which are always of one page.
  struct Place { int page[SMALL ? kEights : 1]; };
  __device__ __forceinline__ static Place find(const PageMap& pages, int index, int end) {
    Place place;
#pragma unroll
    for (int e = 0; e < (SMALL ? kEights : 1); ++e) {
      const int first = index * kChunk + e * 8;
      place.page[e] = pages.page(first < end ? first : 0);
    }
    return place;
  }

  // Those positions of chunk `index` that are below `end`.
  __device__ __forceinline__ void load_keys(const AttentionArguments& a, const PageMap& pages, const Place& place,
                                            int index, int end, Lane lane) {
    const T* from = nullptr;
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      const int first = index * kChunk + e * 8;
      if (SMALL || e == 0)
        from = static_cast<const T*>(a.pages.keys) + pages.within(place.page[e], first) + lane.g * kSize + lane.q * 8;
#pragma unroll
      for (int u = 0; u < kUnits; ++u)
        gpu::load_weight_over(keys[e][u], from + (SMALL ? 0 : e * 8 * kSize) + u * 32, first + lane.g < end);
    }
  }
  __device__ __forceinline__ void load_values(const AttentionArguments& a, const PageMap& pages, const Place& place,
                                              int index, int end, Lane lane) {
    const T* from = nullptr;
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      const int first = index * kChunk + e * 8;
      if (SMALL || e == 0)
        from = static_cast<const T*>(a.pages.values) + pages.within(place.page[e], first) + lane.q * kSize + lane.g * 8;
#pragma unroll
      for (int s = 0; s < 2; ++s)
#pragma unroll
        for (int h = 0; h < kHalves; ++h)
          gpu::load_weight_over(values[s][e][h], from + ((SMALL ? 0 : e * 8) + s * 4) * kSize + h * 64,
                         first + s * 4 + lane.q < end);
    }
  }

  // Calls a chunk that will be read soon into the second-level cache.
  __device__ __forceinline__ static void ask(const AttentionArguments& a, const PageMap& pages, int index, int end) {
    constexpr int piece = SMALL ? 8 : kChunk;
    const int first = index * kChunk, last = first + kChunk < end ? first + kChunk : end;
#pragma unroll 1
    for (int position = first; position < last; position += piece) {
      const int64_t at = pages.at(position);
      const int count = last - position < piece ? last - position : piece;
      const auto bytes = static_cast<uint32_t>(count * kSize) * static_cast<uint32_t>(sizeof(T));
      gpu::prefetch_range(static_cast<const T*>(a.pages.keys) + at, bytes);
      gpu::prefetch_range(static_cast<const T*>(a.pages.values) + at, bytes);
    }
  }

  // The row's own key, of which the lanes of place % 8 have their share, and its value, at `place` of the chunk.
  __device__ __forceinline__ void insert_key(const gpu::Vector (&key)[kUnits], int place, Lane lane) {
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      const bool here = place == e * 8 + lane.g;
#pragma unroll
      for (int u = 0; u < kUnits; ++u) keys[e][u] = here ? key[u] : keys[e][u];
    }
  }
  __device__ __forceinline__ void insert_value(const gpu::Vector (&value)[kHalves], int place, Lane lane) {
#pragma unroll
    for (int s = 0; s < 2; ++s)
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        const bool here = place == e * 8 + s * 4 + lane.q;
#pragma unroll
        for (int h = 0; h < kHalves; ++h) values[s][e][h] = here ? value[h] : values[s][e][h];
      }
  }
};

// The sum of two words' elements, each rounded once.
template <class T> __device__ __forceinline__ uint32_t add_pairs(uint32_t v, uint32_t w) {
  float v0, v1, w0, w1;
  gpu::unpack<T>(v, v0, v1);
  gpu::unpack<T>(w, w0, w1);
  return gpu::pack<T>(gpu::add_rn(v0, w0), gpu::add_rn(v1, w1));
}
#ifdef QWEN3TTS_CUDA
template <> __device__ __forceinline__ uint32_t add_pairs<gpu::bf16>(uint32_t v, uint32_t w) {
  uint32_t sum;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(v), "r"(0x3f803f80u), "r"(w));  // v * 1 + w
  return sum;
}
template <> __device__ __forceinline__ uint32_t add_pairs<gpu::fp16>(uint32_t v, uint32_t w) {
  uint32_t sum;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(v), "r"(w));
  return sum;
}
#endif

// norm_and_rotate() of a head that four lanes hold as a Chunk's keys: the same roundings and the same order of the squares.
template <class T>
__device__ __forceinline__ void norm_and_rotate(gpu::Vector (&x)[kUnits], const gpu::Vector (&weight)[kUnits],
                                                const gpu::Vector (&cos)[kUnits], const gpu::Vector (&sin)[kUnits],
                                                float eps) {
  static_assert(kUnits == 4, "the order of the squares");
  float v[kUnits][8], squares[kUnits];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    widen_vector(x[u], v[u], T{});
    squares[u] = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) squares[u] = fmaf(v[u][i], v[u][i], squares[u]);
  }
  float sum = gpu::add_rn(gpu::add_rn(squares[0], squares[2]), gpu::add_rn(squares[1], squares[3]));
  sum = gpu::add_rn(sum, gpu::shfl_xor(sum, 2));
  sum = gpu::add_rn(sum, gpu::shfl_xor(sum, 1));
  const float mean = gpu::mul_rn(sum, 1.0f / kSize), scale = gpu::div_rn(1.0f, sqrtf(gpu::add_rn(mean, eps)));
#pragma unroll
  for (int u = 0; u < kUnits; ++u)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t unit = gpu::pack<T>(gpu::mul_rn(v[u][2 * i], scale), gpu::mul_rn(v[u][2 * i + 1], scale));
      x[u].word[i] = gpu::multiply_pairs<T>(unit, weight[u].word[i]);
    }
#pragma unroll
  for (int u = 0; u < kUnits / 2; ++u)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t first = x[u].word[i], second = x[u + 2].word[i];
      x[u].word[i] = add_pairs<T>(gpu::multiply_pairs<T>(first, cos[u].word[i]),
                                  gpu::multiply_pairs<T>(second, sin[u].word[i]));
      x[u + 2].word[i] = add_pairs<T>(gpu::multiply_pairs<T>(second, cos[u + 2].word[i]),
                                      gpu::multiply_pairs<T>(first, sin[u + 2].word[i]));
    }
}

// Two positions' elements of a word: the first ones, and the second ones.
__device__ __forceinline__ uint32_t firsts(uint32_t a, uint32_t b) { return (a & 0xffffu) | b << 16; }
__device__ __forceinline__ uint32_t seconds(uint32_t a, uint32_t b) { return a >> 16 | (b & 0xffff0000u); }

// Softmax so far of a run: head q's in the lanes q < H, other lanes repeat heads. All lanes of the wave call all of this.
template <class T> struct RunSums {
  float largest, total;
  float out[kHalves][8];  // elements 64 h + 8 g and up

  __device__ __forceinline__ void clear() {
    largest = kLowest;
    total = 0.0f;
#pragma unroll
    for (int h = 0; h < kHalves; ++h)
#pragma unroll
      for (int i = 0; i < 8; ++i) out[h][i] = 0.0f;
  }

  // Adds a chunk, of which `there` positions exist: scores(), soften() and add_values(), in that order.
  template <bool SMALL>
  __device__ __forceinline__ void add_values(const Chunk<T, SMALL>& chunk, const float (&weight)[kEights], float factor,
                                             Lane lane) {
    uint32_t pairs[2][2];
    spread(pairs, weight, lane);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      float sums[4][4] = {};
#pragma unroll
      for (int s = 0; s < 2; ++s)
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const uint32_t v0 = chunk.values[s][0][h].word[w], v1 = chunk.values[s][1][h].word[w];
          const uint32_t v2 = chunk.values[s][2][h].word[w], v3 = chunk.values[s][3][h].word[w];
          gpu::mma<T>(sums[w], firsts(v0, v1), seconds(v0, v1), firsts(v2, v3), seconds(v2, v3), pairs[s][0],
                      pairs[s][1]);
        }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float* parts = sums[i / 2] + i % 2 * 2;
        out[h][i] = gpu::add_rn(gpu::mul_rn(out[h][i], factor), gpu::add_rn(parts[0], parts[1]));
      }
    }
  }

  template <class Put>
  __device__ __forceinline__ void write(const Record& record, int run, Lane lane, const Put& put) const {
    if (lane.q >= record.heads) return;
    float* sums = record.sums(run, lane.q) + lane.g * 8;
#pragma unroll
    for (int h = 0; h < kHalves; ++h)
#pragma unroll
      for (int i = 0; i < 8; i += 4)
        put(sums + h * 64 + i, make_float4(out[h][i], out[h][i + 1], out[h][i + 2], out[h][i + 3]));
    if (lane.g == 0) put(&record.state(run, lane.q)->x, make_float2(largest, total));
  }

  // Of positions 8 e + g, in base 2. odd: heads are in the odd columns.
  template <bool SMALL>
  __device__ __forceinline__ static void scores(float (&score)[kEights], const Chunk<T, SMALL>& chunk,
                                                const gpu::Vector (&heads)[kUnits], bool odd) {
    float sums[2][kEights / 2][4] = {};  // [words 0, 1 or 2, 3][16 positions]
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int t = 0; t < kEights / 2; ++t) {
          const gpu::Vector &upper = chunk.keys[2 * t][u], &lower = chunk.keys[2 * t + 1][u];
          gpu::mma<T>(sums[i][t], upper.word[2 * i], lower.word[2 * i], upper.word[2 * i + 1], lower.word[2 * i + 1],
                      heads[u].word[2 * i], heads[u].word[2 * i + 1]);
        }
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      const float *first = sums[0][e / 2] + e % 2 * 2, *second = sums[1][e / 2] + e % 2 * 2;
      const float sum = odd ? gpu::add_rn(first[1], second[1]) : gpu::add_rn(first[0], second[0]);
      score[e] = gpu::mul_rn(sum, score_scale(kSize));
    }
  }

  // Scores become weights; returns what earlier sums must be multiplied by.
  __device__ __forceinline__ float soften(float (&v)[kEights], int there, Lane lane) {
    float most = largest;
#pragma unroll
    for (int e = 0; e < kEights; ++e) most = fmaxf(most, e * 8 + lane.g < there ? v[e] : kLowest);
#pragma unroll
    for (int mask = 4; mask < gpu::kGroup; mask *= 2) most = fmaxf(most, gpu::shfl_xor(most, mask));
#pragma unroll
    for (int e = 0; e < kEights; ++e) v[e] = e * 8 + lane.g < there ? exp2f(gpu::sub_rn(v[e], most)) : 0.0f;
    float sum = gpu::add_rn(gpu::add_rn(v[0], v[1]), gpu::add_rn(v[2], v[3]));
#pragma unroll
    for (int mask = 4; mask < gpu::kGroup; mask *= 2) sum = gpu::add_rn(sum, gpu::shfl_xor(sum, mask));
    const float factor = exp2f(gpu::sub_rn(largest, most));
    largest = most;
    total = gpu::add_rn(gpu::mul_rn(total, factor), sum);
    return factor;
  }

 private:
  // Weights as columns: pairs[s] of column g are those of positions q + 4 s of every 8, of head g / 2, high or low part.
  __device__ __forceinline__ static void spread(uint32_t (&pairs)[2][2], const float (&weight)[kEights], Lane lane) {
    const int first = gpu::lane() - gpu::group_lane();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t high = gpu::pack<T>(weight[2 * i], weight[2 * i + 1]);
      float taken[2];
      gpu::unpack<T>(high, taken[0], taken[1]);
      const uint32_t low = gpu::pack<T>(gpu::sub_rn(weight[2 * i], taken[0]), gpu::sub_rn(weight[2 * i + 1], taken[1]));
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const int source = first + 4 * (lane.q + 4 * s) + lane.g / 2;
        const uint32_t from_high = gpu::shfl(high, source), from_low = gpu::shfl(low, source);
        pairs[s][i] = lane.g % 2 == 0 ? from_high : from_low;
      }
    }
  }
};

}  // namespace
}  // namespace qwen3tts

#endif
