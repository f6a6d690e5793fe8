// The persistent kernel of the code predictor: persistent_predictor() of common/decode/persistent.h.
//
// Block b of 128 owns rows 32 b .. of q|k|v, 8 b .. of o and down, 24 b .. of gate and up, 16 b .. of a head. Its warps:
//   0 .. 7  consumers: warp w makes slice w of every sum, is kv head w in the attention, and all sample
//   8       finishes: adds the slices, norms, rounds, sends
//   9       fills the ring of weights
//   10      tells the other blocks of new keys and values, and waits for theirs
//
// A layer is four exchanges:
//   consumers  x -> slices of norm(x) W_q|k|v                 finisher  -> qkv
//   consumers  qkv -> attention of all heads -> slices of W_o  finisher  + x -> attended
//   consumers  attended -> slices of norm(x) W_gate|up         finisher  silu, * -> gated
//   consumers  gated -> slices of W_down                       finisher  + x -> x
//
// Registers: 168 (all that 11 warps can have), no spills (sm_90). Shared memory: about 200 KB; what is
// left serves as first-level cache.
#include "cuda/persistent_attention.h"
#include "cuda/persistent_sampler.h"

#include "common/launch.h"

#include <string>

namespace qwen3tts {
namespace persistent {

constexpr int kFinisher = kConsumerWarps, kFiller = kFinisher + 1, kKeeper = kFiller + 1, kWarps = kKeeper + 1;
constexpr int kBlockThreads = kWarps * 32;

using GatedSlices = gpu::Vector[kColumns][kConsumerWarps][Shape::intermediate / 8 / kConsumerWarps];

struct alignas(128) BlockMemory {
  unsigned char ring[kStages * kStageBytes];
  gpu::Vector norms[2 * Shape::layers + 1][Shape::hidden / 8];  // input and post norm of each layer, final norm
  HeadTables tables;
  union {
    struct {
      gpu::Vector attended[kColumns][Shape::heads * Shape::head_dim / 8];
      GatedSlices gated;
    };
    SlowSampling slow;  // between passes
  };
  Partial partial[2];
  Sampling sampling;
  uint64_t full[kStages], empty[kStages], done[2], received[2], token, made, stored;
  uint32_t stuck;
};

// Uses of the exchange, as consumers and finisher count them alike.
struct Use {
  bool constant;
  __device__ __forceinline__ uint32_t layer(int count) const {  // count: layers of all passes before
    return pair_tag(tag_of(count >> 1, count >= Shape::passes * Shape::layers - 2, constant));
  }
  __device__ __forceinline__ uint32_t extra(int count) const {  // of the column that pass 0 alone has
    return pair_tag(tag_of(count >> 1, count >= Shape::layers - 2, constant));
  }
  __device__ __forceinline__ uint32_t logits(int pass) const {
    return tag_of(pass >> 1, pass >= Shape::passes - 2, constant);
  }
};

__device__ __forceinline__ void load_tables(const PersistentArguments& a, BlockMemory& m) {
  const int thread = static_cast<int>(threadIdx.x);
  constexpr int pieces = Shape::hidden / 8;
  for (int i = thread; i < (2 * Shape::layers + 1) * pieces; i += kBlockThreads) {
    const int norm = i / pieces;
    const LayerWeights& layer = a.layers[norm / 2 < Shape::layers ? norm / 2 : 0];
    const void* from = norm == 2 * Shape::layers ? a.norm : norm % 2 == 0 ? layer.input_norm : layer.post_norm;
    m.norms[norm][i % pieces] = static_cast<const gpu::Vector*>(from)[i % pieces];
  }
  for (int i = thread; i < Shape::layers * 16; i += kBlockThreads) {
    m.tables.q_norm[i / 16][i % 16] = static_cast<const gpu::Vector*>(a.layers[i / 16].q_norm)[i % 16];
    m.tables.k_norm[i / 16][i % 16] = static_cast<const gpu::Vector*>(a.layers[i / 16].k_norm)[i % 16];
  }
  for (int i = thread; i < kPositions * 16; i += kBlockThreads) {
    m.tables.cos[i / 16][i % 16] = static_cast<const gpu::Vector*>(a.cos)[i];
    m.tables.sin[i / 16][i % 16] = static_cast<const gpu::Vector*>(a.sin)[i];
  }
}

__device__ __forceinline__ const gpu::bf16* input_row(const PersistentArguments& a, int pass, int token) {
  return static_cast<const gpu::bf16*>(a.inputs[pass]) + static_cast<int64_t>(token) * Shape::hidden;
}

// ---------------------------------------------------------------- consumers

// A warp's slice of the gated vector, 48 pieces of 16 bytes of each column, into shared memory.
__device__ __forceinline__ void receive_gated(GatedSlices& to, const uint32_t* from, int warp, int columns, uint32_t tag,
                                              uint32_t extra_tag, Watch& watch) {
  constexpr int pieces = Shape::intermediate / 8 / kConsumerWarps;  // of a slice
  const int lane = static_cast<int>(threadIdx.x) % 32;
  gpu::Vector v[3];
  uint32_t wrong;
  do {
    wrong = 0;
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      if (k == 2 && columns == 1) continue;
      const int i = lane + 32 * k, column = columns == 2 && i >= pieces ? 1 : 0;
      const int piece = i < pieces ? i : columns == 2 ? i - pieces : i - 16;
      v[k] = load_shared_words(from + column * (Shape::intermediate / 2) + (warp * pieces + piece) * 4);
    }
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      if (k == 2 && columns == 1) continue;
      const uint32_t own = columns == 2 && lane + 32 * k >= pieces ? extra_tag : tag;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[k].word[i] ^= own;
        wrong |= v[k].word[i];
      }
    }
  } while (__any_sync(0xffffffffu, (wrong & kTagBits) != 0) && !__any_sync(0xffffffffu, watch.over()));
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    const int i = lane + 32 * k;
    if (i < pieces) to[kMain][warp][i] = v[k];
    else if (columns == 2) to[kExtra][warp][i - pieces] = v[k];
  }
  __syncwarp();
}

