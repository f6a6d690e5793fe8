// Clusters: blocks next to each other that run at the same time and reach each other's shared memory. NVIDIA from compute
// capability 9.0 on (QW_LAUNCH_CLUSTER in common/launch.h). Elsewhere, and for launches without one, cluster_blocks() is 1,
// and a kernel must have another way. For device sources only.
#pragma once

#include "common/gpu.h"

namespace gpu {

constexpr unsigned kMaxCluster = 8;  // that every such card can do

#if defined(QWEN3TTS_CUDA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define QW_HAS_CLUSTERS 1
#else
#define QW_HAS_CLUSTERS 0
#endif

__device__ __forceinline__ unsigned cluster_blocks() {
  unsigned blocks = 1;
#if QW_HAS_CLUSTERS
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
#endif
  return blocks;
}

// A barrier of all threads of the cluster, in two halves: all blocks run after it, and see boxes that were opened before.
// Nothing else that was written before need be visible.
__device__ __forceinline__ void cluster_arrive() {
#if QW_HAS_CLUSTERS
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if QW_HAS_CLUSTERS
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// What blocks of a cluster write into the shared memory of its first block, and how that block knows that it has come: data
// and news travel together, so that nobody needs a fence (a barrier that made writes visible would be one over all of
// memory, and cost more than all the rest). A Box lies at the same place in every block's shared memory and is used once.
// open() by one thread, before cluster_arrive(); close() by one thread, with the bytes to come; wait() by those who read;
// send() after cluster_wait(). All but send() in the first block. It must not end before its wait(); others may.
struct Box {
  uint64_t* at;

  __device__ __forceinline__ void open() const {
#if QW_HAS_CLUSTERS
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::"r"(here(at)) : "memory");
#endif
  }
  __device__ __forceinline__ void close(unsigned bytes) const {
#if QW_HAS_CLUSTERS
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(here(at)), "r"(bytes) : "memory");
#else
    static_cast<void>(bytes);
#endif
  }
  __device__ __forceinline__ void wait() const {
#if QW_HAS_CLUSTERS
    asm volatile(
        "{\n.reg .pred come;\nagain:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 come, [%0], 0;\n@!come bra again;\n}" ::"r"(here(at))
        : "memory");
#endif
  }
  // v to where the first block has what this block has at `to`.
  __device__ __forceinline__ void send(float* to, const float4& v) const {
#if QW_HAS_CLUSTERS
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                     of_first(to)),
                 "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(of_first(at))
                 : "memory");
#else
    *reinterpret_cast<float4*>(to) = v;
#endif
  }
  // As send(), into another block than the first, which has opened and closed its own box.
  __device__ __forceinline__ void send_to(unsigned block, float* to, const float4& v) const {
#if QW_HAS_CLUSTERS
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                     of_block(block, to)),
                 "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(of_block(block, at))
                 : "memory");
#else
    static_cast<void>(block);
    *reinterpret_cast<float4*>(to) = v;
#endif
  }
  __device__ __forceinline__ void send(float* to, const float2& v) const {
#if QW_HAS_CLUSTERS
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(of_first(to)),
                 "f"(v.x), "f"(v.y), "r"(of_first(at))
                 : "memory");
#else
    *reinterpret_cast<float2*>(to) = v;
#endif
  }

#if QW_HAS_CLUSTERS
 private:
  __device__ __forceinline__ static uint32_t here(const void* mine) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(mine));
  }
  __device__ __forceinline__ static uint32_t of_block(unsigned block, const void* mine) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here(mine)), "r"(block));
    return there;
  }
  __device__ __forceinline__ static uint32_t of_first(const void* mine) { return of_block(0, mine); }
#endif
};

}  // namespace gpu
