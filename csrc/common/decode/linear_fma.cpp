// linear() by fused multiply-adds: 32 lanes take two outputs (gate and up of one, for silu_mul) of up to eight rows. A
// lane takes every 32nd piece of eight elements; its sum, then the group's, are in one order for each k.
#include "common/decode/linear_parts.h"
#include "common/launch.h"
#include "common/reduce.h"

namespace qwen3tts {
namespace {

constexpr int kThreads = 256;
constexpr int kGroups = kThreads / gpu::kGroup;
constexpr int kPiece = 8;    // elements
constexpr int kOutputs = 2;  // of a group
constexpr int kRows = 8;     // that share one reading of the weights

template <class T> struct Piece { gpu::Vector part[sizeof(T) * kPiece / sizeof(gpu::Vector)]; };

// Pieces of a weight row that a lane has asked for before it uses the first.
template <class W> constexpr int kAhead = sizeof(W) == 4 ? 2 : 4;

template <class W> __device__ __forceinline__ Piece<W> load_weights(const W* row, int index, int pieces) {
  Piece<W> piece;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(W)) / 2; ++i)
    piece.part[i] = gpu::load_weight(row + static_cast<int64_t>(index) * kPiece + i * 4, index < pieces);
  return piece;
}

__device__ __forceinline__ void widen_piece(const Piece<float>& piece, float (&to)[kPiece]) {
#pragma unroll
  for (int i = 0; i < kPiece; ++i) to[i] = gpu::from_bits(piece.part[i / 4].word[i % 4]);
}
template <class T> __device__ __forceinline__ void widen_piece(const Piece<T>& piece, float (&to)[kPiece]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) gpu::unpack<T>(piece.part[0].word[i], to[2 * i], to[2 * i + 1]);
}

template <class T> __device__ __forceinline__ Piece<T> load_piece(const T* from) {
  Piece<T> piece;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T)) / 2; ++i) piece.part[i] = gpu::load_vector(from + i * 4);
  return piece;
}

template <class T>
__device__ __forceinline__ Piece<T> normalize(const Piece<T>& v, const Piece<T>& weight, float scale) {
  return {{normalized<T>(v.part[0], weight.part[0], scale)}};
}
__device__ __forceinline__ Piece<gpu::bf16> times(const Piece<gpu::bf16>& v, const Piece<gpu::bf16>& weight) {
  return {{weighted<gpu::bf16>(v.part[0], weight.part[0])}};
}
__device__ __forceinline__ Piece<float> normalize(const Piece<float>& v, const Piece<float>& weight, float scale) {
  Piece<float> out;
#pragma unroll
  for (int i = 0; i < kPiece; ++i) {
    const float unit = gpu::mul_rn(gpu::from_bits(v.part[i / 4].word[i % 4]), scale);
    out.part[i / 4].word[i % 4] = gpu::to_bits(gpu::mul_rn(gpu::from_bits(weight.part[i / 4].word[i % 4]), unit));
  }
  return out;
}

// 1/sqrt(mean(x^2) + eps) of a row, by one group.
template <class X> __device__ __forceinline__ float scale_of(const LinearArguments& a, const X* row) {
  float squares = 0.0f;
  for (int first = gpu::group_lane() * kPiece; first < a.k; first += gpu::kGroup * kPiece) {
    float v[kPiece];
    widen_piece(load_piece(row + first), v);
#pragma unroll
    for (int i = 0; i < kPiece; ++i) squares = fmaf(v[i], v[i], squares);
  }
  return norm_scale(gpu::group_sum(squares), a.k, a.eps);
}

template <class X, class W, int ROWS>
__global__ void __launch_bounds__(kThreads, 1) linear_fma_kernel(LinearArguments a, int outputs) {
  constexpr int ahead = kAhead<W>;
  const bool silu = a.epilogue == Epilogue::silu_mul;
  const int team = static_cast<int>(blockIdx.x) * kGroups + gpu::group();
  const int lane = gpu::group_lane(), pieces = a.k / kPiece;
  const int first = silu ? team : team * kOutputs;  // output; the second one of silu_mul is its up
  const int last = silu ? 2 * outputs - 1 : outputs - 1;
  const int other = silu ? first + outputs : first + 1;
  const W* weight[kOutputs] = {weight_row<W>(a, first < last ? first : last), weight_row<W>(a, other < last ? other : last)};
  Piece<W> held[ahead][kOutputs];
#pragma unroll
  for (int i = 0; i < ahead; ++i)
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) held[i][o] = load_weights(weight[o], i * gpu::kGroup + lane, pieces);

  gpu::launch_dependents();
  gpu::wait_for_previous();

  const int first_row = static_cast<int>(blockIdx.y) * ROWS, rows = a.rows - first_row < ROWS ? a.rows - first_row : ROWS;
  const X* x = static_cast<const X*>(a.x) + first_row * a.x_stride;
  const X* norm_weight = static_cast<const X*>(a.norm_weight);
  float scale[ROWS] = {};
  if (norm_weight != nullptr) {
    if constexpr (ROWS == 1) {
      scale[0] = scale_of(a, x);
    } else {
      static_assert(ROWS <= kGroups, "a group takes a row's scale");
      __shared__ float scales[ROWS];
      const int row = gpu::group() < rows ? gpu::group() : rows - 1;
      const float mine = scale_of(a, x + row * a.x_stride);
      if (lane == 0 && gpu::group() < ROWS) scales[gpu::group()] = mine;
      __syncthreads();
#pragma unroll
      for (int r = 0; r < ROWS; ++r) scale[r] = scales[r];
    }
  }

  const bool writes_normed = a.normed != nullptr && team == 0;
  float sums[ROWS][kOutputs] = {};