__device__ __forceinline__ void product_done(uint32_t done, int& phase) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(done + 8 * (phase & 1));
  ++phase;
}

__device__ __forceinline__ void consume(const PersistentArguments& a, ExchangeArea& area, BlockMemory& m, Ring ring, int warp,
                                        Watch watch) {
  const int block = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % 32;
  const int copy = block % kCopies;
  const Exchange& e = area.copies[copy];
  const uint32_t done = shared_address(m.done), received = shared_address(m.received), stored = shared_address(&m.stored);
  const Use use{a.fault == kConstantTags};
  // The lane's 16 bytes of its warp's slice: of an exchanged vector, and of one in the order of its elements.
  const int piece = lane % 16, words = warp * 64 + piece * 4, plain_words = (warp + 8 * (piece / 4)) * 16 + piece % 4 * 4;
  const int pieces = warp * 4 + lane % 4;  // the lane's share of the warp's first unit
  int count = 0, phase = 0;
  uint32_t tag = 0, extra_tag = 0;
#pragma unroll 1
  for (int pass = 0;; ++pass) {
    const int columns = pass == 0 ? 2 : 1, column = lane / 16 * (columns - 1);
    // Where x is: the first layer's is no exchanged one.
    const uint32_t* x;
    if (pass == 0) {
      x = static_cast<const uint32_t*>(a.x) + (1 - column) * (Shape::hidden / 2) + plain_words;
    } else {
      const bool last = pass == Shape::passes;
      const int token = sample(a, area, copy, pass - 1, use.logits(pass - 1), last ? nullptr : a.inputs[pass], m.sampling,
                               m.slow, watch);
      if (last || token < 0) return;
      if (threadIdx.x == 0) arrive(shared_address(&m.token));
      x = reinterpret_cast<const uint32_t*>(input_row(a, pass, token)) + plain_words;
    }
    uint32_t x_tag = 0, check = 0;
#pragma unroll 1
    for (int layer = 0; layer < Shape::layers; ++layer, ++count) {
      const int buffer = count & 1;
      tag = use.layer(count);
      extra_tag = use.extra(count);
      const uint32_t lane_tag = column == kExtra ? extra_tag : tag;
      normed_product<4>(ring, x, &m.norms[2 * layer][pieces], x_tag, check, columns, m.partial[phase & 1],
                        received + 8 * (phase & 1), watch);
      product_done(done, phase);

      if (pass > 0 && layer == 0) wait(stored, static_cast<uint32_t>(pass - 1) & 1u, watch);
      {
        gpu::Vector weight[2][kSteps];
        gpu::bf16* keys = static_cast<gpu::bf16*>(a.pool) + 2 * layer * a.pool_half + warp * kPositions * Shape::head_dim;
        const AttentionPlace place{e.qkv[buffer][0], keys, keys + a.pool_half, m.attended[0], pass + 1, columns,
                                   block == warp * 16};
        attend(place, m.tables, layer, a.eps, tag, extra_tag, watch);
        if (place.stores && layer == Shape::layers - 1) {
          __syncwarp();
          if (lane == 0) arrive(shared_address(&m.made));
        }
        take<2>(weight, ring, watch);
        consumers_barrier();
        const gpu::Vector* v = m.attended[lane_column(columns)] + pieces;
        Sums<1> sums;
        sums.clear();
#pragma unroll
        for (int t = 0; t < 2 * kSteps; ++t)
          sums.add([&](int) -> const gpu::Vector& { return weight[t / kSteps][t % kSteps]; }, v[t * 32]);
        sums.leave(m.partial[phase & 1], columns);
        product_done(done, phase);
      }

      normed_product<6>(ring, e.attended[buffer][column] + words, &m.norms[2 * layer + 1][pieces], lane_tag,
                        kTagBits, columns, m.partial[phase & 1], received + 8 * (phase & 1), watch);
      product_done(done, phase);

      {
        gpu::Vector weight[3][kSteps];
        take<3>(weight, ring, watch);
        receive_gated(m.gated, e.gated[buffer][0], warp, columns, tag, extra_tag, watch);
        const gpu::Vector* v = &m.gated[lane_column(columns)][warp][lane % 4];
        Sums<1> sums;
        sums.clear();
#pragma unroll
        for (int t = 0; t < 3 * kSteps; ++t)
          sums.add([&](int) -> const gpu::Vector& { return weight[t / kSteps][t % kSteps]; }, v[4 * t]);
        sums.leave(m.partial[phase & 1], columns);
        product_done(done, phase);
      }
      x = e.x[buffer][column] + words;
      x_tag = lane_tag;
      check = kTagBits;
    }
    // Of pass 0 the head wants position 1 alone, which is every lane's column from here on.
    normed_product<2>(ring, e.x[(count - 1) & 1][kMain] + words, &m.norms[2 * Shape::layers][pieces], tag, kTagBits, 1,
                      m.partial[phase & 1], received + 8 * (phase & 1), watch);
    product_done(done, phase);
  }
}

