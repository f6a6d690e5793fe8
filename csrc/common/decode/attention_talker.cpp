// talker_attention(): what goes where, and the kernel for many rows without tensor cores: a (row, kv head) is one block,
// whose groups take its runs of positions in turns; the runs' results meet in shared memory. A few rows go to
// attention_few.cpp, 16-bit elements to attention_mma.cpp where they can.
//
// Registers of a thread, sm_90, fp32 of 128 elements, no spills: 105, so that two blocks of 256 threads share a
// multiprocessor (4 heads per kv head: 146).
#include "common/decode/attention_runs.h"
#include "common/launch.h"

namespace qwen3tts {
namespace {

// By measurement on a card of 132 multiprocessors (PERF_NOTES.md).
constexpr int kManyBlocks = 128;             // no more blocks than this while a (row, kv head) has several
constexpr int kMostBlocks = 4;               // by default: a cluster
constexpr int kManyGroups = 1024;            // on tensor cores

template <class T> struct Positions {
  gpu::Vector keys[kAtOnce], values[kAtOnce];
  bool there[kAtOnce];

  template <int D>
  __device__ __forceinline__ void load(const AttentionArguments& a, const PageMap& pages, int first, int end,
                                       const Team<T, D>& team) {
    const int page = pages.page(first < end ? first : 0);
    qwen3tts::load(keys, a.pages.keys, pages, page, first, end, team);
    qwen3tts::load(values, a.pages.values, pages, page, first, end, team);
    mark(there, first, end, team);
  }
};

// Grid: kv heads, rows. Everything that decides which steps are taken is the same for all
// groups of a block, so that waves of two groups stay together.
template <class T, int D, int H>
__global__ void __launch_bounds__(kMaxGroups * gpu::kGroup, D == 128 && H <= 2 ? 2 : 1)
    talker_kernel(AttentionArguments a, bool stored, int shift) {
  gpu::launch_dependents();
  const Team<T, D> team(a.head_dim);
  const int kv_head = static_cast<int>(blockIdx.x);
  const int64_t row = blockIdx.y;
  const gpu::Vector q_weight = load_share<T>(a.q_norm, team.first), k_weight = load_share<T>(a.k_norm, team.first);

  const Row place(a, row, shift, kv_head);
  const PageMap& pages = place.pages;
  const int position = place.position, length = run_length(position), used = position / length + 1;
  const int stride = kAtOnce * team.teams;
  int run = gpu::group();
  const auto end_of = [&](int r) { return (r + 1) * length < position ? (r + 1) * length : position; };
  Positions<T> here;  // position 0 has none before it: an idle row reads none
  here.load(a, pages, run * length, end_of(run), team);
  const Angles angles = load_angles<T>(a.cos, a.sin, static_cast<int64_t>(position) * team.size + team.first);
  if (a.settled) gpu::wait_for_previous();
  if (place.idle) return;

  const T* qkv = static_cast<const T*>(a.qkv) + row * (a.heads + 2 * a.kv_heads) * team.size;
  const T* key_in = qkv + (a.heads + kv_head) * team.size;
  Heads<T, D, H> heads;
  heads.load(qkv + kv_head * H * team.size, key_in, team);
  // The row's own key and value belong to the group whose run they end.
  const bool mine = (used - 1) % kMaxGroups == gpu::group() && team.mine == 0;
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
  const Record record{shared, H, team.size};
#pragma unroll 1
  for (int round = 0; round < used; round += kMaxGroups) {
    Softmax<T, D, H> softmax;
    softmax.clear();
#pragma unroll 1
    for (int step = 0; step < length; step += stride) {
      const bool next_run = step + stride >= length;
      const int next = next_run ? run + kMaxGroups : run;
      const int from = next_run ? next * length : next * length + step + stride;
      Positions<T> ahead;
      ahead.load(a, pages, from, end_of(next), team);
      softmax.add(heads, here.keys, here.values, here.there, team);
      here = ahead;
    }
    const bool newest_here[1] = {run == used - 1 && team.mine == 0};
    const gpu::Vector last_key[1] = {newest[0][threadIdx.x]}, last_value[1] = {newest[1][threadIdx.x]};
    softmax.add(heads, last_key, last_value, newest_here, team);
    softmax.join(team);
    if (run < used) write_run(record, run, softmax, team, Write{});
    run += kMaxGroups;
  }

  __syncthreads();
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
  while (blocks < kMostBlocks && static_cast<int64_t>(rows) * kv_heads * blocks * 2 <= kManyBlocks) blocks *= 2;
  return blocks;
}

#if QW_HAS_MMA
// Groups of each block on tensor cores: up to one for every run, while all have their registers at the same time.
int groups_for(const AttentionArguments& a, int blocks) {
  int groups = kRuns / blocks < kMaxGroups ? kRuns / blocks : kMaxGroups;
  while (groups > 1 && static_cast<int64_t>(a.rows) * a.kv_heads * blocks * groups > kManyGroups) groups /= 2;
  return groups;
}
#endif

}  // namespace

std::int64_t attention_workspace_bytes(std::int32_t rows, std::int32_t heads, std::int32_t kv_heads, std::int32_t head_dim,
                                       std::int32_t blocks) {
  const char* what = "attention_workspace_bytes";
  check_heads(what, rows, heads, kv_heads, head_dim);
  if (blocks_for(what, 1, 1, blocks) == 1) return 0;
  // By the number of rows: past kManyBlocks / 2 (row, kv head), one block each, without a record.
  int64_t records = static_cast<int64_t>(rows) * kv_heads;
  if (blocks == 0 && records > kManyBlocks / 2) records = kManyBlocks / 2;
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
#if QW_HAS_MMA
  if (a.dtype != DType::f32 && a.head_dim == 128)
    return talker_attention_mma(a, stored, shift, blocks, groups_for(a, blocks), stream);
#endif
  if (blocks > 1) return talker_attention_few(a, stored, shift, blocks, stream);
  dispatch(a.dtype, a.head_dim, a.heads / a.kv_heads, [&](auto element, auto size, auto heads) {
    using T = decltype(element);
    constexpr int D = decltype(size)::value, H = decltype(heads)::value;
    if constexpr (!kOnTensorCores<T, D>) {
      const auto shared = static_cast<size_t>(Record::floats(H, a.head_dim)) * sizeof(float);
      const dim3 grid(static_cast<unsigned>(a.kv_heads), static_cast<unsigned>(a.rows));
      QW_LAUNCH_DEPENDENT((talker_kernel<T, D, H>), grid, dim3(kMaxGroups * gpu::kGroup), shared, gpu::stream_of(stream), a,
                          stored, shift);
    }
  });
}

}  // namespace qwen3tts
