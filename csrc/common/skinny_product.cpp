#include "common/skinny_product.h"

#include "common/dtype.h"
#include "common/gpu.h"
#include "common/reduce.h"

#include <type_traits>

namespace qwen3tts {
namespace {

constexpr int kThreads = 256;
constexpr int kGroups = kThreads / gpu::kGroup;  // of 32 lanes each
constexpr int kInFlight = 4;                     // pieces of weights that a lane asks for before it uses one
constexpr int kMaxRows = 8;                      // that share one reading of the weight

// 16 bytes of a row: 4 or 8 elements, widened one word at a time.
struct alignas(16) Piece { uint32_t word[4]; };

template <class T> constexpr int kPiece = static_cast<int>(sizeof(Piece) / sizeof(T));

__device__ __forceinline__ void widen_word(uint32_t word, float (&to)[1], float) { to[0] = gpu::from_bits(word); }
__device__ __forceinline__ void widen_word(uint32_t word, float (&to)[2], gpu::bf16) {
  to[0] = gpu::from_bits(word << 16);
  to[1] = gpu::from_bits(word & 0xffff0000u);
}
__device__ __forceinline__ void widen_word(uint32_t word, float (&to)[2], gpu::fp16) {
  to[0] = gpu::widen(gpu::fp16{static_cast<uint16_t>(word & 0xffffu)});
  to[1] = gpu::widen(gpu::fp16{static_cast<uint16_t>(word >> 16)});
}

template <class T> __device__ __forceinline__ void widen_piece(const Piece& piece, float (&to)[kPiece<T>]) {
  constexpr int per_word = static_cast<int>(4 / sizeof(T));
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    float values[per_word];
    widen_word(piece.word[w], values, T{});
#pragma unroll
    for (int i = 0; i < per_word; ++i) to[w * per_word + i] = values[i];
  }
}

// Piece `index` of a row of k elements; zeros past the end.
template <class T, bool ALIGNED> __device__ __forceinline__ Piece load(const T* row, int index, int k) {
  const int first = index * kPiece<T>;
  Piece piece{{0, 0, 0, 0}};
  if constexpr (ALIGNED) {
    if (first < k) piece = *reinterpret_cast<const Piece*>(row + first);
  } else {
    using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
#pragma unroll
    for (int i = 0; i < kPiece<T>; ++i)
      if (first + i < k) {
        Bits bits;
        memcpy(&bits, row + first + i, sizeof bits);
        piece.word[i * sizeof(T) / 4] |= static_cast<uint32_t>(bits) << (i * sizeof(T) % 4 * 8);
      }
  }
  return piece;
}

// group_sum of COUNT values (a power of two, at most 32) at once: at each step a lane hands half of its values to its
// partner and keeps the other half, so that COUNT sums take about COUNT shuffles. The same additions as group_sum does,
// so the same bits. Returns the sum that this lane ends with; `which` (0 before) says which of the values that is.
template <int COUNT, int MASK = gpu::kGroup / 2>
__device__ __forceinline__ float group_sums(const float (&values)[COUNT], int& which) {
  if constexpr (COUNT == 1) {
    float sum = values[0];
#pragma unroll
    for (int mask = MASK; mask > 0; mask /= 2) sum = gpu::add_rn(sum, gpu::shfl_xor(sum, mask));
    return sum;
  } else {
    constexpr int half = COUNT / 2;
    const bool upper = (gpu::group_lane() & MASK) != 0;
    float kept[half];
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float mine = upper ? values[i + half] : values[i], given = upper ? values[i] : values[i + half];
      kept[i] = gpu::add_rn(mine, gpu::shfl_xor(given, MASK));
    }
    which += upper ? half : 0;
    return group_sums<half, MASK / 2>(kept, which);
  }
}

template <class T> __device__ __forceinline__ void store(const SkinnyProductArguments& a, int64_t row, int64_t n, float sum) {
  if (row >= a.rows || n >= a.n) return;
  if (a.bias != nullptr) sum = gpu::add_rn(sum, gpu::widen(static_cast<const T*>(a.bias)[n]));
  const int64_t at = row * a.y_stride + n;
  if (a.output == DType::f32) static_cast<float*>(a.y)[at] = sum;
  else static_cast<T*>(a.y)[at] = gpu::narrow<T>(sum);
}

