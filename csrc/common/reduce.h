// Sums over groups of 32 lanes, whatever the width of a wave: a wave of 64 is two groups. So a kernel that adds up in
// groups of 32 gives the same bits on every device. For device sources only.
#pragma once

#include "common/gpu.h"

namespace gpu {

constexpr int kGroup = 32;

__device__ __forceinline__ int group_lane() { return static_cast<int>(threadIdx.x) % kGroup; }
__device__ __forceinline__ int group() { return static_cast<int>(threadIdx.x) / kGroup; }

// The sum over the caller's group, in every lane of it. All lanes of the wave must call this together.
__device__ __forceinline__ float group_sum(float v) {
  for (int mask = kGroup / 2; mask > 0; mask /= 2) v = add_rn(v, shfl_xor(v, mask));
  return v;
}

}  // namespace gpu
