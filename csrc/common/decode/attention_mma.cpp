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
// A turn of a group: softmax and sums of chunk c, then the scores of chunk c + 1. Values of c + 1 are asked for behind the
// sums and keys of c + 2 behind the scores, and all of these are waited for together, between the next softmax and its
// sums. Loads on their way are counted as one, so a wait at the scores would be one for the values just asked for.
//
// What the result must wait for, one after another, settled and up to 512 positions: q, k and v from the L2 cache; norm
// and rotation; 16 products; softmax; 16 products; results into the first block's shared memory; sum of up to 16 results.
// Slot, position, page numbers, angles, weights and the first chunk are read ahead of the wait; the second chunk is called
// into the second-level cache. (One H200, 64 rows: none 29.3 us, one 28.6, two 29.4, three 30.8.)
//
// Clusters. The blocks of a (row, kv head) are one, and the runs' results meet in the shared memory of the first. Without
// clusters, and for 16 blocks, in the workspace: see arrive().
//
// Registers of a thread, sm_90, no spills: 255, half of them a chunk. 8 groups fit on a multiprocessor.
#include "common/cluster.h"
#include "common/decode/attention_chunks.h"
#include "common/launch.h"

#if QW_HAS_MMA

namespace qwen3tts {
namespace {

// Grid: blocks of a (row, kv head), kv heads, rows. What decides which shuffles and products are come to is the same for
// all groups of a block where a wave has two of them.
template <class T, int H, bool SMALL>
__global__ void __launch_bounds__(kMaxGroups * gpu::kGroup, 1)
    talker_mma_kernel(AttentionArguments a, bool stored, int shift) {
  gpu::launch_dependents();
  QW_DYNAMIC_SHARED(float, shared);
  const Blocks blocks(shared);
  const Lane lane;
  const int kv_head = static_cast<int>(blockIdx.y), groups = static_cast<int>(blockDim.x) / gpu::kGroup;
  const int all = groups * static_cast<int>(gridDim.x), first_run = static_cast<int>(blockIdx.x) * groups + gpu::group();
  const int64_t row = blockIdx.z;

  const Row place(a, row, shift, kv_head);
  const PageMap& pages = place.pages;
  const int position = place.position, newest = position / kChunk, used = newest < kRuns ? newest + 1 : kRuns;
  const int old = place.idle ? 0 : position + (stored ? 1 : 0);  // positions whose keys and values are in the pages
  // Where a wave is two groups both take as many chunks, some of which have no positions.
  const bool together = gpu::wave_size() > gpu::kGroup;
  const int end_run = together ? (used + all - 1) / all * all : used;
  const int end = together ? (newest / kRuns + 1) * kRuns : newest + 1;
  Chunk<T, SMALL> chunk{};
  Walk here{first_run, first_run}, next = here;
  auto entries = chunk.find(pages, here.index, old);
  chunk.load_keys(a, pages, entries, here.index, old, lane);
  chunk.load_values(a, pages, entries, here.index, old, lane);
  next.advance(all, end);
  if (next.run < end_run) chunk.ask(a, pages, next.index, old);
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
  blocks.wait();
  if (a.settled) gpu::wait_for_previous();
  if (place.idle) return;
  const Record local{shared, H, kSize};
  blocks.expect(local.bytes(used));

  const T* qkv = static_cast<const T*>(a.qkv) + row * (a.heads + 2 * a.kv_heads) * kSize;
  const int head = is_key ? a.heads + kv_head : kv_head * H + lane.g / 2 % H;
  gpu::Vector heads[kUnits], value[kHalves];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) heads[u] = gpu::load_in_place(qkv + head * kSize + u * 32 + lane.q * 8);
#pragma unroll
  for (int h = 0; h < kHalves; ++h)
    value[h] = gpu::load_in_place(qkv + (a.heads + a.kv_heads + kv_head) * kSize + h * 64 + lane.g * 8);
  norm_and_rotate<T>(heads, weight, cos, sin, a.eps);

  const bool apart = gridDim.x > 1 && !blocks.clustered;  // the blocks' results meet in the workspace
  const int64_t record_at = (row * a.kv_heads + kv_head) * Record::floats(H, kSize);
  const Record shelf{static_cast<float*>(a.workspace) + record_at, H, kSize};
  RunSums<T> sums;
  sums.clear();
  float scores[kEights];
  bool more = next.run < end_run;
  const auto take_scores = [&] {
    if (here.index == newest && !stored) chunk.insert_key(heads, position % kChunk, lane);
    sums.scores(scores, chunk, heads, odd);
    if (!more) return;
    entries = chunk.find(pages, next.index, old);
    chunk.load_keys(a, pages, entries, next.index, old, lane);
  };
  if (first_run < end_run) take_scores();
#pragma unroll 1
  for (bool again = first_run < end_run; again;) {
    gpu::converge();
    const float factor = sums.soften(scores, position + 1 - here.index * kChunk, lane);
    if (here.index == newest && !stored) chunk.insert_value(value, position % kChunk, lane);
    if (more) gpu::wait_for_load(chunk.keys[kEights - 1][kUnits - 1], a.cos);
    sums.add_values(chunk, scores, factor, lane);
    if (more) chunk.load_values(a, pages, entries, next.index, old, lane);
    if ((!more || next.run != here.run) && here.run < used) {
      if (blocks.clustered) sums.write(local, here.run, lane, [&](float* to, const auto& v) { blocks.box.send(to, v); });
      else if (apart) sums.write(shelf, here.run, lane, Write{});
      else sums.write(local, here.run, lane, Write{});
    }
    again = more;
    if (!more) continue;
    if (next.run != here.run) sums.clear();
    here = next;
    next.advance(all, end);
    more = next.run < end_run;
    take_scores();
  }

  T* out = static_cast<T*>(a.out) + (row * a.heads + kv_head * H) * kSize;
  const Team<T, kSize> team(kSize);
  if (apart) {
    if (arrive(shelf, gridDim.x)) merge_runs<T, kSize, H>(shelf, used, out, team);
  } else if (blocks.first) {
    if (blocks.clustered) blocks.box.wait();
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
