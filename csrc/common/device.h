// What a module was built for, and the devices it can see.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace qwen3tts {

struct BuildInfo {
  std::string platform;       // "nvidia", "amd", or "emulation": HIP on the CPU, for tests
  std::string toolkit;        // "13.0": CUDA or HIP
  int runtime_major;          // CUDA's for platform nvidia, HIP's otherwise: the one that torch must have as well
  std::string architectures;  // "sm_90;compute_90", "gfx942", ...
};

struct DeviceInfo {
  int index;
  std::string name;
  std::string architecture;  // "sm_90", "gfx942"
  int multiprocessors, wave_size;
  std::int64_t memory_bytes, l2_bytes;
};

struct RuntimeInfo {
  int driver, runtime;  // versions as the runtime numbers them; driver is 0 where there is none
};

const BuildInfo& build_info();

// None when there is no GPU or no driver. Other failures raise std::runtime_error.
std::vector<DeviceInfo> devices();

RuntimeInfo runtime_info();

}  // namespace qwen3tts
