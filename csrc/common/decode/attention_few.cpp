// talker_attention() for a few rows without tensor cores: a (row, kv head) is 2 to 16 blocks, a group of 32 lanes takes
// one run of positions, and its first 32 positions of it (fp32: 16) are in registers by the time the row's query comes.
// Registers are there for it, since few blocks run.
//
// Clusters. The blocks of a (row, kv head) are one, and the runs' results meet in the shared memory of the first. Without
// clusters, and for 16 blocks, in the workspace: see arrive().
//
// Registers of a thread, sm_90, fp32 of 128 elements, no spills: up to 226.
#include "common/cluster.h"
#include "common/decode/attention_runs.h"
#include "common/launch.h"

namespace qwen3tts {
namespace {

// Steps of kAtOnce positions of a team that are held in registers: of four heads, fewer fit.
template <int H> constexpr int kHeld = H == 4 ? 2 : 4;
constexpr int kAhead = 64;    // positions after those that a group asks for early

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
__global__ void __launch_bounds__(kMaxGroups * gpu::kGroup, 1)
    talker_few_kernel(AttentionArguments a, bool stored, int shift) {
  gpu::launch_dependents();
  QW_DYNAMIC_SHARED(float, shared);
  const Blocks blocks(shared);
  const Team<T, D> team(a.head_dim);
  const int kv_head = static_cast<int>(blockIdx.y), groups = static_cast<int>(blockDim.x) / gpu::kGroup;
  const int run = static_cast<int>(blockIdx.x) * groups + gpu::group();
  const int64_t row = blockIdx.z;
  const gpu::Vector q_weight = load_share<T>(a.q_norm, team.first), k_weight = load_share<T>(a.k_norm, team.first);

  const Row place(a, row, shift, kv_head);
  const PageMap& pages = place.pages;
  const int position = place.position, length = run_length(position), used = position / length + 1;
  const int stride = kAtOnce * team.teams, first = run * length;
  const int end = first + length < position ? first + length : position;  // an idle row's 0: none is read
  constexpr int steps = kHeld<H>;
  gpu::Vector keys[steps][kAtOnce], values[steps][kAtOnce];
  const auto fetch = [&](gpu::Vector (&to)[steps][kAtOnce], const void* pool, int from) {
    int page[steps];
#pragma unroll
    for (int s = 0; s < steps; ++s) page[s] = pages.page(from + s * stride < position ? from + s * stride : position);
#pragma unroll
    for (int s = 0; s < steps; ++s) load(to[s], pool, pages, page[s], from + s * stride, end, team);
  };
  blocks.wait();
  fetch(keys, a.pages.keys, first);
  fetch(values, a.pages.values, first);
  if (length > steps * stride) ask<T, D>(a, pages, first + steps * stride, end, team);
  const Angles angles = load_angles<T>(a.cos, a.sin, static_cast<int64_t>(position) * team.size + team.first);
  // The row's own key and value belong to the group whose run they end.
  const bool mine[1] = {run == used - 1 && team.mine == 0};
  const int64_t own = pages.at(position) + team.first;
  if (a.settled) gpu::wait_for_previous();
  if (place.idle) return;
  blocks.expect(Record{shared, H, team.size}.bytes(used));

  const T* qkv = static_cast<const T*>(a.qkv) + row * (a.heads + 2 * a.kv_heads) * team.size;
  const T* key_in = qkv + (a.heads + kv_head) * team.size;
  T* own_key = static_cast<T*>(a.pages.keys) + own;
  T* own_value = static_cast<T*>(a.pages.values) + own;
  Heads<T, D, H> heads;
  heads.load(qkv + kv_head * H * team.size, key_in, team);
  gpu::Vector value[1] = {gpu::load_weight(stored ? own_value : key_in + a.kv_heads * team.size + team.first, mine[0])};
  gpu::Vector key[1] = {heads.prepare(q_weight, k_weight, a.eps, angles, team)};
  if (stored) key[0] = gpu::load_weight(own_key, mine[0]);
  if (!mine[0]) key[0] = gpu::Vector{};

  Softmax<T, D, H> softmax;
  softmax.clear();
#pragma unroll 1
  for (int start = 0; start < length; start += steps * stride) {
    float score[steps][kAtOnce * H];
#pragma unroll
    for (int s = 0; s < steps; ++s)
      if (start + s * stride < length) softmax.scores(score[s], heads, keys[s], team);
    const int next = start + steps * stride;
    if (next < length) fetch(keys, a.pages.keys, first + next);
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      if (start + s * stride >= length) continue;
      bool there[kAtOnce];
      mark(there, first + start + s * stride, end, team);
      softmax.add(score[s], values[s], there);
    }
    if (next < length) fetch(values, a.pages.values, first + next);
  }
  softmax.add(heads, key, value, mine, team);
  softmax.join(team);

  T* out = static_cast<T*>(a.out) + (row * a.heads + kv_head * H) * team.size;
  const int64_t record_at = (row * a.kv_heads + kv_head) * Record::floats(H, team.size);
  const Record record{blocks.clustered ? shared : static_cast<float*>(a.workspace) + record_at, H, team.size};
  if (run < used) {
    if (blocks.clustered) write_run(record, run, softmax, team, [&](float* to, const auto& v) { blocks.box.send(to, v); });
    else write_run(record, run, softmax, team, Write{});
  }
  if (mine[0] && !stored) {  // nobody waits for these
    gpu::store_vector(own_key, key[0]);
    gpu::store_vector(own_value, value[0]);
  }
  if (blocks.clustered) {
    if (!blocks.first) return;
    blocks.box.wait();
  } else if (!arrive(record, gridDim.x)) {
    return;
  }
  merge_runs<T, D, H>(record, used, out, team);
}

}  // namespace

void talker_attention_few(const AttentionArguments& a, bool stored, int shift, int blocks, void* stream) {
  dispatch(a.dtype, a.head_dim, a.heads / a.kv_heads, [&](auto element, auto size, auto heads) {
    using T = decltype(element);
    constexpr int D = decltype(size)::value, H = decltype(heads)::value;
    if constexpr (!kOnTensorCores<T, D>) {
      const auto count = static_cast<unsigned>(blocks);
      const auto shared = static_cast<size_t>(Record::floats(H, a.head_dim)) * sizeof(float);
      const dim3 grid(count, static_cast<unsigned>(a.kv_heads), static_cast<unsigned>(a.rows));
      const dim3 block(static_cast<unsigned>(kRuns / blocks * gpu::kGroup));
      QW_LAUNCH_CLUSTER((talker_few_kernel<T, D, H>), count <= gpu::kMaxCluster ? count : 1, grid, block, shared,
                        gpu::stream_of(stream), a, stored, shift);
    }
  });
}

}  // namespace qwen3tts
