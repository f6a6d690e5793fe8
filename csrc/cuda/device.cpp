#include "common/device.h"

#include "common/gpu.h"

#ifndef QWEN3TTS_ARCHITECTURES
#define QWEN3TTS_ARCHITECTURES ""
#endif

namespace qwen3tts {

const BuildInfo& build_info() {
  static const BuildInfo info{"nvidia", std::to_string(CUDART_VERSION / 1000) + "." +
                              std::to_string(CUDART_VERSION % 1000 / 10), CUDART_VERSION / 1000, QWEN3TTS_ARCHITECTURES};
  return info;
}

std::vector<DeviceInfo> devices() {
  std::vector<DeviceInfo> all;
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  // A driver that is missing counts as one that is too old.
  if (found == cudaErrorNoDevice || found == cudaErrorInsufficientDriver) {
    static_cast<void>(cudaGetLastError());
    return all;
  }
  gpu::check(found, "cudaGetDeviceCount");
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp p;
    gpu::check(cudaGetDeviceProperties(&p, index), "cudaGetDeviceProperties");
    all.push_back({index, p.name, "sm_" + std::to_string(p.major) + std::to_string(p.minor), p.multiProcessorCount,
                   p.warpSize, static_cast<std::int64_t>(p.totalGlobalMem), static_cast<std::int64_t>(p.l2CacheSize)});
  }
  return all;
}

RuntimeInfo runtime_info() {
  RuntimeInfo info{};
  gpu::check(cudaDriverGetVersion(&info.driver), "cudaDriverGetVersion");
  gpu::check(cudaRuntimeGetVersion(&info.runtime), "cudaRuntimeGetVersion");
  return info;
}

}  // namespace qwen3tts
