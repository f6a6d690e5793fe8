#include "common/sampler.h"

#include "common/launch.h"
#include "common/sampler_parts.h"

namespace qwen3tts {
namespace {

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
  sampler_barrier();
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

// The whole block copies the token's row of the table. `winner` is the token in one thread and -1 in the others.
__device__ __forceinline__ void gather(const SamplerArguments& a, int64_t r, int winner, Shared& s) {
  if (winner >= 0) s.winner = winner;
  sampler_barrier();
  const uint4* from = reinterpret_cast<const uint4*>(static_cast<const char*>(a.table) + s.winner * a.row_bytes);
  uint4* to = reinterpret_cast<uint4*>(static_cast<char*>(a.gathered) + r * a.row_bytes);
  const int pieces = static_cast<int>(a.row_bytes / static_cast<int64_t>(sizeof(uint4)));
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kThreads) to[i] = from[i];
}

// The token in one thread, -1 in the others.
template <int EACH>
__device__ __forceinline__ int pick(const SamplerArguments& a, const SamplerRow& row, int frame, const Loaded<EACH>& in,
                                    const Survivors& kept, Shared& s, uint32_t& status) {
  const uint32_t word =
      gpu::random_word(row.seed, static_cast<uint32_t>(frame), static_cast<uint32_t>(a.codebook), row.part);
  uint32_t keys[EACH];
  status = process(a, row, frame, in, keys);

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
  sampler_barrier();
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
  if ((status & kSamplerNoPick) != 0) return threadIdx.x == 0 ? 0 : -1;
  if (row.do_sample == 0) {
    const int best = pick_largest(keys, s);
    return threadIdx.x == 0 ? best : -1;
  }
  const int count = keep_survivors(keys, edge, largest, kept, s);
  const uint32_t top_p = static_cast<uint32_t>(row.top_p);
  if (count <= kRanked) return draw_ranked(kept, count, row.top_k, largest, top_p, word, s);
  const int each = sort_survivors(kept, count, s);
  return draw(kept, row.top_k > 0 ? smaller(count, row.top_k) : count, each, largest, top_p, word, s);
}

// A row that takes the usual way through pick().
template <int EACH> __device__ __forceinline__ void make_up(SamplerRow& row, Loaded<EACH>& in) {
  row.temperature = row.repetition_penalty = 1.0f;
  row.top_k = 50;
  row.top_p = static_cast<int32_t>(kOne / 2);
  row.do_sample = 1;
#pragma unroll
  for (int j = 0; j < EACH; ++j)
    in.values[j] = static_cast<float>(threadIdx.x * 37 % kThreads) * 0.01f - static_cast<float>(j);
}

template <int EACH> __global__ void __launch_bounds__(kThreads) sample_kernel(SamplerArguments a, int room) {
  QW_DYNAMIC_SHARED(uint32_t, dynamic);
  __shared__ Shared s;
  const Survivors kept{dynamic, reinterpret_cast<uint16_t*>(dynamic + room)};
  gpu::launch_dependents();
  const int64_t r = blockIdx.x;
  int64_t slot = 0;
  uint32_t status = 0;
  int winner = -1;
  // Twice where there is time before the wait: a made-up row first, so that the instructions are at hand then. They are
  // many, each is executed once, and fetching them takes longer than what they do.
#pragma unroll 1
  for (bool real = !gpu::kStartsEarly;; real = true) {
    SamplerRow row{};
    Loaded<EACH> in{};
    int frame = 0;
    if (real) {
      gpu::wait_for_previous();
      slot = a.slots == nullptr ? r : a.slots[r];
      if (slot < 0) return;
      row = a.params[slot];
      frame = a.frames[slot] + a.frame_offset;
      in = load<EACH>(a, r, slot);
    } else {
      make_up(row, in);
    }
    winner = pick(a, row, frame, in, kept, s, status);
    if (real) break;
    sampler_barrier();  // all have read what is written over
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

// Shared memory of which a multiprocessor has no room for two, so that rows do not share one: blocks that start while the
// kernel ahead fills the card would gather on the few multiprocessors it leaves free. 0: as it comes. Beside a product of
// more than kMostApart rows there is no room for as much.
constexpr int kMostApart = 32;
#ifndef QW_SAMPLER_APART
#define QW_SAMPLER_APART 1
#endif
size_t apart_bytes() {
#ifdef QWEN3TTS_CUDA
  int device = 0, each = 0, most = 0;
  gpu::check(cudaGetDevice(&device), "sampler");
  gpu::check(cudaDeviceGetAttribute(&each, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device), "sampler");
  gpu::check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "sampler");
  return QW_SAMPLER_APART && each / 2 + static_cast<int>(sizeof(Shared)) <= most ? static_cast<size_t>(each / 2) : 0;
#else
  return 0;
#endif
}

template <int EACH> void launch(const SamplerArguments& a, void* stream) {
  int room = kThreads;
  while (room < a.vocab) room *= 2;
  const size_t needed = static_cast<size_t>(room) * kEntryBytes;
  const size_t apart = a.rows > 1 && a.rows <= kMostApart ? apart_bytes() : 0;
  const size_t shared = needed > apart ? needed : apart;
  if (shared + sizeof(Shared) > 48 << 10) gpu::allow_shared(&sample_kernel<EACH>, shared);
  QW_LAUNCH_DEPENDENT((sample_kernel<EACH>), dim3(static_cast<unsigned>(a.rows)), dim3(kThreads), shared,
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
