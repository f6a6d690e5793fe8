// talker_attention(): a (row, kv head) is 16 runs of positions, one group of 32 lanes each, in one block or up to 16.
//
// One block: the runs' results meet in shared memory. Several: in the workspace, one record per (row, kv head), and the
// block that comes last adds them up; nobody waits for anybody. Why that is right:
//   every thread writes its results, fences, and meets its block at a barrier; only then does the block's first thread
//   raise the record's counter. Who sees blocks - 1 there is last: all other blocks' results were written before their
//   fences. It tells its block at another barrier, and all threads fence before they read.
//   The last block puts the counter back to zero. Nobody touches it again before the next launch that shares the
//   workspace, which does so behind its wait_for_previous(), when this kernel has ended. A record's place depends on the
//   shapes alone, so launches with any number of rows may share a workspace.
//
// Registers of a thread, sm_90, 128 elements, no spills: 2 heads per kv head in bf16 (the released models) 128, so that
// two blocks of 256 threads share a multiprocessor.
#include "common/decode/attention_parts.h"
#include "common/launch.h"

namespace qwen3tts {
namespace {

constexpr int kRuns = kAttentionRuns;
constexpr int kMaxGroups = 8;    // of a block: 256 threads, so that a thread may have all the registers it wants
constexpr int kAtOnce = 4;       // positions of a team that are loaded and computed together
constexpr int kEnoughBlocks = 64;
constexpr int kAhead = 64;       // positions that a group asks for early, where few groups run
constexpr int kPiece = 4;        // elements of the result that a thread adds up at a time

// Positions in each of the runs that 0..p are cut into.
__device__ __forceinline__ int run_length(int p) { return ((p + kRuns) / kRuns + 7) / 8 * 8; }

// ---------------------------------------------------------------- results of the runs

// Floats: counter and padding, [run][head] of (largest, total), [run][head][head_dim] of sums.
struct Record {
  float* base;
  int heads, head_dim;

  __host__ __device__ static int64_t floats(int heads, int head_dim) {
    return kPiece + static_cast<int64_t>(kRuns) * heads * (2 + head_dim);
  }
  __device__ __forceinline__ unsigned* counter() const { return reinterpret_cast<unsigned*>(base); }
  __device__ __forceinline__ float2* state(int run, int h) const {
    return reinterpret_cast<float2*>(base + kPiece) + run * heads + h;
  }
  __device__ __forceinline__ float* sums(int run, int h) const {
    return base + kPiece + 2 * kRuns * heads + (run * heads + h) * head_dim;
  }
};

// The group's joined sums; the teams share the heads.
template <class T, int D, int H>
__device__ __forceinline__ void write_run(const Record& record, int run, const Softmax<T, D, H>& s,
                                          const Team<T, D>& team) {
#pragma unroll
  for (int h = 0; h < H; ++h) {
    if (team.mine != h % team.teams) continue;
    float* sums = record.sums(run, h) + team.first;
#pragma unroll
    for (int i = 0; i < kShare<T>; i += 4)
      *reinterpret_cast<float4*>(sums + i) =
          make_float4(s.out[h][i], s.out[h][i + 1], s.out[h][i + 2], s.out[h][i + 3]);
    if (team.first == 0) *record.state(run, h) = make_float2(s.largest[h], s.total[h]);
  }
}

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
#pragma unroll
    for (int i = 0; i < kPiece; ++i) out[at + i] = gpu::narrow<T>(gpu::div_rn(v[i], total));
  }
}

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

template <class T> struct Positions {
  gpu::Vector keys[kAtOnce], values[kAtOnce];
  bool there[kAtOnce];
};

// Positions first, first + 1, ... up to `end`, team after team. What is not there is zero, and not read.
template <class T, int D>
__device__ __forceinline__ void load(Positions<T>& to, const AttentionArguments& a, const PageMap& pages, int first,
                                     int end, const Team<T, D>& team) {
  const T* keys = static_cast<const T*>(a.pages.keys) + team.first;
  const T* values = static_cast<const T*>(a.pages.values) + team.first;
  // With 128 elements these are at most 8 positions, aligned: of one page, one after another.
  const bool together = D == 128;
  const int64_t start = together && first < end ? pages.at(first) + team.mine * team.size : 0;
#pragma unroll
  for (int n = 0; n < kAtOnce; ++n) {
    const int position = first + n * team.teams + team.mine;
    to.there[n] = position < end;
    const int64_t at = together ? start + n * team.teams * team.size : to.there[n] ? pages.at(position) : 0;
    to.keys[n] = gpu::load_weight(keys + at, to.there[n]);
    to.values[n] = gpu::load_weight(values + at, to.there[n]);
  }
}

