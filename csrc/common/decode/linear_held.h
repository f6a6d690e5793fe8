// What linear_few.cpp and linear_passes.cpp share: a block of 8 warps, one for each slice, and the weights of a group of
// rows, which a lane holds in registers before the wait. For device sources only.
#pragma once

#include "common/decode/linear_parts.h"
#include "common/reduce.h"

#if QW_HAS_MMA

namespace qwen3tts {

constexpr int kThreads = kSumSlices * gpu::kGroup;
constexpr int kStep = kSumSlices * kSumUnit;  // elements of k
constexpr int kProcessors = 132;              // of a large card

// In bf16 alone: fp16 needs the norm's scale before the product.
struct HeldArguments {
  const gpu::bf16 *x, *norm_weight, *weight[3], *bias;
  void* y;
  gpu::bf16* normed;
  int64_t x_stride, y_stride;
  int32_t end[2];  // of the first part's rows, of the second's
  int32_t rows, groups;
  float eps;
};

inline HeldArguments held_arguments(const LinearArguments& a, int groups) {
  HeldArguments held{};
  held.x = static_cast<const gpu::bf16*>(a.x);
  held.norm_weight = static_cast<const gpu::bf16*>(a.norm_weight);
  for (int part = 0; part < a.parts; ++part) held.weight[part] = static_cast<const gpu::bf16*>(a.weight[part]);
  held.bias = static_cast<const gpu::bf16*>(a.bias);
  held.y = a.y;
  held.normed = static_cast<gpu::bf16*>(a.normed);
  held.x_stride = a.x_stride;
  held.y_stride = a.y_stride;
  held.end[0] = a.n[0];
  held.end[1] = a.parts > 1 ? a.n[0] + a.n[1] : outputs_of(a);
  held.rows = a.rows;
  held.groups = groups;
  held.eps = a.eps;
  return held;
}

// Whether each part has whole groups of a kind of product.
template <class K> bool whole_groups(const LinearArguments& a) {
  for (int part = 0; part < (K::kSilu ? 1 : a.parts); ++part)
    if (a.n[part] % K::kOutputs != 0) return false;
  return true;
}

// This lane's elements of the first step in the row g of octet o of a group. silu_mul has gates and ups by turns.
template <class K> __device__ __forceinline__ const gpu::bf16* seek(const HeldArguments& a, int group, int o) {
  const int lane = gpu::group_lane(), offset = lane / 4 * K::kK + gpu::group() * kSumUnit + lane % 4 * 8;
  if constexpr (K::kSilu) {
    return a.weight[o % 2] + static_cast<int64_t>(group * (K::kOctets / 2) + o / 2) * 8 * K::kK + offset;
  } else {  // a group lies within a part
    const int first = group * K::kOctets * 8;
    const bool second = first >= a.end[0], third = first >= a.end[1];
    const gpu::bf16* weight = third ? a.weight[2] : second ? a.weight[1] : a.weight[0];
    const int n = first - (third ? a.end[1] : second ? a.end[0] : 0);
    return weight + static_cast<int64_t>(n + o * 8) * K::kK + offset;
  }
}

}  // namespace qwen3tts

#endif
