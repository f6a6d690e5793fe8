// Weights on their way from memory to registers: a ring of stages in shared memory, filled by bulk copies. For device
// sources only.
//
// A stage is 8 rows of a weight times 1024 elements of k, read where the Parameters have them. Its rows lie 64 bytes
// more than their size apart, so that the 16-byte pieces that 8 lanes read at a time (4 of each of 2 rows) lie in
// different banks.
#pragma once

#include "cuda/persistent_exchange.h"

namespace qwen3tts {
namespace persistent {

#ifndef QW_PERSISTENT_STAGES
#define QW_PERSISTENT_STAGES 7
#endif
constexpr int kStages = QW_PERSISTENT_STAGES;
constexpr int kStageColumns = 1024, kStageRows = 8;
constexpr int kRowBytes = kStageColumns * 2, kRowPitch = kRowBytes + 64;
constexpr int kStageBytes = kStageRows * kRowPitch;
constexpr int kSteps = kStageColumns / 256;  // units of 32 elements that a slice has in a stage
static_assert(kStages >= 4, "a stage is given back when the next but one is asked for");

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---------------------------------------------------------------- barriers in shared memory

__device__ __forceinline__ void open_barrier(uint32_t at, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
__device__ __forceinline__ void arrive(uint32_t at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
__device__ __forceinline__ void arrive_and_expect(uint32_t at, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
__device__ __forceinline__ bool has_come(uint32_t at, uint32_t parity) {
  uint32_t come;
  asm volatile(
      "{\n.reg .pred come;\nmbarrier.try_wait.parity.shared::cta.b64 come, [%1], %2;\nselp.u32 %0, 1, 0, come;\n}"
      : "=r"(come)
      : "r"(at), "r"(parity)
      : "memory");
  return come != 0;
}
__device__ __forceinline__ void wait(uint32_t at, uint32_t parity, Watch& watch) {
  while (!has_come(at, parity) && !watch.over()) {
  }
}

// ---------------------------------------------------------------- the ring

struct Ring {
  uint32_t stages, full, empty;  // shared addresses; barriers are 8 bytes each
  uint32_t nothing;  // 0, which the compiler does not know
  int slot;
  uint32_t parity;

  __device__ __forceinline__ void next() {
    if (++slot == kStages) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// A consumer's pieces of the next STAGES stages: unit warp + 8 step of each, row lane / 4, elements 8 (lane % 4) and on.
template <int STAGES>
__device__ __forceinline__ void take(gpu::Vector (&to)[STAGES][kSteps], Ring& ring, Watch& watch) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const uint32_t mine = static_cast<uint32_t>(lane / 4 * kRowPitch + warp * 64 + lane % 4 * 16);
  // Lane 0 says that a stage may be written over. The loads must have ended by then, not only have been issued: so the
  // arrival depends on what was loaded.
  const auto give_back = [&](int stage, int slot) {
    const uint32_t mixed = to[stage][0].word[3] ^ to[stage][1].word[3] ^ to[stage][2].word[3] ^ to[stage][3].word[3];
    const uint32_t loaded = __ballot_sync(0xffffffffu, mixed != 0);
    if (lane == 0) arrive(ring.empty + 8 * slot + (loaded & ring.nothing));
  };
  int before = 0;
#pragma unroll
  for (int s = 0; s < STAGES; ++s) {
    wait(ring.full + 8 * ring.slot, ring.parity, watch);
    const uint32_t from = ring.stages + ring.slot * kStageBytes + mine;
#pragma unroll
    for (int t = 0; t < kSteps; ++t)
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(to[s][t].word[0]), "=r"(to[s][t].word[1]), "=r"(to[s][t].word[2]), "=r"(to[s][t].word[3])
                   : "r"(from + t * 512)
                   : "memory");
    if (s > 0) give_back(s - 1, before);
    before = ring.slot;
    ring.next();
  }
  give_back(STAGES - 1, before);
}

// ---------------------------------------------------------------- filling it

// Stages of a layer in the order of their use: 4 of q, k and v, 2 of o, 3 of gate, 3 of up, 3 of down.
constexpr int kLayerStages = 15, kHeadStages = 2;

struct StageSource {
  const char* first;  // of this block's rows, at the stage's first element of k
  int pitch;          // bytes from row to row
};

__device__ __forceinline__ StageSource layer_stage(const LayerWeights& w, int block, int stage) {
  const void* matrix;
  int row, k = Shape::hidden, at = 0;
  if (stage < 4) {
    constexpr int q_blocks = Shape::heads * Shape::head_dim / 32, kv_blocks = Shape::kv_heads * Shape::head_dim / 32;
    matrix = block < q_blocks ? w.q : block < q_blocks + kv_blocks ? w.k : w.v;
    row = (block < q_blocks ? block : (block - q_blocks) % kv_blocks) * 32 + stage * kStageRows;
  } else if (stage < 6) {
    matrix = w.o;
    k = Shape::heads * Shape::head_dim;
    row = block * kStageRows;
    at = stage - 4;
  } else if (stage < 12) {
    matrix = stage < 9 ? w.gate : w.up;
    row = block * 24 + (stage - 6) % 3 * kStageRows;
  } else {
    matrix = w.down;
    k = Shape::intermediate;
    row = block * kStageRows;
    at = stage - 12;
  }
  return {static_cast<const char*>(matrix) + (static_cast<int64_t>(row) * k + at * kStageColumns) * 2, k * 2};
}

// One warp, until the last stage of the last pass has been asked for.
__device__ __forceinline__ void fill(const PersistentArguments& a, Ring ring, int block, Watch& watch) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint64_t keep, pass_by;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(keep));
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(pass_by));
  const int depth = a.depth < kStages ? a.depth : kStages;
  int behind = -depth;        // the stage that must have come before this one is asked for
  int behind_slot = 0;
  uint32_t behind_parity = 0;
  ring.parity = 1;            // an empty ring counts as given back
  const auto push = [&](const StageSource& from, bool pinned) {
    wait(ring.empty + 8 * ring.slot, ring.parity, watch);
    if (behind >= 0) {
      wait(ring.full + 8 * behind_slot, behind_parity, watch);
      if (++behind_slot == kStages) {
        behind_slot = 0;
        behind_parity ^= 1;
      }
    }
    ++behind;
    const uint32_t full = ring.full + 8 * ring.slot;
    if (lane == 0) arrive_and_expect(full, kStageRows * kRowBytes);
    __syncwarp();
    if (lane < kStageRows)
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
          ::"r"(ring.stages + ring.slot * kStageBytes + lane * kRowPitch), "l"(from.first + static_cast<int64_t>(lane) * from.pitch), "r"(kRowBytes), "r"(full), "l"(pinned ? keep : pass_by)
          : "memory");
    __syncwarp();
    ring.next();
  };
#pragma unroll 1
  for (int pass = 0; pass < Shape::passes; ++pass) {
#pragma unroll 1
    for (int i = 0; i < Shape::layers * kLayerStages; ++i) {
      if (*watch.stuck != 0) {
        __nanosleep(100'000);  // what is on its way comes before the block ends
        return;
      }
      push(layer_stage(a.layers[i / kLayerStages], block, i % kLayerStages), i < a.pinned);
    }
#pragma unroll 1
    for (int i = 0; i < kHeadStages; ++i)
      push({static_cast<const char*>(a.heads[pass]) + (block * 16 + i * kStageRows) * kRowBytes, kRowBytes}, false);
  }
}

}  // namespace persistent
}  // namespace qwen3tts
