#include "common/sampler.h"

#include "common/gpu.h"
#include "common/launch.h"
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
constexpr int kEntryBytes = 6;  // of a survivor in shared memory: its key and its 16-bit index

// ---------------------------------------------------------------- one row

template <class T> __device__ __forceinline__ T larger(T a, T b) { return a > b ? a : b; }
template <class T> __device__ __forceinline__ T smaller(T a, T b) { return a < b ? a : b; }

struct Shared {
  u64 exchange[2][kThreads];  // partners farther than a group, written and read in turns
  u64 sums[kGroups];
  u64 total;                  // of the shortest prefix that top-p keeps
  u64 best[kGroups];
  uint32_t edge[kGroups];     // the group's ceil(k/8)-th maximum
  uint32_t top[kGroups];
  uint32_t count[kGroups];
  uint32_t status[kGroups];
  int winner;
};

// Survivors in dynamic shared memory: room for the power of two at or above vocab, and at least kThreads.
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
        __syncthreads();
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
      __syncthreads();
    }
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
  __syncthreads();
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
      if (next * kOne >= wanted && (i == 0 || running * kOne < wanted)) s.total = next;
      running = next;
    }
    __syncthreads();
    total = s.total;
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

// The lowest index of the largest key, in every thread.
template <int EACH> __device__ __forceinline__ int pick_largest(const uint32_t (&keys)[EACH], Shared& s) {
  u64 best = 0;
#pragma unroll
  for (int j = 0; j < EACH; ++j) best = larger(best, entry_of(keys[j], threadIdx.x + j * kThreads));
  for (int mask = gpu::kGroup / 2; mask > 0; mask /= 2) best = larger(best, gpu::shfl_xor(best, mask));
  if (gpu::group_lane() == 0) s.best[gpu::group()] = best;
  __syncthreads();
#pragma unroll
  for (int g = 0; g < kGroups; ++g) best = larger(best, s.best[g]);
  return static_cast<int>(index_of(best));
}

// What a thread loads of its row, all at once; it owns logits threadIdx.x + j * kThreads.
template <int EACH> struct Loaded {
  float values[EACH];
  uint32_t present, seen, suppressed;  // one bit per logit
};

template <int EACH> __device__ __forceinline__ Loaded<EACH> load(const SamplerArguments& a, int64_t r, int64_t slot) {
  static_assert(EACH <= 32, "one bit per logit");
  Loaded<EACH> in{};
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    const int i = static_cast<int>(threadIdx.x) + j * kThreads;
    if (i >= a.vocab) continue;
    in.present |= 1u << j;
    in.values[j] = a.logits[r * a.row_stride + i];
    if (a.seen != nullptr && a.seen[slot * a.vocab + i] != 0) in.seen |= 1u << j;
    if (a.suppressed != nullptr && a.suppressed[i] != 0) in.suppressed |= 1u << j;
  }
  return in;
}

// Penalty, suppression and temperature: logits become keys; what is beyond the row or NaN is absent. Returns status.
template <int EACH>
__device__ __forceinline__ uint32_t process(const SamplerArguments& a, const SamplerRow& row, int frame,
                                            const Loaded<EACH>& in, uint32_t (&keys)[EACH]) {
  const float penalty = row.repetition_penalty, temperature = row.do_sample != 0 ? row.temperature : 1.0f;
  const int too_early = frame < row.min_frames ? a.eos_id : -1;
  uint32_t status = 0;
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    const int i = static_cast<int>(threadIdx.x) + j * kThreads;
    keys[j] = 0;
    if ((in.present >> j & 1u) == 0) continue;
    float v = in.values[j];
    if (!is_finite(v)) status |= kSamplerNotFinite;
    if ((in.seen >> j & 1u) != 0 && penalty != 1.0f)
      v = v < 0.0f ? gpu::mul_rn(v, penalty) : gpu::div_rn(v, penalty);
    if (i == too_early || (in.suppressed >> j & 1u) != 0) v = gpu::from_bits(0xff800000u);
    v = gpu::div_rn(v, temperature);
    if (v != v) status |= kSamplerNoPick;
    else keys[j] = key_of(v);
  }
  return status;
}