// Blocks that a multiprocessor should hold (on AMD: waves of a SIMD, the same number at wave 64), which limits registers.
template <int ROWS>
constexpr int kBlocksWanted = ROWS == 1 ? 6 : ROWS == 2 ? 4 : 2;

// Pieces of each output's row that are asked for at a time: as many as the registers hold without spilling.
template <int ROWS, int OUTPUTS, bool ALIGNED>
constexpr int kAhead = !ALIGNED ? 1 : ROWS < 8 ? kInFlight : kInFlight / OUTPUTS;

// ROWS rows from blockIdx.y * ROWS on. The kGroups groups of a block are kGroups / splits teams; a team has OUTPUTS
// outputs and its `splits` groups take the pieces of a row in turn.
template <class T, int ROWS, int OUTPUTS, bool ALIGNED>
__global__ void __launch_bounds__(kThreads, kBlocksWanted<ROWS>) skinny_product_kernel(SkinnyProductArguments a, int splits) {
  constexpr int values = ROWS * OUTPUTS, lanes_per_value = gpu::kGroup / values;
  constexpr int ahead = kAhead<ROWS, OUTPUTS, ALIGNED>;
  const int group = gpu::group(), split = group % splits, teams = kGroups / splits;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * ROWS;
  const int64_t first_output = (static_cast<int64_t>(blockIdx.x) * teams + group / splits) * OUTPUTS;

  // Rows and outputs past the end are computed as copies of the last one and not stored. Steps from the first are 32 bits
  // wide, to save registers.
  const int k = static_cast<int>(a.k);
  const T* weight = static_cast<const T*>(a.weight) + (first_output < a.n ? first_output : a.n - 1) * a.k;
  int weight_step[OUTPUTS];
#pragma unroll
  for (int o = 0; o < OUTPUTS; ++o) weight_step[o] = first_output + o < a.n ? o * k : o > 0 ? weight_step[o - 1] : 0;
  const T* x = static_cast<const T*>(a.x) + first_row * a.x_stride;
  int x_step[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
    x_step[r] = first_row + r < a.rows ? r * static_cast<int>(a.x_stride) : r > 0 ? x_step[r - 1] : 0;

  float sums[values] = {};
  const int pieces = (k + kPiece<T> - 1) / kPiece<T>, step = splits * gpu::kGroup;
#pragma unroll 1
  for (int base = split * gpu::kGroup + gpu::group_lane(); base < pieces; base += ahead * step) {
    Piece read[ahead][OUTPUTS];
#pragma unroll
    for (int i = 0; i < ahead; ++i)
#pragma unroll
      for (int o = 0; o < OUTPUTS; ++o) read[i][o] = load<T, ALIGNED>(weight + weight_step[o], base + i * step, k);
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      float w[OUTPUTS][kPiece<T>];
#pragma unroll
      for (int o = 0; o < OUTPUTS; ++o) widen_piece<T>(read[i][o], w[o]);
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        float v[kPiece<T>];
        widen_piece<T>(load<T, ALIGNED>(x + x_step[r], base + i * step, k), v);
#pragma unroll
        for (int o = 0; o < OUTPUTS; ++o)
#pragma unroll
          for (int j = 0; j < kPiece<T>; ++j) sums[r * OUTPUTS + o] = fmaf(w[o][j], v[j], sums[r * OUTPUTS + o]);
      }
    }
  }

  __shared__ float partial[kGroups][values];
  int which = 0;
  const float sum = group_sums<values>(sums, which);
  const bool leader = gpu::group_lane() % lanes_per_value == 0;  // one of the lanes that hold a value
  if (splits == 1) {
    if (leader) store<T>(a, first_row + which / OUTPUTS, first_output + which % OUTPUTS, sum);
    return;
  }
  if (leader) partial[group][which] = sum;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < teams * values; i += kThreads) {
    const int team = i / values, value = i % values;
    float total = partial[team * splits][value];
    for (int s = 1; s < splits; ++s) total = gpu::add_rn(total, partial[team * splits + s][value]);
    store<T>(a, first_row + value / OUTPUTS, (static_cast<int64_t>(blockIdx.x) * teams + team) * OUTPUTS + value % OUTPUTS,
             total);
  }
}

