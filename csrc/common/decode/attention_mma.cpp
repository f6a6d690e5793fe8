// talker_attention() on tensor cores: bf16 and fp16, 128 elements a head.
//
// Positions 0..p are chunks of 32, and chunk c belongs to run c % kAttentionRuns. A group of 32 lanes takes the chunks of
// a run in order, and the runs' results are added in order, so it does not matter how many groups there are, and in how
// many blocks: 16 of them for a few rows, down to 2 for many, as many as have all their registers at once.
//
// A group holds a chunk's keys and values in registers, each once, as they are read:
//   scores   keys are the tall operand, 16 positions by 128 elements; the columns are the H query heads, and between them
//            the row's own key, which is normed and rotated in the same instructions. As in linear_mma.cpp a lane (g =
//            lane / 4, q = lane % 4) has elements 8q .. 8q+7 of every 32 of a row or column g, and no operand is moved.
//   weights  exp2 of the scores less the largest so far, in fp32. A weight is the sum of two numbers of T, at an error of
//            2^-17 (fp16: 2^-22), which are two columns of a product.
//   sums     values are the tall operand, with their elements as rows: a lane has elements 8g .. 8g+7 and 64 more of
//            positions q and q + 4 of every 8, and pairs of positions are put together in registers. The columns are high
//            and low weights of head n / 2, so that a lane q < H adds up head q.
//
// What the result must wait for, one after another, settled and up to 512 positions: q, k and v from the L2 cache; norm
// and rotation; 16 products; softmax; 16 products; results into the first block's shared memory; sum of up to 16 results.
// Slot, position, page numbers, old keys and values, angles and weights are read ahead of the wait.
//
// Clusters. The blocks of a (row, kv head) are one, and the runs' results meet in the shared memory of the first. Without
// clusters, and for 16 blocks, in the workspace: see arrive().
//
// Registers of a thread, sm_90, no spills: 255, half of them a chunk. 8 groups fit on a multiprocessor.
#include "common/cluster.h"
#include "common/decode/attention_runs.h"
#include "common/launch.h"

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