// Puts the keys that can be picked into `kept`, in an order that depends on nothing but the keys; returns how many.
// The others become absent.
template <int EACH>
__device__ __forceinline__ int keep_survivors(uint32_t (&keys)[EACH], uint32_t edge, float largest,
                                              const Survivors& kept, Shared& s) {
  uint32_t mine = 0;
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    const bool survives = keys[j] >= edge && gpu::sub_rn(value_of(keys[j]), largest) > -17.0f;
    keys[j] = survives ? keys[j] : 0;
    mine += keys[j] != 0 ? 1u : 0u;
  }
  uint32_t place = scan_group(mine);
  if (gpu::group_lane() == gpu::kGroup - 1) s.count[gpu::group()] = place;
  place -= mine;
  __syncthreads();
  uint32_t count = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (g == gpu::group()) place += count;
    count += s.count[g];
  }
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    if (keys[j] == 0) continue;
    kept.keys[place] = keys[j];
    kept.indices[place++] = static_cast<uint16_t>(threadIdx.x + j * kThreads);
  }
  return static_cast<int>(count);
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
    __syncthreads();
    sort_shared(kept, size);
    return size / kThreads;
  }
  __syncthreads();
  const u64 entry = sort_threads(t < count ? entry_of(kept.keys[t], kept.indices[t]) : 0, size, s);
  if (t < count) {  // only this thread reads its place from here on, and it alone has read it before
    kept.keys[t] = static_cast<uint32_t>(entry >> 32);
    kept.indices[t] = static_cast<uint16_t>(index_of(entry));
  }
  return 1;
}

// The whole block copies the token's row of the table. `winner` is the token in one thread and -1 in the others.
__device__ __forceinline__ void gather(const SamplerArguments& a, int64_t r, int winner, Shared& s) {
  if (winner >= 0) s.winner = winner;
  __syncthreads();
  const uint4* from = reinterpret_cast<const uint4*>(static_cast<const char*>(a.table) + s.winner * a.row_bytes);
  uint4* to = reinterpret_cast<uint4*>(static_cast<char*>(a.gathered) + r * a.row_bytes);
  const int pieces = static_cast<int>(a.row_bytes / static_cast<int64_t>(sizeof(uint4)));
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kThreads) to[i] = from[i];
}

template <int EACH> __global__ void __launch_bounds__(kThreads) sample_kernel(SamplerArguments a, int room) {
  QW_DYNAMIC_SHARED(uint32_t, dynamic);
  __shared__ Shared s;
  const Survivors kept{dynamic, reinterpret_cast<uint16_t*>(dynamic + room)};
  gpu::launch_dependents();
  gpu::wait_for_previous();
  const int64_t r = blockIdx.x;
  const int64_t slot = a.slots == nullptr ? r : a.slots[r];
  if (slot < 0) return;
  const SamplerRow row = a.params[slot];
  const int frame = a.frames[slot] + a.frame_offset;
  const Loaded<EACH> in = load<EACH>(a, r, slot);
  const uint32_t word = gpu::random_word(row.seed, static_cast<uint32_t>(frame), static_cast<uint32_t>(a.codebook), row.part);
  uint32_t keys[EACH];
  uint32_t status = process(a, row, frame, in, keys);

  uint32_t most = 0;
#pragma unroll
  for (int j = 0; j < EACH; ++j) most = larger(most, keys[j]);
  most = sort_group(most);
  const int places = (row.top_k + kGroups - 1) / kGroups;  // how many maxima a group must have at or above the edge
  const bool bounded = row.top_k > 0 && places <= gpu::kGroup;
  for (int bit = 0; bit < 2; ++bit) status |= (gpu::ballot((status >> bit & 1u) != 0) != 0 ? 1u : 0u) << bit;
  if (gpu::group_lane() == 0) {
    s.top[gpu::group()] = most;
    s.status[gpu::group()] = status;
  }
  if (gpu::group_lane() == (bounded ? places - 1 : 0)) s.edge[gpu::group()] = bounded ? most : 0;
  __syncthreads();
  uint32_t edge = s.edge[0], top = s.top[0];
  status = s.status[0];
#pragma unroll
  for (int g = 1; g < kGroups; ++g) {
    edge = smaller(edge, s.edge[g]);
    top = larger(top, s.top[g]);
    status |= s.status[g];
  }
  const float largest = value_of(top);
  if (row.do_sample != 0 && (top == 0 || !is_finite(largest))) status |= kSamplerNoPick;

  // All threads go the same way: every condition below is the row's.
  int winner = -1;
  if ((status & kSamplerNoPick) != 0) {
    winner = threadIdx.x == 0 ? 0 : -1;
  } else if (row.do_sample == 0) {
    const int best = pick_largest(keys, s);
    winner = threadIdx.x == 0 ? best : -1;
  } else {
    const int count = keep_survivors(keys, edge, largest, kept, s);
    const int each = sort_survivors(kept, count, s);
    winner = draw(kept, row.top_k > 0 ? smaller(count, row.top_k) : count, each, largest,
                  static_cast<uint32_t>(row.top_p), word, s);
  }
  if (winner >= 0) {
    if (a.picks != nullptr) a.picks[slot] = winner;
    if (a.codes != nullptr) a.codes[slot * a.code_stride] = winner;
    if (a.seen != nullptr && (status & kSamplerNoPick) == 0) a.seen[slot * a.vocab + winner] = 1;
    if (a.status != nullptr && status != 0) a.status[slot] |= static_cast<int32_t>(status);
  }
  if (a.table != nullptr) gather(a, r, winner, s);
}