// ---------------------------------------------------------------- the other warps

__device__ __forceinline__ void finish_all(const PersistentArguments& a, ExchangeArea& area, BlockMemory& m, Watch watch) {
  const int lane = static_cast<int>(threadIdx.x) % 32, block = static_cast<int>(blockIdx.x);
  const uint32_t done = shared_address(m.done);
  const Use use{a.fault == kConstantTags};
  Finisher f{a, area, block, lane, 0.0f, 0};
  int count = 0, phase = 0;
  const auto next = [&]() -> const Partial& {
    wait(done + 8 * (phase & 1), static_cast<uint32_t>(phase >> 1) & 1u, watch);
    __syncwarp();
    return m.partial[phase++ & 1];
  };
  // Of products behind a norm, before next(): of every second one but the heads, so of both places in turns.
  uint32_t received[2] = {0, 0};
  const auto scales = [&](float (&to)[kColumns], int columns, uint32_t grow) {
    const int place = phase & 1;
    wait(shared_address(&m.received[place]), place == 0 ? received[0] : received[1], watch);
    (place == 0 ? received[0] : received[1]) ^= 1u;
    __syncwarp();
    to[kMain] = to[kExtra] = 0.0f;
#pragma unroll 1
    for (int column = 0; column < columns; ++column) {
      const float scale = f.scale(m.partial[place], column, grow);
      (column == kMain ? to[kMain] : to[kExtra]) = scale;
    }
  };
#pragma unroll 1
  for (int pass = 0; pass < Shape::passes; ++pass) {
    const int columns = pass == 0 ? 2 : 1;
    if (pass == 0) {
      f.x = gpu::widen(static_cast<const gpu::bf16*>(a.x)[(1 - lane / 8 % 2) * Shape::hidden + block * 8 + lane % 8]);
    } else {
      wait(shared_address(&m.token), static_cast<uint32_t>(pass - 1) & 1u, watch);
      f.x = gpu::widen(input_row(a, pass, m.sampling.token & (Shape::vocab - 1))[block * 8 + lane % 8]);
    }
#pragma unroll 1
    for (int layer = 0; layer < Shape::layers; ++layer, ++count) {
      const int buffer = count & 1;
      const uint32_t tag = use.layer(count), extra_tag = use.extra(count);
      float s[kColumns];
      scales(s, columns, layer == 0 ? kUnit : kGrow);
      f.qkv(next(), columns, s, layer == 0 ? 1.0f : kGrowth, buffer, tag, extra_tag);
      f.residual(next(), columns, 1.0f, tag, extra_tag,
                 [&](Exchange& e, int column) { return e.attended[buffer][column]; });
      scales(s, columns, kGrow);
      f.gated(next(), columns, s, buffer, tag, extra_tag);
      f.residual(next(), columns, kGrowth, tag, extra_tag, [&](Exchange& e, int column) { return e.x[buffer][column]; });
    }
    float s[kColumns];
    scales(s, 1, kGrow);
    f.head(next(), s[kMain], pass, use.logits(pass), m.sampling.row);
  }
}

