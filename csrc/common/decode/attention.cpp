// store_kv(), and what the three operations check.
#include "common/decode/attention_parts.h"
#include "common/launch.h"

namespace qwen3tts {
namespace {

[[noreturn]] void refuse(const char* what, const std::string& why) {
  throw std::invalid_argument(std::string(what) + ": " + why);
}

// A group per (row, kv head).
template <class T, int D> __global__ void __launch_bounds__(gpu::kGroup) store_kernel(AttentionArguments a, int shift) {
  gpu::launch_dependents();
  const Team<T, D> team(a.head_dim);
  const gpu::Vector weight = load_share<T>(a.k_norm, team.first);
  gpu::wait_for_previous();

  const int kv_head = static_cast<int>(blockIdx.x);
  const int64_t row = blockIdx.y;
  const int slot = a.slot[row];
  if (slot < 0) return;
  const int position = a.position[row];
  const T* key_in = static_cast<const T*>(a.qkv) + (row * (a.heads + 2 * a.kv_heads) + a.heads + kv_head) * team.size;
  float key[1][kShare<T>];
  load_wide(key_in + team.first, key[0]);
  const gpu::Vector value = gpu::load_vector(key_in + a.kv_heads * team.size + team.first);
  const Angles angles = load_angles<T>(a.cos, a.sin, static_cast<int64_t>(position) * team.size + team.first);
  norm_and_rotate<T, D, 1>(key, weight, weight, a.eps, angles, team);
  if (team.mine != 0) return;
  const int64_t at = page_map(a, slot, shift, kv_head).at(position) + team.first;
  gpu::store_vector(static_cast<T*>(a.pages.keys) + at, narrow_vector(key[0], T{}));
  gpu::store_vector(static_cast<T*>(a.pages.values) + at, value);
}

template <class T, int D> void launch_store(const AttentionArguments& a, int shift, void* stream) {
  QW_LAUNCH_DEPENDENT((store_kernel<T, D>), dim3(static_cast<unsigned>(a.kv_heads), static_cast<unsigned>(a.rows)),
                      dim3(gpu::kGroup), 0, gpu::stream_of(stream), a, shift);
}
template <class T> void launch_store_for(const AttentionArguments& a, int shift, void* stream) {
  a.head_dim == 128 ? launch_store<T, 128>(a, shift, stream) : launch_store<T, 0>(a, shift, stream);
}

}  // namespace

void check_heads(const char* what, std::int32_t rows, std::int32_t heads, std::int32_t kv_heads, std::int32_t head_dim) {
  if (rows < 0 || rows > 65535) refuse(what, std::to_string(rows) + " rows, expected 0 to 65535");
  if (head_dim < 8 || head_dim > 128 || (head_dim & (head_dim - 1)) != 0)
    refuse(what, "head_dim is " + std::to_string(head_dim) + ", expected 8, 16, 32, 64 or 128");
  const bool fits = kv_heads >= 1 && kv_heads <= 1024 &&
                    (heads == kv_heads || heads == 2 * kv_heads || heads == 4 * kv_heads);
  if (!fits)
    refuse(what, std::to_string(heads) + " heads and " + std::to_string(kv_heads) +
                     " kv heads, expected 1, 2 or 4 heads for each of up to 1024 kv heads");
}

void check_aligned(const char* what, const void* const* pointers, int count) {
  for (int i = 0; i < count; ++i)
    if (pointers[i] == nullptr || reinterpret_cast<std::uintptr_t>(pointers[i]) % sizeof(gpu::Vector) != 0)
      refuse(what, "qkv, out, the norms' weights, the tables, keys, values and the workspace must be given and begin at "
                   "multiples of 16 bytes");
}

int page_shift(const char* what, const KvPages& pages) {
  int shift = 3;
  while (shift < 24 && (1 << shift) < pages.page) ++shift;
  if (pages.page != 1 << shift)
    refuse(what, "a page has " + std::to_string(pages.page) + " positions, expected a power of two from 8 on");
  if (pages.table_stride < 1)
    refuse(what, "table_stride is " + std::to_string(pages.table_stride) + ", expected at least 1");
  return shift;
}

void store_kv(const AttentionArguments& a, void* stream) {
  check_heads("store_kv", a.rows, a.heads, a.kv_heads, a.head_dim);
  const int shift = page_shift("store_kv", a.pages);
  if (a.rows == 0) return;
  const void* pointers[] = {a.qkv, a.k_norm, a.cos, a.sin, a.pages.keys, a.pages.values};
  check_aligned("store_kv", pointers, 6);
  switch (a.dtype) {
    case DType::f32: return launch_store_for<float>(a, shift, stream);
    case DType::bf16: return launch_store_for<gpu::bf16>(a, shift, stream);
    case DType::fp16: return launch_store_for<gpu::fp16>(a, shift, stream);
  }
}

}  // namespace qwen3tts
