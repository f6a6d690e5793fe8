// What the talker's two attention kernels share: runs of positions, their results and how they are merged. For device
// sources only.
#pragma once

#include "common/cluster.h"
#include "common/decode/attention_parts.h"
#include "common/launch.h"

namespace qwen3tts {

constexpr int kRuns = kAttentionRuns;
constexpr int kMaxGroups = 8;    // of a block: 256 threads, so that a thread may have all the registers it wants
constexpr int kAtOnce = 4;       // positions of a team that are loaded and computed together
constexpr int kPiece = 4;        // elements of the result that a thread adds up at a time

// What attention_mma.cpp takes, and the kernels without tensor cores need not be made for.
template <class T, int D> constexpr bool kOnTensorCores = QW_HAS_MMA != 0 && D == 128 && sizeof(T) == 2;

// Positions in each of the runs that 0..p are cut into.
__device__ __forceinline__ int run_length(int p) { return ((p + kRuns) / kRuns + 7) / 8 * 8; }

// ---------------------------------------------------------------- how a kernel begins

// The row of the launch: its position and where its pages are. An idle row has position 0 and may read nothing.
struct Row {
  bool idle;
  int position;
  PageMap pages;

  // Waits for the kernel ahead if it may have written these.
  __device__ __forceinline__ Row(const AttentionArguments& a, int64_t row, int shift, int kv_head) {
    if (!a.settled) gpu::wait_for_previous();
    const int slot = a.slot[row], given = a.position[row];
    idle = slot < 0;
    position = idle ? 0 : given;
    pages = page_map(a, idle ? 0 : slot, shift, kv_head);
  }
};

// The blocks along x, which have a (row, kv head) together. If they are a cluster, their results meet in the shared memory
// of the first, with the box in the place of a record's counter.
struct Blocks {
  gpu::Box box;
  bool clustered, first;  // first: this block

  // What all must have come to before the first send(): box.open(), and cluster_arrive(), for whose end wait() waits.
  __device__ __forceinline__ explicit Blocks(float* shared)
      : box{reinterpret_cast<uint64_t*>(shared)}, clustered(gpu::cluster_blocks() > 1), first(blockIdx.x == 0) {
    if (!clustered) return;
    if (first && threadIdx.x == 0) box.open();
    gpu::cluster_arrive();
  }
  __device__ __forceinline__ void wait() const {
    if (clustered) gpu::cluster_wait();
  }
  // So many bytes will be sent.
  __device__ __forceinline__ void expect(unsigned bytes) const {
    if (clustered && first && threadIdx.x == 0) box.close(bytes);
  }
};

// ---------------------------------------------------------------- results of the runs

// Floats: counter and padding, [run][head] of (largest, total), [run][head][head_dim] of sums.
struct Record {
  float* base;
  int heads, head_dim;