// Asks for what the group will load next: positions first .. end - 1, kAhead at most.
template <class T, int D>
__device__ __forceinline__ void ask(const AttentionArguments& a, const PageMap& pages, int first, int end,
                                    const Team<T, D>& team) {
  constexpr int line = 128 / static_cast<int>(sizeof(T));  // elements that come together
  if (end > first + kAhead) end = first + kAhead;
  for (int position = first + gpu::group_lane(); position < end; position += gpu::kGroup) {
    const int64_t at = pages.at(position);
    for (int element = 0; element < team.size; element += line) {
      gpu::prefetch(static_cast<const T*>(a.pages.keys) + at + element);
      gpu::prefetch(static_cast<const T*>(a.pages.values) + at + element);
    }
  }
}

// Grid: blocks of a (row, kv head), kv heads, rows. Everything that decides which steps are taken is the same for all
// groups of a block, so that waves of two groups stay together.
template <class T, int D, int H>
__global__ void __launch_bounds__(kMaxGroups * gpu::kGroup) talker_kernel(AttentionArguments a, bool stored, int shift) {
  gpu::launch_dependents();
  const Team<T, D> team(a.head_dim);
  const int kv_head = static_cast<int>(blockIdx.y), groups = static_cast<int>(blockDim.x) / gpu::kGroup;
  const int64_t row = blockIdx.z;
  const int first_run = static_cast<int>(blockIdx.x) * groups, runs_a_round = static_cast<int>(gridDim.x) * groups;
  const gpu::Vector q_weight = load_share<T>(a.q_norm, team.first), k_weight = load_share<T>(a.k_norm, team.first);

  if (!a.settled) gpu::wait_for_previous();
  const int slot = a.slot[row], given = a.position[row];
  const bool idle = slot < 0;
  const int position = idle ? 0 : given, length = run_length(position), used = position / length + 1;
  const PageMap pages = page_map(a, idle ? 0 : slot, shift, kv_head);
  const int stride = kAtOnce * team.teams;
  int run = first_run + gpu::group();
  const auto end_of = [&](int r) { return (r + 1) * length < position ? (r + 1) * length : position; };
  Positions<T> here;  // position 0 has none before it: an idle row reads none
  load<T, D>(here, a, pages, run * length, end_of(run), team);
  if (gridDim.x > 1) ask<T, D>(a, pages, run * length + stride, end_of(run), team);
  const Angles angles = load_angles<T>(a.cos, a.sin, static_cast<int64_t>(position) * team.size + team.first);
  if (a.settled) gpu::wait_for_previous();
  if (idle) return;

  const T* qkv = static_cast<const T*>(a.qkv) + row * (a.heads + 2 * a.kv_heads) * team.size;
  const T* key_in = qkv + (a.heads + kv_head) * team.size;
  Heads<T, D, H> heads;
  heads.load(qkv + kv_head * H * team.size, key_in, team);
  // The row's own key and value belong to the group whose run they end.
  const bool mine = (used - 1) % runs_a_round == first_run + gpu::group() && team.mine == 0;
  const int64_t own = mine ? pages.at(position) + team.first : 0;
  T* keys = static_cast<T*>(a.pages.keys) + own;
  T* values = static_cast<T*>(a.pages.values) + own;
  gpu::Vector value = stored ? gpu::load_weight(values, mine)
                             : gpu::load_vector(key_in + a.kv_heads * team.size + team.first);
  gpu::Vector key = heads.prepare(q_weight, k_weight, a.eps, angles, team);
  if (stored) {
    key = gpu::load_weight(keys, mine);
  } else if (mine) {
    gpu::store_vector(keys, key);
    gpu::store_vector(values, value);
  }
  // Every thread its own, until its group is through with the run: registers are short in the loop.
  __shared__ gpu::Vector newest[2][kMaxGroups * gpu::kGroup];
  newest[0][threadIdx.x] = mine ? key : gpu::Vector{};
  newest[1][threadIdx.x] = mine ? value : gpu::Vector{};

  QW_DYNAMIC_SHARED(float, shared);
  const int64_t record_at = (row * a.kv_heads + kv_head) * Record::floats(H, team.size);
  const Record record{gridDim.x == 1 ? shared : static_cast<float*>(a.workspace) + record_at, H, team.size};
#pragma unroll 1
  for (int round = first_run; round < used; round += runs_a_round) {
    Softmax<T, D, H> softmax;
    softmax.clear();
#pragma unroll 1
    for (int step = 0; step < length; step += stride) {
      const bool next_run = step + stride >= length;
      const int next = next_run ? run + runs_a_round : run;
      const int from = next_run ? next * length : next * length + step + stride;
      Positions<T> ahead;
      load<T, D>(ahead, a, pages, from, end_of(next), team);
      softmax.add(heads, here.keys, here.values, here.there, team);
      here = ahead;
    }
    const bool newest_here[1] = {run == used - 1 && team.mine == 0};
    const gpu::Vector last_key[1] = {newest[0][threadIdx.x]}, last_value[1] = {newest[1][threadIdx.x]};
    softmax.add(heads, last_key, last_value, newest_here, team);
    softmax.join(team);
    if (run < used) write_run(record, run, softmax, team);
    run += runs_a_round;
  }

  if (gridDim.x > 1) {
    if (!arrive(record, gridDim.x)) return;
  } else {
    __syncthreads();
  }
  merge_runs<T, D, H>(record, used, static_cast<T*>(a.out) + (row * a.heads + kv_head * H) * team.size, team);
}

