// Launches that may start before the kernel ahead of them in the stream has ended ("programmatic dependent launch" on
// NVIDIA from compute capability 9.0; plain launches everywhere else). For device sources only.
//
// Every kernel that is launched so calls gpu::launch_dependents() somewhere, best when its loads of weights are on their
// way, and gpu::wait_for_previous() in all threads, before it reads or writes anything that an earlier kernel of the
// stream reads or writes. Before the wait it may read what no kernel writes: weights and tables. A kernel ends only after
// its wait, so the wait covers all earlier kernels.
#pragma once

#include "common/gpu.h"
#include "common/shared_memory.h"

#include <map>
#include <mutex>
#include <utility>

namespace gpu {

// Does a kernel start ahead of its wait? The emulation says so, too.
#if (defined(QWEN3TTS_CUDA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900) || defined(QW_WAIT_FOR_PREVIOUS)
constexpr bool kStartsEarly = true;
#else
constexpr bool kStartsEarly = false;
#endif

// The next kernel's blocks may take their places as soon as all blocks of this one have said so or ended.
__device__ __forceinline__ void launch_dependents() {
#if defined(QWEN3TTS_CUDA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Returns when the kernel ahead has ended and all it wrote is visible.
__device__ __forceinline__ void wait_for_previous() {
#if defined(QWEN3TTS_CUDA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#elif defined(QW_WAIT_FOR_PREVIOUS)  // the emulation brings its own
  QW_WAIT_FOR_PREVIOUS();
#endif
}

#ifdef QWEN3TTS_CUDA
// What launches ask about the current device. A thread keeps the answers: where frames and prompts are launched eagerly,
// the way of each launch through the driver is what they wait for. They are asked for anew when the device changes.
struct DeviceFacts {
  int device = -1, major = 0, block_shared = 0, processor_shared = 0;  // bytes of a block at most, of a multiprocessor
};
inline Status device_facts(DeviceFacts*& facts) {
  static thread_local DeviceFacts kept;
  facts = &kept;
  int device = 0;
  Status status = cudaGetDevice(&device);
  if (status != kSuccess || device == kept.device) return status;
  DeviceFacts found;
  const std::pair<int*, cudaDeviceAttr> wanted[] = {
      {&found.major, cudaDevAttrComputeCapabilityMajor},
      {&found.block_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin},
      {&found.processor_shared, cudaDevAttrMaxSharedMemoryPerMultiprocessor},
  };
  for (const auto& [value, attribute] : wanted)
    if (status == kSuccess) status = cudaDeviceGetAttribute(value, attribute, device);
  if (status != kSuccess) return status;
  found.device = device;
  kept = std::move(found);
  return status;
}
inline const DeviceFacts& device_facts() {
  DeviceFacts* facts = nullptr;
  check(device_facts(facts), "properties of the device");
  return *facts;
}
#endif

// More than 48 KB of dynamic shared memory must be allowed on NVIDIA; AMD gives 64 KB to every block.
template <class Kernel> void allow_shared(Kernel* kernel, size_t bytes) {
#if defined(QWEN3TTS_CUDA)
  // A limit of the process, which must only grow: another thread may be about to launch with what it has allowed.
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, size_t> limits;
  const int device = device_facts().device;
  const std::lock_guard<std::mutex> lock(mutex);
  size_t& allowed = limits[{reinterpret_cast<const void*>(kernel), device}];
  if (bytes <= allowed) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), "shared memory");
  allowed = bytes;
#elif defined(__HIP_PLATFORM_NVIDIA__)
  check(hipFuncSetAttribute(reinterpret_cast<const void*>(kernel), hipFuncAttributeMaxDynamicSharedMemorySize,
                            static_cast<int>(bytes)),
        "shared memory");
#else
  static_cast<void>(kernel);
  static_cast<void>(bytes);
#endif
}

#ifdef QWEN3TTS_CUDA
// cluster: blocks along x that form one (common/cluster.h); not heeded by cards without clusters.
template <class... Parameters, class... Arguments>
Status launch_dependent(void (*kernel)(Parameters...), unsigned cluster, dim3 grid, dim3 block, size_t shared,
                        Stream stream, Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "a launch gives every parameter of the kernel");
  DeviceFacts* facts = nullptr;
  const Status status = device_facts(facts);
  if (status != kSuccess) return status;
  cudaLaunchAttribute attributes[3] = {};
  unsigned count = 0;
  if (facts->major >= 9) {  // code for older cards does not wait
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    if (cluster > 1) {
      attributes[count].id = cudaLaunchAttributeClusterDimension;
      attributes[count].val.clusterDim.x = cluster;
      attributes[count].val.clusterDim.y = attributes[count].val.clusterDim.z = 1;
      ++count;
    }
  }
#if CUDART_VERSION >= 12060
  if (qwen3tts::shared_memory_percent >= 0) {
    attributes[count].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    attributes[count++].val.sharedMemCarveout = static_cast<unsigned>(qwen3tts::shared_memory_percent);
  }
#endif
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(std::forward<Arguments>(arguments))...);
}
#endif

}  // namespace gpu

// As QW_LAUNCH; with a cluster of blocks along x where there are clusters.
#ifdef QWEN3TTS_CUDA
#define QW_LAUNCH_CLUSTER(kernel, cluster, grid, block, shared, stream, ...)                                 \
  gpu::check(gpu::launch_dependent(kernel, (cluster), (grid), (block), (shared), (stream), __VA_ARGS__),      \
             "launch of " #kernel)
#define QW_LAUNCH_DEPENDENT(kernel, ...) QW_LAUNCH_CLUSTER(kernel, 1u, __VA_ARGS__)
#else
#define QW_LAUNCH_CLUSTER(kernel, cluster, ...) QW_LAUNCH(kernel, __VA_ARGS__)
#define QW_LAUNCH_DEPENDENT QW_LAUNCH
#endif