  __host__ __device__ static constexpr int64_t floats(int heads, int head_dim) {
    return kPiece + static_cast<int64_t>(kRuns) * heads * (2 + head_dim);
  }
  __device__ __forceinline__ unsigned* counter() const { return reinterpret_cast<unsigned*>(base); }
  __device__ __forceinline__ float2* state(int run, int h) const {
    return reinterpret_cast<float2*>(base + kPiece) + run * heads + h;
  }
  __device__ __forceinline__ float* sums(int run, int h) const {
    return base + kPiece + 2 * kRuns * heads + (run * heads + h) * head_dim;
  }
  // Bytes of the results of `runs` runs.
  __device__ __forceinline__ unsigned bytes(int runs) const {
    return static_cast<unsigned>(runs * heads * (2 + head_dim)) * static_cast<unsigned>(sizeof(float));
  }
};

// The group's joined sums, by put(address, float4 or float2); the teams share the heads.
template <class T, int D, int H, class Put>
__device__ __forceinline__ void write_run(const Record& record, int run, const Softmax<T, D, H>& s, const Team<T, D>& team,
                                          const Put& put) {
#pragma unroll
  for (int h = 0; h < H; ++h) {
    if (team.mine != h % team.teams) continue;
    float* sums = record.sums(run, h) + team.first;
#pragma unroll
    for (int i = 0; i < kShare<T>; i += 4)
      put(sums + i, make_float4(s.out[h][i], s.out[h][i + 1], s.out[h][i + 2], s.out[h][i + 3]));
    if (team.first == 0) put(&record.state(run, h)->x, make_float2(s.largest[h], s.total[h]));
  }
}

struct Write {
  template <class V> __device__ __forceinline__ void operator()(float* to, const V& v) const {
    *reinterpret_cast<V*>(to) = v;
  }
};

// out = the runs' sums in order, each relative to the largest maximum. By the whole block.
template <class T, int D, int H>
__device__ __forceinline__ void merge_runs(const Record& record, int used, T* out, const Team<T, D>& team) {
  for (int at = static_cast<int>(threadIdx.x) * kPiece; at < H * team.size; at += static_cast<int>(blockDim.x) * kPiece) {
    const int h = at / team.size, element = at % team.size;
    float4 sums[kRuns];
    float2 state[kRuns];
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      sums[run] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      state[run] = make_float2(kLowest, 0.0f);
      if (run >= used) continue;
      sums[run] = *reinterpret_cast<const float4*>(record.sums(run, h) + element);
      state[run] = *record.state(run, h);
    }
    float most = kLowest;
#pragma unroll
    for (int run = 0; run < kRuns; ++run) most = fmaxf(most, state[run].x);
    float total = 0.0f, v[kPiece] = {};
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      const float factor = exp2f(gpu::sub_rn(state[run].x, most));
      total = fmaf(state[run].y, factor, total);
      v[0] = fmaf(sums[run].x, factor, v[0]);
      v[1] = fmaf(sums[run].y, factor, v[1]);
      v[2] = fmaf(sums[run].z, factor, v[2]);
      v[3] = fmaf(sums[run].w, factor, v[3]);
    }
    const float scale = gpu::div_rn(1.0f, total);
#pragma unroll
    for (int i = 0; i < kPiece; ++i) out[at + i] = gpu::narrow<T>(gpu::mul_rn(v[i], scale));
  }
}

// Where several blocks without a cluster have a (row, kv head), their results go to a record of the workspace, and the block
// that comes last adds them up; nobody waits for anybody. Why that is right:
//   every thread writes its results, fences, and meets its block at a barrier; only then does the block's first thread
//   raise the record's counter. Who sees blocks - 1 there is last: all other blocks' results were written before their
//   fences. It tells its block at another barrier, and all threads fence before they read.
//   The last block puts the counter back to zero. Nobody touches it again before the next launch that shares the
//   workspace, which does so behind its wait_for_previous(), when this kernel has ended. A record's place depends on the
//   shapes alone, so launches with any number of rows may share a workspace.
// Whether this block is the last of its record to get here; all it and the others wrote before is visible then.
__device__ __forceinline__ bool arrive(const Record& record, unsigned blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(record.counter(), 1u) == blocks - 1;
    if (last) *record.counter() = 0u;
  }
  __syncthreads();
  if (last) __threadfence();
  return last;
}

// ---------------------------------------------------------------- positions of a run

// Keys or values of positions first, first + 1, ... up to `end`, team after team. What is not there is zero, and not read.
// page: with 128 elements these are at most 8 positions, aligned: of one page, one after another, and this is its number
// (anything if none is there).
template <class T, int D>
__device__ __forceinline__ void load(gpu::Vector (&to)[kAtOnce], const void* pool, const PageMap& pages, int page, int first,
                                     int end, const Team<T, D>& team) {
  const T* from = static_cast<const T*>(pool) + team.first;
  const int64_t start = D == 128 ? pages.within(page, first) + team.mine * team.size : 0;
#pragma unroll
  for (int n = 0; n < kAtOnce; ++n) {
    const int position = first + n * team.teams + team.mine;
    const bool there = position < end;
    to[n] = gpu::load_weight(from + (D == 128 ? start + n * team.teams * team.size : there ? pages.at(position) : 0), there);
  }
}

// Which of them are there.
template <class T, int D>
__device__ __forceinline__ void mark(bool (&there)[kAtOnce], int first, int end, const Team<T, D>& team) {
#pragma unroll
  for (int n = 0; n < kAtOnce; ++n) there[n] = first + n * team.teams + team.mine < end;
}

// A few rows: several blocks for a (row, kv head), kRuns / blocks groups each. attention_few.cpp
void talker_attention_few(const AttentionArguments& arguments, bool stored, int shift, int blocks, void* stream);

// On tensor cores (QW_HAS_MMA): 16-bit elements, 128 of them a head. attention_mma.cpp
void talker_attention_mma(const AttentionArguments& arguments, bool stored, int shift, int blocks, int groups,
                          void* stream);

}  // namespace qwen3tts