// Keys and values are ordinary memory: one block stores those of a kv head, all read them in the passes to come.
__device__ __forceinline__ void keep(ExchangeArea& area, BlockMemory& m, Watch watch) {
  const int lane = static_cast<int>(threadIdx.x) % 32, block = static_cast<int>(blockIdx.x);
  const bool stores = block % 16 == 0;
#pragma unroll 1
  for (int pass = 0; pass < Shape::passes; ++pass) {
    if (stores) {
      wait(shared_address(&m.made), static_cast<uint32_t>(pass) & 1u, watch);
      const uint32_t made = pass == Shape::passes - 1 ? 0u : static_cast<uint32_t>(pass + 1);
      if (lane == 0) {
        asm volatile("fence.acq_rel.gpu;" ::: "memory");
        store_word(&area.stored[block / 16].pass, made);
      }
    }
    if (pass == Shape::passes - 1) break;
    if (lane < Shape::kv_heads) {
      uint32_t made;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(made) : "l"(&area.stored[lane].pass) : "memory");
        if (made == static_cast<uint32_t>(pass + 1)) break;
        __nanosleep(200);
      } while (!watch.over());
    }
    __syncwarp();
    if (lane == 0) arrive(shared_address(&m.stored));
  }
}

}  // namespace persistent

namespace {

using namespace persistent;

__global__ void __launch_bounds__(kBlockThreads, 1) predictor_kernel(const __grid_constant__ PersistentArguments a) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char dynamic[];
  if (a.active[0] < 0 || (*a.status & kPredictorStuck) != 0) return;
  BlockMemory& m = *reinterpret_cast<BlockMemory*>(dynamic);
  ExchangeArea& area = *static_cast<ExchangeArea*>(a.exchange);
  const int warp = gpu::shfl(static_cast<int>(threadIdx.x) / 32, 0);  // known to be one for the warp
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      open_barrier(shared_address(&m.full[i]), 1);
      open_barrier(shared_address(&m.empty[i]), kConsumerWarps);
    }
    open_barrier(shared_address(&m.done[0]), kConsumerWarps);
    open_barrier(shared_address(&m.done[1]), kConsumerWarps);
    open_barrier(shared_address(&m.received[0]), kConsumerWarps);
    open_barrier(shared_address(&m.received[1]), kConsumerWarps);
    open_barrier(shared_address(&m.token), 1);
    open_barrier(shared_address(&m.made), 1);
    open_barrier(shared_address(&m.stored), 1);
    m.stuck = 0;
    m.sampling.row = *a.sampling;
    m.sampling.frame = *a.frame;
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  load_tables(a, m);
  __syncthreads();
  Watch watch{nanoseconds() + static_cast<uint64_t>(a.timeout_ns), &m.stuck, 0};
  const uint32_t nothing = static_cast<uint32_t>(a.depth) >> 31;
  const Ring ring{shared_address(m.ring), shared_address(m.full), shared_address(m.empty), nothing, 0, 0};
  if (warp < kConsumerWarps) {
    consume(a, area, m, ring, warp, watch);
  } else if (warp == kFinisher) {
    finish_all(a, area, m, watch);
  } else if (warp == kFiller) {
    fill(a, ring, static_cast<int>(blockIdx.x), watch);
  } else {
    keep(area, m, watch);
  }
  __syncthreads();
  if (threadIdx.x == 0 && m.stuck != 0) atomicOr(a.status, kPredictorStuck);
