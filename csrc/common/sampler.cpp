#include "common/sampler.h"

#include "common/launch.h"
#include "common/sampler_parts.h"

namespace qwen3tts {
namespace {

// ---------------------------------------------------------------- loads

// Loads that stay where they are written, one after another: what a row needs is asked for together, and comes together. An
// ordinary load is moved to its use, and the next one waits for it.
__device__ __forceinline__ uint32_t load_now(const void* from) {
  uint32_t v;
#ifdef QWEN3TTS_CUDA
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from));
#else
  v = *static_cast<const uint32_t*>(from);
#endif
  return v;
}
__device__ __forceinline__ uint32_t load_byte_now(const void* from) {
  uint32_t v;
#ifdef QWEN3TTS_CUDA
  asm volatile("ld.relaxed.gpu.global.u8 %0, [%1];" : "=r"(v) : "l"(from));
#else
  v = *static_cast<const uint8_t*>(from);
#endif
  return v;
}
__device__ __forceinline__ SamplerRow load_now(const SamplerRow* from) {
  uint32_t words[sizeof(SamplerRow) / sizeof(uint32_t)];
#pragma unroll
  for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); ++i)
    words[i] = load_now(reinterpret_cast<const uint32_t*>(from) + i);
  SamplerRow row;
  memcpy(&row, words, sizeof(row));
  return row;
}

// Hides how a value came about. AMD's compiler would keep every comparison behind a lane's bits in scalar registers instead
// of the bits, more of them than there are; elsewhere this is nothing.
__device__ __forceinline__ void opaque(uint32_t& v) {
#ifdef __AMDGCN__
  asm volatile("" : "+v"(v));
#else
  static_cast<void>(v);
#endif
}
__device__ __forceinline__ float opaque(float v) {
  uint32_t bits = gpu::to_bits(v);
  opaque(bits);
  return gpu::from_bits(bits);
}
__device__ __forceinline__ bool bit(uint32_t v, int j) {
  opaque(v);
  return (v >> j & 1u) != 0;
}

// What a thread loads of its row; it owns logits threadIdx.x + j * kThreads.
template <int EACH> struct Loaded {
  float values[EACH];
  uint32_t present, seen, suppressed;  // one bit per logit
};

// Without branches: past the row it is the first logit's. place: the row's entry of `seen`.
template <int EACH> __device__ __forceinline__ Loaded<EACH> load(const SamplerArguments& a, int64_t r, int64_t place) {
  static_assert(EACH <= 32, "one bit per logit");
  Loaded<EACH> in{};
  const float* logits = a.logits + r * a.row_stride;
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    const int i = static_cast<int>(threadIdx.x) + j * kThreads;
    in.present |= (i < a.vocab ? 1u : 0u) << j;
    in.values[j] = gpu::from_bits(load_now(logits + (i < a.vocab ? i : 0)));
  }
  opaque(in.present);
  if (a.seen == nullptr && a.suppressed == nullptr) return in;
  // A mask that is not given is read from the logits, and not heeded.
  const void *seen = logits, *suppressed = logits;
  if (a.seen != nullptr) seen = a.seen + place * a.vocab;
  if (a.suppressed != nullptr) suppressed = a.suppressed;
  uint32_t masks[EACH][2];
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    const int i = (in.present >> j & 1u) != 0 ? static_cast<int>(threadIdx.x) + j * kThreads : 0;
    masks[j][0] = load_byte_now(static_cast<const uint8_t*>(seen) + i);
    masks[j][1] = load_byte_now(static_cast<const uint8_t*>(suppressed) + i);
  }
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    in.seen |= (masks[j][0] != 0 ? 1u : 0u) << j;
    in.suppressed |= (masks[j][1] != 0 ? 1u : 0u) << j;
  }
  opaque(in.seen);
  opaque(in.suppressed);
  if (a.seen == nullptr) in.seen = 0;
  if (a.suppressed == nullptr) in.suppressed = 0;
  return in;
}

// ---------------------------------------------------------------- pick

// Every v / divisor, rounded as a division rounds. Divisions come one after another, each with a branch; this is the same
// for all at once: a quotient from the reciprocal, corrected twice by its exact remainder, which is right while nothing
// overflows or is subnormal. Zeros, infinities and NaN stay what they are. For what is left, divisions.
template <int EACH> __device__ __forceinline__ void divide(float (&v)[EACH], float divisor) {
  const auto exponent = [](float x) { return gpu::to_bits(x) >> 23 & 0xffu; };
  const float reciprocal = gpu::div_rn(1.0f, divisor);
  uint32_t unusual = exponent(divisor) - 103u <= 48u ? 0u : 1u;  // 2^-24 and up, below 2^25
  float quotient[EACH];
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    float q = gpu::mul_rn(v[j], reciprocal);
    q = fmaf(fmaf(-q, divisor, v[j]), reciprocal, q);
    q = fmaf(fmaf(-q, divisor, v[j]), reciprocal, q);
    const bool inside = exponent(v[j]) - 67u <= 120u;  // 2^-60 and up, below 2^61
    quotient[j] = opaque(inside ? q : v[j]);
    unusual |= inside || v[j] == 0.0f || exponent(v[j]) == 255u ? 0u : 1u;
    opaque(unusual);
  }
#pragma unroll
  for (int j = 0; j < EACH; ++j) v[j] = unusual == 0 ? quotient[j] : v[j];
  if (unusual == 0) return;
