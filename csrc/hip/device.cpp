#include "common/device.h"

#include "common/gpu.h"

#ifndef QWEN3TTS_ARCHITECTURES
#define QWEN3TTS_ARCHITECTURES ""
#endif

namespace qwen3tts {

const BuildInfo& build_info() {
#if defined(__HIP_PLATFORM_NVIDIA__)
  static const BuildInfo info{"nvidia", std::to_string(CUDART_VERSION / 1000) + "." +
                              std::to_string(CUDART_VERSION % 1000 / 10), CUDART_VERSION / 1000, QWEN3TTS_ARCHITECTURES};
#elif defined(__HIP_PLATFORM_AMD__)
  static const BuildInfo info{"amd", std::to_string(HIP_VERSION_MAJOR) + "." + std::to_string(HIP_VERSION_MINOR),
                              HIP_VERSION_MAJOR, QWEN3TTS_ARCHITECTURES};
#else
  static const BuildInfo info{"emulation", "", 0, ""};
#endif
  return info;
}

std::vector<DeviceInfo> devices() {
  std::vector<DeviceInfo> all;
  int count = 0;
  const hipError_t found = hipGetDeviceCount(&count);
  if (found == hipErrorNoDevice || found == hipErrorInsufficientDriver || found == hipErrorInvalidDevice) {
    static_cast<void>(hipGetLastError());  // or the next launch would report it
    return all;
  }
  gpu::check(found, "hipGetDeviceCount");
  for (int index = 0; index < count; ++index) {
    hipDeviceProp_t p;
    gpu::check(hipGetDeviceProperties(&p, index), "hipGetDeviceProperties");
#if defined(__HIP_PLATFORM_AMD__)
    const std::string architecture = p.gcnArchName;
#else
    const std::string architecture = "sm_" + std::to_string(p.major) + std::to_string(p.minor);
#endif
    all.push_back({index, p.name, architecture, p.multiProcessorCount, p.warpSize,
                   static_cast<std::int64_t>(p.totalGlobalMem), static_cast<std::int64_t>(p.l2CacheSize)});
  }
  return all;
}

RuntimeInfo runtime_info() {
  RuntimeInfo info{};
  gpu::check(hipDriverGetVersion(&info.driver), "hipDriverGetVersion");
  gpu::check(hipRuntimeGetVersion(&info.runtime), "hipRuntimeGetVersion");
  return info;
}

}  // namespace qwen3tts