// ---------------------------------------------------------------- launch

int blocks_for(const char* what, std::int32_t rows, std::int32_t kv_heads, std::int32_t wanted) {
  if (wanted != 0) {
    if (wanted < 1 || wanted > kRuns || (wanted & (wanted - 1)) != 0)
      throw std::invalid_argument(std::string(what) + ": " + std::to_string(wanted) +
                                  " blocks for a kv head, expected 1, 2, 4, 8, 16 or 0 (by the number of rows)");
    return wanted;
  }
  int blocks = 1;
  while (blocks < kRuns && static_cast<int64_t>(rows) * kv_heads * blocks < kEnoughBlocks) blocks *= 2;
  return blocks;
}

}  // namespace

std::int64_t attention_workspace_bytes(std::int32_t rows, std::int32_t heads, std::int32_t kv_heads, std::int32_t head_dim,
                                       std::int32_t blocks) {
  const char* what = "attention_workspace_bytes";
  check_heads(what, rows, heads, kv_heads, head_dim);
  if (blocks_for(what, 1, 1, blocks) == 1) return 0;
  // By the number of rows: from kEnoughBlocks (row, kv head) on, one block each, without a record.
  int64_t records = static_cast<int64_t>(rows) * kv_heads;
  if (blocks == 0 && records >= kEnoughBlocks) records = kEnoughBlocks - 1;
  return records * Record::floats(heads / kv_heads, head_dim) * static_cast<int64_t>(sizeof(float));
}

void talker_attention(const AttentionArguments& a, bool stored, void* stream) {
  const char* what = "talker_attention";
  check_heads(what, a.rows, a.heads, a.kv_heads, a.head_dim);
  const int shift = page_shift(what, a.pages), blocks = blocks_for(what, a.rows, a.kv_heads, a.blocks);
  if (stored && a.settled)
    throw std::invalid_argument(std::string(what) + ": stored keys and values were written by the launch ahead, or soon "
                                "before: they are not settled");
  if (a.rows == 0) return;
  const void* pointers[] = {a.qkv, a.q_norm, a.k_norm, a.cos, a.sin, a.pages.keys, a.pages.values, a.out, a.workspace};
  check_aligned(what, pointers, blocks == 1 ? 8 : 9);
  const int groups = kRuns / blocks < kMaxGroups ? kRuns / blocks : kMaxGroups;
  dispatch(a.dtype, a.head_dim, a.heads / a.kv_heads, [&](auto element, auto size, auto heads) {
    using T = decltype(element);
    constexpr int D = decltype(size)::value, H = decltype(heads)::value;
    const auto shared = blocks == 1 ? static_cast<size_t>(Record::floats(H, a.head_dim)) * sizeof(float) : size_t{0};
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(a.kv_heads), static_cast<unsigned>(a.rows));
    const dim3 block(static_cast<unsigned>(groups * gpu::kGroup));
    QW_LAUNCH_DEPENDENT((talker_kernel<T, D, H>), grid, block, shared, gpu::stream_of(stream), a, stored, shift);
  });
}

}  // namespace qwen3tts