#pragma unroll
  for (int j = 0; j < EACH; ++j) v[j] = gpu::div_rn(v[j], divisor);
}

// Penalty, suppression and temperature: logits become keys; what is beyond the row or NaN is absent. Returns status.
template <int EACH>
__device__ __forceinline__ uint32_t process(const SamplerArguments& a, const SamplerRow& row, int frame,
                                            const Loaded<EACH>& in, uint32_t (&keys)[EACH]) {
  const float penalty = row.repetition_penalty;
  const int too_early = frame < row.min_frames ? a.eos_id : -1;
  uint32_t status = 0;
  float v[EACH];
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    v[j] = in.values[j];
    if (bit(in.present, j) && !is_finite(v[j])) status |= kSamplerNotFinite;
  }
  if (in.seen != 0 && penalty != 1.0f) {
#pragma unroll
    for (int j = 0; j < EACH; ++j)
      if (bit(in.seen, j)) v[j] = v[j] < 0.0f ? gpu::mul_rn(v[j], penalty) : gpu::div_rn(v[j], penalty);
  }
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    const bool excluded = static_cast<int>(threadIdx.x) + j * kThreads == too_early || bit(in.suppressed, j);
    v[j] = opaque(excluded ? gpu::from_bits(0xff800000u) : v[j]);
  }
  divide<EACH>(v, row.do_sample != 0 ? row.temperature : 1.0f);
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    const bool present = bit(in.present, j);
    if (present && v[j] != v[j]) status |= kSamplerNoPick;
    keys[j] = present && v[j] == v[j] ? key_of(v[j]) : 0;
    opaque(status);
    opaque(keys[j]);
  }
  return status;
}

// Puts the keys that can be picked into s.entries, or into `kept` where they are too many, in an order that depends on
// nothing but the keys; returns how many.
template <int EACH>
__device__ __forceinline__ int keep_survivors(const uint32_t (&keys)[EACH], uint32_t edge, float largest,
                                              const Survivors& kept, Shared& s) {
  uint32_t here = 0;  // one bit per key
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    const bool survives = keys[j] != 0 && keys[j] >= edge && gpu::sub_rn(value_of(keys[j]), largest) > -17.0f;
    here |= (survives ? 1u : 0u) << j;
    opaque(here);
  }
  uint32_t place = scan_group(bits_in(here));
  if (gpu::group_lane() == gpu::kGroup - 1) s.count[gpu::group()] = place;
  place -= bits_in(here);
  sampler_barrier();
  uint32_t count = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    place += g < gpu::group() ? s.count[g] : 0u;
    count += s.count[g];
  }
  if (count <= kRanked) {
#pragma unroll
    for (int j = 0; j < EACH; ++j) {
      if (bit(here, j)) s.entries[place] = entry_of(keys[j], threadIdx.x + j * kThreads);
      place += here >> j & 1u;
    }
    return static_cast<int>(count);
  }
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    if (!bit(here, j)) continue;
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
  if (count <= kRanked) return draw_ranked(count, row.top_k, largest, top_p, word, s);
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

// ORDERED: in_order; a choice at run time would wait for the slot all the same.
template <int EACH, bool ORDERED>
__global__ void __launch_bounds__(kThreads, 2) sample_kernel(SamplerArguments a, int room) {
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
      if (!ORDERED) slot = static_cast<int32_t>(load_now(a.slots + r));
      const int64_t place = ORDERED ? r : slot < 0 ? 0 : slot;
      row = load_now(a.params + place);
      frame = static_cast<int>(load_now(a.frames + place));
      in = load<EACH>(a, r, place);
      if (ORDERED) slot = a.slots == nullptr ? r : static_cast<int32_t>(load_now(a.slots + r));
      if (slot < 0) return;
      frame += a.frame_offset;
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
// kernel ahead fills the card would gather on the few multiprocessors it leaves free. Beside a product of more than
// kMostApart rows there is no room for as much.
constexpr int kMostApart = 32;
size_t apart_bytes() {
#ifdef QWEN3TTS_CUDA
  const gpu::DeviceFacts& facts = gpu::device_facts();
  const int half = facts.processor_shared / 2;
  return half + static_cast<int>(sizeof(Shared)) <= facts.block_shared ? static_cast<size_t>(half) : 0;
#else
  return 0;
#endif
}

template <int EACH, bool ORDERED> void launch(const SamplerArguments& a, void* stream) {
  int room = kThreads;
  while (room < a.vocab) room *= 2;
  const size_t needed = static_cast<size_t>(room) * kEntryBytes;
  const size_t apart = a.rows > 1 && a.rows <= kMostApart ? apart_bytes() : 0;
  const size_t shared = needed > apart ? needed : apart;
  if (shared + sizeof(Shared) > 48 << 10) gpu::allow_shared(&sample_kernel<EACH, ORDERED>, shared);
  QW_LAUNCH_DEPENDENT((sample_kernel<EACH, ORDERED>), dim3(static_cast<unsigned>(a.rows)), dim3(kThreads), shared,
                      gpu::stream_of(stream), a, room);
}
template <int EACH> void launch(const SamplerArguments& a, void* stream) {
  a.in_order || a.slots == nullptr ? launch<EACH, true>(a, stream) : launch<EACH, false>(a, stream);
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