// Of the pieces of a weight row, a lane should get no more than are in flight. Depends on k and the dtype alone, as does
// everything that the order of a sum depends on.
template <class T> int splits_for(int64_t k) {
  const int64_t pieces = (k + kPiece<T> - 1) / kPiece<T>;
  int splits = 1;
  while (splits < kGroups && pieces > static_cast<int64_t>(splits) * gpu::kGroup * kInFlight) splits *= 2;
  return splits;
}

template <class T, int ROWS, int OUTPUTS> void launch(const SkinnyProductArguments& a, int splits, void* stream) {
  const int64_t per_block = static_cast<int64_t>(kGroups / splits) * OUTPUTS;
  const int64_t blocks = (a.n + per_block - 1) / per_block, row_groups = (a.rows + ROWS - 1) / ROWS;
  if (blocks > 0x7fffffff || row_groups > 65535)
    throw std::invalid_argument("skinny_product: " + std::to_string(a.rows) + " rows, expected at most 524280");
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(row_groups));
  const auto aligned = [](const void* p, int64_t stride) {
    return reinterpret_cast<uintptr_t>(p) % sizeof(Piece) == 0 && stride % kPiece<T> == 0;
  };
  if (a.k % kPiece<T> == 0 && aligned(a.weight, a.k) && aligned(a.x, a.rows > 1 ? a.x_stride : 0))
    QW_LAUNCH((skinny_product_kernel<T, ROWS, OUTPUTS, true>), grid, dim3(kThreads), 0, gpu::stream_of(stream), a, splits);
  else
    QW_LAUNCH((skinny_product_kernel<T, ROWS, OUTPUTS, false>), grid, dim3(kThreads), 0, gpu::stream_of(stream), a, splits);
}

// Up to eight rows in the smallest kernel that takes them; outputs per group as many as leave enough groups.
template <class T> void launch_rows(const SkinnyProductArguments& a, int splits, void* stream) {
  const bool many_outputs = a.n * splits >= 2048;
  if (a.rows <= 1) return launch<T, 1, 1>(a, splits, stream);
  if (a.rows <= 2) return launch<T, 2, 1>(a, splits, stream);
  if (a.rows <= 4) return launch<T, 4, 2>(a, splits, stream);
  many_outputs ? launch<T, 8, 4>(a, splits, stream) : launch<T, 8, 2>(a, splits, stream);
}

template <class T> void launch_all(SkinnyProductArguments a, void* stream) {
  const int splits = splits_for<T>(a.k);
  const std::int64_t rest = a.rows % kMaxRows, whole = a.rows - rest;
  if (whole > 0) {
    SkinnyProductArguments first = a;
    first.rows = whole;
    launch_rows<T>(first, splits, stream);
  }
  if (rest == 0) return;
  a.x = static_cast<const T*>(a.x) + whole * a.x_stride;
  a.y = static_cast<char*>(a.y) + whole * a.y_stride * static_cast<int64_t>(size_of(a.output));
  a.rows = rest;
  launch_rows<T>(a, splits, stream);
}

}  // namespace

void skinny_product(const SkinnyProductArguments& a, void* stream) {
  if (a.rows < 0 || a.n < 0 || a.k < 1)
    throw std::invalid_argument("skinny_product: " + std::to_string(a.rows) + " rows, n " + std::to_string(a.n) + ", k " +
                                std::to_string(a.k) + ", expected rows and n >= 0 and k >= 1");
  if (a.output != a.dtype && a.output != DType::f32)
    throw std::invalid_argument("skinny_product: y must have the dtype of x or be fp32");
  constexpr std::int64_t limit = 1 << 28;  // eight rows are addressed with 32 bits
  if (a.k > limit || a.x_stride < 0 || a.x_stride > limit)
    throw std::invalid_argument("skinny_product: k and the row stride of x are limited to 268435456");
  if (a.rows == 0 || a.n == 0) return;
  switch (a.dtype) {
    case DType::f32: return launch_all<float>(a, stream);
    case DType::bf16: return launch_all<gpu::bf16>(a, stream);
    case DType::fp16: return launch_all<gpu::fp16>(a, stream);
  }
}

}  // namespace qwen3tts