// A chunk as the lanes of a group hold it. SMALL: pages may be smaller than a chunk.
template <class T, bool SMALL> struct Chunk {
  gpu::Vector keys[kEights][kUnits];         // position 8 e + g, elements 32 u + 8 q and up
  gpu::Vector values[2][kEights][kHalves];   // position 8 e + q + 4 s, elements 64 h + 8 g and up

  // Positions of chunk `index` below `end`; zeros for the others, which are not read.
  __device__ __forceinline__ void load_keys(const AttentionArguments& a, const PageMap& pages, int index, int end, Lane lane) {
    const T* from = static_cast<const T*>(a.pages.keys) + place(pages, index, end) + lane.g * kSize + lane.q * 8;
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      if (SMALL) from = static_cast<const T*>(a.pages.keys) + place(pages, index, end, e) + lane.g * kSize + lane.q * 8;
      const bool there = index * kChunk + e * 8 + lane.g < end;
#pragma unroll
      for (int u = 0; u < kUnits; ++u) keys[e][u] = gpu::load_weight(from + (SMALL ? 0 : e * 8 * kSize) + u * 32, there);
    }
  }
  __device__ __forceinline__ void load_values(const AttentionArguments& a, const PageMap& pages, int index, int end, Lane lane) {
    const T* from = static_cast<const T*>(a.pages.values) + place(pages, index, end) + lane.q * kSize + lane.g * 8;
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      if (SMALL) from = static_cast<const T*>(a.pages.values) + place(pages, index, end, e) + lane.q * kSize + lane.g * 8;
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const bool there = index * kChunk + e * 8 + s * 4 + lane.q < end;
#pragma unroll
        for (int h = 0; h < kHalves; ++h)
          values[s][e][h] = gpu::load_weight(from + ((SMALL ? 0 : e * 8) + s * 4) * kSize + h * 64, there);
      }
    }
  }
  // Where a chunk is, or eight positions of it, which are always of one page.
  __device__ __forceinline__ static int64_t place(const PageMap& pages, int index, int end, int e = 0) {
    const int first = index * kChunk + e * 8;
    return pages.at(first < end ? first : 0);
  }

  // Asks for a chunk that will be read soon.
  __device__ __forceinline__ static void ask(const AttentionArguments& a, const PageMap& pages, int index, int end) {
    const int position = index * kChunk + gpu::group_lane();
    if (position >= end) return;
    const int64_t at = pages.at(position);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      gpu::prefetch(static_cast<const T*>(a.pages.keys) + at + h * 64);
      gpu::prefetch(static_cast<const T*>(a.pages.values) + at + h * 64);
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
  __device__ __forceinline__ void add_values(const Chunk<T, SMALL>& chunk, const float (&weight)[kEights], float factor, Lane lane) {
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
          gpu::mma<T>(sums[w], firsts(v0, v1), seconds(v0, v1), firsts(v2, v3), seconds(v2, v3), pairs[s][0], pairs[s][1]);
        }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float* parts = sums[i / 2] + i % 2 * 2;
        out[h][i] = gpu::add_rn(gpu::mul_rn(out[h][i], factor), gpu::add_rn(parts[0], parts[1]));
      }
    }
  }

  template <class Put> __device__ __forceinline__ void write(const Record& record, int run, Lane lane, const Put& put) const {
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

// Grid: blocks of a (row, kv head), kv heads, rows. What decides which shuffles and products are come to is the same for
// all groups of a block where a wave has two of them.
template <class T, int H, bool SMALL>
__global__ void __launch_bounds__(kMaxGroups * gpu::kGroup, 1)
    talker_mma_kernel(AttentionArguments a, bool stored, int shift) {
  gpu::launch_dependents();
  QW_DYNAMIC_SHARED(float, shared);
  const gpu::Box box{reinterpret_cast<uint64_t*>(shared)};  // where a record of the workspace has its counter
  const bool clustered = gpu::cluster_blocks() > 1;
  if (clustered) {
    if (blockIdx.x == 0 && threadIdx.x == 0) box.open();
    gpu::cluster_arrive();
  }
  const Lane lane;
  const int kv_head = static_cast<int>(blockIdx.y), groups = static_cast<int>(blockDim.x) / gpu::kGroup;
  const int all = groups * static_cast<int>(gridDim.x);
  const int64_t row = blockIdx.z;
  int run = static_cast<int>(blockIdx.x) * groups + gpu::group();

  if (!a.settled) gpu::wait_for_previous();
  const int slot = a.slot[row], given = a.position[row];
  const bool idle = slot < 0;
  const int position = idle ? 0 : given, newest = position / kChunk, used = newest < kRuns ? newest + 1 : kRuns;
  const int old = idle ? 0 : position + (stored ? 1 : 0);  // positions whose keys and values are in the pages
  const PageMap pages = page_map(a, idle ? 0 : slot, shift, kv_head);
  // The group's chunks, one after another: those of its first run, then those of the next one. Where a wave is two groups
  // both take as many, some of which have no positions.
  const bool together = gpu::wave_size() > gpu::kGroup;
  const int end_run = together ? (used + all - 1) / all * all : used;
  const int end_index = together ? (newest / kRuns + 1) * kRuns : newest + 1;
  const auto following = [&](int index, int& run) {
    if (index + kRuns < end_index) return index + kRuns;
    run += all;
    return run;
  };
  Chunk<T, SMALL> chunk;
  chunk.load_keys(a, pages, run, old, lane);
  chunk.load_values(a, pages, run, old, lane);
  int run_after = run;
  const int index_after = following(run, run_after);
  if (run_after < end_run) chunk.ask(a, pages, index_after, old);
  // Columns are the query heads of the lanes q, and between them the own key: in the lanes whose position it will have.
  const bool odd = position % 2 == 0, is_key = (lane.g % 2 == 1) != odd;
  const T* norm = static_cast<const T*>(is_key ? a.k_norm : a.q_norm);
  gpu::Vector weight[kUnits], cos[kUnits], sin[kUnits];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int element = u * 32 + lane.q * 8;
    weight[u] = gpu::load_weight(norm + element);
    cos[u] = gpu::load_weight(static_cast<const T*>(a.cos) + static_cast<int64_t>(position) * kSize + element);
    sin[u] = gpu::load_weight(static_cast<const T*>(a.sin) + static_cast<int64_t>(position) * kSize + element);
  }
  const int64_t own = pages.at(position);
  if (clustered) gpu::cluster_wait();
  if (a.settled) gpu::wait_for_previous();
  if (idle) return;
  const Record local{shared, H, kSize};
  if (clustered && blockIdx.x == 0 && threadIdx.x == 0) box.close(local.bytes(used));

  const T* qkv = static_cast<const T*>(a.qkv) + row * (a.heads + 2 * a.kv_heads) * kSize;
  const int head = is_key ? a.heads + kv_head : kv_head * H + lane.g / 2 % H;
  gpu::Vector heads[kUnits], value[kHalves];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) heads[u] = gpu::load_in_place(qkv + head * kSize + u * 32 + lane.q * 8);