#endif
}

}  // namespace

std::int64_t persistent_exchange_bytes() { return static_cast<std::int64_t>(sizeof(ExchangeArea)); }

std::string persistent_device_problem();
void clear_persistent_exchange(void* exchange, void* stream);

std::string persistent_device_problem() {
  int device = 0, cooperative = 0, major = 0, processors = 0, shared = 0, resident = 0;
  gpu::check(cudaGetDevice(&device), "persistent code predictor");
  const auto ask = [&](int& value, cudaDeviceAttr attribute) {
    gpu::check(cudaDeviceGetAttribute(&value, attribute, device), "persistent code predictor");
  };
  ask(major, cudaDevAttrComputeCapabilityMajor);
  ask(cooperative, cudaDevAttrCooperativeLaunch);
  ask(processors, cudaDevAttrMultiProcessorCount);
  ask(shared, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (major < 9) return "the card's compute capability is below 9.0";
  if (cooperative == 0) return "the card has no cooperative launches";
  if (processors < kBlocks)
    return "the card has " + std::to_string(processors) + " multiprocessors, fewer than " + std::to_string(kBlocks);
  if (shared < static_cast<int>(sizeof(BlockMemory)))
    return "a block of the card has " + std::to_string(shared) + " bytes of shared memory, fewer than " +
           std::to_string(sizeof(BlockMemory));
  gpu::allow_shared(&predictor_kernel, sizeof(BlockMemory));
  gpu::check(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, &predictor_kernel, kBlockThreads, sizeof(BlockMemory)),
      "persistent code predictor");
  return resident * processors >= kBlocks ? "" : "the card has no room for all blocks at the same time";
}

void clear_persistent_exchange(void* exchange, void* stream) {
  gpu::check(cudaMemsetAsync(exchange, 0, sizeof(ExchangeArea), gpu::stream_of(stream)), "clearing the exchange");
}

void persistent_predictor(const PersistentArguments& a, void* stream) {
  gpu::allow_shared(&predictor_kernel, sizeof(BlockMemory));
  PersistentArguments copy = a;
  void* parameters[] = {&copy};
  const void* kernel = reinterpret_cast<const void*>(&predictor_kernel);
  gpu::check(cudaLaunchCooperativeKernel(kernel, dim3(kBlocks), dim3(kBlockThreads), parameters, sizeof(BlockMemory), gpu::stream_of(stream)),
             "launch of the persistent code predictor");
}

}  // namespace qwen3tts