__global__ void weights_kernel(const float* x, std::int64_t* weights, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
    weights[i] = gpu::exp_weight(x[i]);
}

// ---------------------------------------------------------------- launches

// More than 48 KB of shared memory must be allowed on NVIDIA; AMD gives 64 KB to every block.
template <class Kernel> void allow_shared(Kernel* kernel, int bytes) {
#if defined(QWEN3TTS_CUDA)
  gpu::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "sampler");
#elif defined(__HIP_PLATFORM_NVIDIA__)
  gpu::check(hipFuncSetAttribute(reinterpret_cast<const void*>(kernel), hipFuncAttributeMaxDynamicSharedMemorySize,
                                 bytes),
             "sampler");
#else
  static_cast<void>(kernel);
  static_cast<void>(bytes);
#endif
}

template <int EACH> void launch(const SamplerArguments& a, void* stream) {
  int room = kThreads;
  while (room < a.vocab) room *= 2;
  if (EACH == kSamplerMaxVocab / kThreads) allow_shared(&sample_kernel<EACH>, room * kEntryBytes);
  QW_LAUNCH_DEPENDENT((sample_kernel<EACH>), dim3(static_cast<unsigned>(a.rows)), dim3(kThreads), room * kEntryBytes,
                      gpu::stream_of(stream), a, room);
}

bool in_16_bytes(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % sizeof(uint4) == 0; }

}  // namespace

void sample(const SamplerArguments& a, void* stream) {
  if (a.rows < 0 || a.vocab < 1 || a.vocab > kSamplerMaxVocab || a.row_stride < 0)
    throw std::invalid_argument("sample: " + std::to_string(a.rows) + " rows of " + std::to_string(a.vocab) +
                                " logits at distance " + std::to_string(a.row_stride) + ", expected rows >= 0, 1 to " +
                                std::to_string(kSamplerMaxVocab) + " logits and a distance >= 0");
  if (a.eos_id < -1 || a.eos_id >= a.vocab)
    throw std::invalid_argument("sample: end token " + std::to_string(a.eos_id) + ", expected -1 (none) or one of " +
                                std::to_string(a.vocab));
  if ((a.table == nullptr) != (a.gathered == nullptr) ||
      (a.table != nullptr && (a.row_bytes < 1 || a.row_bytes % static_cast<std::int64_t>(sizeof(uint4)) != 0 ||
                              !in_16_bytes(a.table) || !in_16_bytes(a.gathered))))
    throw std::invalid_argument("sample: a table and where to gather belong together, with rows of " +
                                std::to_string(a.row_bytes) + " bytes; all three are multiples of 16");
  if (a.rows == 0) return;
  if (a.picks == nullptr && a.codes == nullptr)
    throw std::invalid_argument("sample: picks and codes are both null, expected one of them or both");
  if (a.vocab <= 8 * kThreads) return launch<8>(a, stream);
  if (a.vocab <= 12 * kThreads) return launch<12>(a, stream);
  launch<kSamplerMaxVocab / kThreads>(a, stream);
}

void sampler_weights(const float* x, std::int64_t* weights, std::int64_t count, void* stream) {
  if (count < 0) throw std::invalid_argument("sampler_weights: count " + std::to_string(count) + ", expected >= 0");
  if (count == 0) return;
  const std::int64_t blocks = (count + kThreads - 1) / kThreads;
  QW_LAUNCH(weights_kernel, dim3(static_cast<unsigned>(blocks < 512 ? blocks : 512)), dim3(kThreads), 0,
            gpu::stream_of(stream), x, weights, count);
}

}  // namespace qwen3tts