#pragma unroll
  for (int h = 0; h < kHalves; ++h)
    value[h] = gpu::load_in_place(qkv + (a.heads + a.kv_heads + kv_head) * kSize + h * 64 + lane.g * 8);
  norm_and_rotate<T>(heads, weight, cos, sin, a.eps);

  const bool apart = gridDim.x > 1 && !clustered;  // the blocks' results meet in the workspace
  const int64_t record_at = (row * a.kv_heads + kv_head) * Record::floats(H, kSize);
  const Record shelf{static_cast<float*>(a.workspace) + record_at, H, kSize};
  RunSums<T> sums;
  sums.clear();
  const int first_run = run;
  int index = run;
#pragma unroll 1
  for (bool more = run < end_run; more;) {
    int next_run = run;
    const int next = following(index, next_run);
    more = next_run < end_run;
    const bool newest_here = index == newest && !stored;
    if (newest_here) chunk.insert_key(heads, position % kChunk, lane);
    float weight[kEights];
    sums.scores(weight, chunk, heads, odd);
    if (more) chunk.load_keys(a, pages, next, old, lane);
    const float factor = sums.soften(weight, position + 1 - index * kChunk, lane);
    if (newest_here) chunk.insert_value(value, position % kChunk, lane);
    sums.add_values(chunk, weight, factor, lane);
    if (more) {
      chunk.load_values(a, pages, next, old, lane);
      int run_then = next_run;
      const int then = following(next, run_then);
      if (run_then < end_run) chunk.ask(a, pages, then, old);
    }
    if ((!more || next_run != run) && run < used) {
      if (clustered) sums.write(local, run, lane, [&](float* to, const auto& v) { box.send(to, v); });
      else sums.write(Record{apart ? shelf.base : local.base, H, kSize}, run, lane, Write{});
    }
    if (next_run != run) sums.clear();
    run = next_run;
    index = next;
  }

  T* out = static_cast<T*>(a.out) + (row * a.heads + kv_head * H) * kSize;
  const Team<T, kSize> team(kSize);
  if (apart) {
    if (arrive(shelf, gridDim.x)) merge_runs<T, kSize, H>(shelf, used, out, team);
  } else if (blockIdx.x == 0) {
    if (clustered) box.wait();
    else __syncthreads();
    merge_runs<T, kSize, H>(local, used, out, team);
  }
  if (!stored && newest % kRuns % all == first_run) {  // nobody waits for these
    T *key_at = static_cast<T*>(a.pages.keys) + own, *value_at = static_cast<T*>(a.pages.values) + own;
    if (lane.g == position % 8)
#pragma unroll
      for (int u = 0; u < kUnits; ++u) gpu::store_vector(key_at + u * 32 + lane.q * 8, heads[u]);
    if (lane.q == 0)
#pragma unroll
      for (int h = 0; h < kHalves; ++h) gpu::store_vector(value_at + h * 64 + lane.g * 8, value[h]);
  }
}

template <class T, int H, bool SMALL>
void launch(const AttentionArguments& a, bool stored, int shift, int blocks, int groups, void* stream) {
  const auto count = static_cast<unsigned>(blocks);
  const auto shared = static_cast<size_t>(Record::floats(H, kSize)) * sizeof(float);
  const dim3 grid(count, static_cast<unsigned>(a.kv_heads), static_cast<unsigned>(a.rows));
  QW_LAUNCH_CLUSTER((talker_mma_kernel<T, H, SMALL>), count <= gpu::kMaxCluster ? count : 1, grid,
                    dim3(static_cast<unsigned>(groups * gpu::kGroup)), shared, gpu::stream_of(stream), a, stored, shift);
}
template <class T, int H>
void launch_pages(const AttentionArguments& a, bool stored, int shift, int blocks, int groups, void* stream) {
  if (a.pages.page < kChunk) return launch<T, H, true>(a, stored, shift, blocks, groups, stream);
  launch<T, H, false>(a, stored, shift, blocks, groups, stream);
}
template <class T>
void launch_heads(const AttentionArguments& a, bool stored, int shift, int blocks, int groups, void* stream) {
  switch (a.heads / a.kv_heads) {
    case 1: return launch_pages<T, 1>(a, stored, shift, blocks, groups, stream);
    case 2: return launch_pages<T, 2>(a, stored, shift, blocks, groups, stream);
    default: return launch_pages<T, 4>(a, stored, shift, blocks, groups, stream);
  }
}

}  // namespace

void talker_attention_mma(const AttentionArguments& a, bool stored, int shift, int blocks, int groups, void* stream) {
  a.dtype == DType::bf16 ? launch_heads<gpu::bf16>(a, stored, shift, blocks, groups, stream)
                         : launch_heads<gpu::fp16>(a, stored, shift, blocks, groups, stream);
}

}  // namespace qwen3tts

#endif