#pragma unroll 1
  for (int base = lane; base < pieces; base += ahead * gpu::kGroup) {
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      const int piece = base + i * gpu::kGroup;
      if (piece < pieces) {
        float w[kOutputs][kPiece];
#pragma unroll
        for (int o = 0; o < kOutputs; ++o) widen_piece(held[i][o], w[o]);
        Piece<X> norm{};
        if (norm_weight != nullptr) norm = load_piece(norm_weight + piece * kPiece);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          if (r >= rows) break;
          Piece<X> read = load_piece(x + r * a.x_stride + piece * kPiece);
          const Piece<X> plain = read;
          if (norm_weight != nullptr) read = normalize(read, norm, scale[r]);
          if (writes_normed) {
            X* to = static_cast<X*>(a.normed) + static_cast<int64_t>(first_row + r) * a.k + piece * kPiece;
#pragma unroll
            for (int j = 0; j < static_cast<int>(sizeof(X)) / 2; ++j) gpu::store_vector(to + j * 4, read.part[j]);
          }
          if constexpr (kScalesSum<X>)
            if (norm_weight != nullptr) read = times(plain, norm);
          float v[kPiece];
          widen_piece(read, v);
#pragma unroll
          for (int o = 0; o < kOutputs; ++o)
#pragma unroll
            for (int j = 0; j < kPiece; ++j) sums[r][o] = fmaf(w[o][j], v[j], sums[r][o]);
        }
      }
#pragma unroll
      for (int o = 0; o < kOutputs; ++o)
        held[i][o] = load_weights(weight[o], piece + ahead * gpu::kGroup, pieces);
    }
  }

#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      sums[r][o] = gpu::group_sum(sums[r][o]);
      if (kScalesSum<X> && norm_weight != nullptr) sums[r][o] = gpu::mul_rn(sums[r][o], scale[r]);
    }
    if (lane != r || r >= rows) continue;
    const int row = first_row + r;
    const X* y = static_cast<const X*>(a.y) + row * a.y_stride;
    const bool residual = a.epilogue == Epilogue::residual;
    if (first < outputs) {
      const float up = silu ? biased<W>(a, other, sums[r][1]) : 0.0f;
      finish<X>(a, row, first, biased<W>(a, first, sums[r][0]), up, residual ? gpu::widen(y[first]) : 0.0f);
    }
    if (!silu && other < outputs)
      finish<X>(a, row, other, biased<W>(a, other, sums[r][1]), 0.0f, residual ? gpu::widen(y[other]) : 0.0f);
  }
}

template <class X, class W> void launch(const LinearArguments& a, void* stream) {
  const int outputs = outputs_of(a), per_block = kGroups * (a.epilogue == Epilogue::silu_mul ? 1 : kOutputs);
  const auto blocks = static_cast<unsigned>((outputs + per_block - 1) / per_block);
  if (a.rows == 1) {
    QW_LAUNCH_DEPENDENT((linear_fma_kernel<X, W, 1>), dim3(blocks), dim3(kThreads), 0, gpu::stream_of(stream), a, outputs);
    return;
  }
  const auto row_groups = static_cast<unsigned>((a.rows + kRows - 1) / kRows);
  QW_LAUNCH_DEPENDENT((linear_fma_kernel<X, W, kRows>), dim3(blocks, row_groups), dim3(kThreads), 0,
                      gpu::stream_of(stream), a, outputs);
}

}  // namespace

void linear_fma(const LinearArguments& a, void* stream) {
  const bool wide = a.weight_dtype == DType::f32;
  switch (a.dtype) {
    case DType::f32: return launch<float, float>(a, stream);
    case DType::bf16: return wide ? launch<gpu::bf16, float>(a, stream) : launch<gpu::bf16, gpu::bf16>(a, stream);
    case DType::fp16: return wide ? launch<gpu::fp16, float>(a, stream) : launch<gpu::fp16, gpu::fp16>(a, stream);
  }
}

}  // namespace qwen3tts
