#include "common/rms_norm.h"

#include "common/dtype.h"
#include "common/gpu.h"
#include "common/reduce.h"

namespace qwen3tts {
namespace {

constexpr int kPiece = 4;          // elements that a thread takes at a time
constexpr int kHeld = 4;           // pieces that a thread keeps in registers: rows up to 8192 are read once
constexpr int kMaxThreads = 512;   // per row
constexpr int kRowsPerBlock = 4;   // for rows of one group

template <class T> struct Row {
  const T* x;
  const T* residual;
  T* sum;
};

template <class T> struct alignas(kPiece * sizeof(T)) Piece { T at[kPiece]; };

template <class T, bool ALIGNED>
__device__ __forceinline__ Piece<T> load(const T* from, int64_t column, int64_t width) {
  Piece<T> piece;
  if constexpr (ALIGNED) {
    piece = *reinterpret_cast<const Piece<T>*>(from + column);
  } else {
#pragma unroll
    for (int i = 0; i < kPiece; ++i) piece.at[i] = column + i < width ? from[column + i] : T{};
  }
  return piece;
}

template <class T, bool ALIGNED>
__device__ __forceinline__ void store(T* to, int64_t column, int64_t width, const Piece<T>& piece) {
  if constexpr (ALIGNED) {
    *reinterpret_cast<Piece<T>*>(to + column) = piece;
  } else {
#pragma unroll
    for (int i = 0; i < kPiece; ++i)
      if (column + i < width) to[column + i] = piece.at[i];
  }
}

// s of one piece. Elements past the row are zero.
template <class T, bool RESIDUAL, bool ALIGNED>
__device__ __forceinline__ Piece<T> normed(const Row<T>& row, int64_t column, int64_t width) {
  Piece<T> piece = load<T, ALIGNED>(row.x, column, width);
  if constexpr (RESIDUAL) {
    const Piece<T> other = load<T, ALIGNED>(row.residual, column, width);
#pragma unroll
    for (int i = 0; i < kPiece; ++i)
      piece.at[i] = gpu::narrow<T>(gpu::add_rn(gpu::widen(piece.at[i]), gpu::widen(other.at[i])));
    store<T, ALIGNED>(row.sum, column, width, piece);
  }
  return piece;
}

template <class T> __device__ __forceinline__ float add_squares(float total, const Piece<T>& piece) {
#pragma unroll
  for (int i = 0; i < kPiece; ++i) {
    const float v = gpu::widen(piece.at[i]);
    total = gpu::add_rn(total, gpu::mul_rn(v, v));
  }
  return total;
}

template <class T> __device__ __forceinline__ Piece<T> scaled(const Piece<T>& piece, const Piece<T>& weight, float scale) {
  Piece<T> out;
#pragma unroll
  for (int i = 0; i < kPiece; ++i) {
    const T unit = gpu::narrow<T>(gpu::mul_rn(gpu::widen(piece.at[i]), scale));
    out.at[i] = gpu::narrow<T>(gpu::mul_rn(gpu::widen(weight.at[i]), gpu::widen(unit)));
  }
  return out;
}

// The sum over all threads of a row, in each of them. Every thread of the block must call this.
__device__ __forceinline__ float row_sum(float v, int threads_per_row) {
  __shared__ float partial[kMaxThreads / gpu::kGroup];
  v = gpu::group_sum(v);
  if (threads_per_row == gpu::kGroup) return v;
  if (gpu::group_lane() == 0) partial[gpu::group()] = v;
  __syncthreads();
  float total = partial[0];
  for (int i = 1; i < threads_per_row / gpu::kGroup; ++i) total = gpu::add_rn(total, partial[i]);
  return total;
}

template <class T, bool RESIDUAL, bool ALIGNED>
__global__ void rms_norm_kernel(RmsNormArguments a, int threads_per_row) {
  const int thread = static_cast<int>(threadIdx.x) % threads_per_row;
  const int rows_here = static_cast<int>(blockDim.x) / threads_per_row;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * rows_here + static_cast<int>(threadIdx.x) / threads_per_row;
  // A thread without a row or past its end adds zeros: all lanes meet in the shuffles.
  const int64_t end = row < a.rows ? a.width : 0, step = static_cast<int64_t>(threads_per_row) * kPiece;
  const int64_t first = static_cast<int64_t>(thread) * kPiece;
  Row<T> in{static_cast<const T*>(a.x) + row * a.x_stride, nullptr, nullptr};
  if constexpr (RESIDUAL) {
    in.residual = static_cast<const T*>(a.residual) + row * a.residual_stride;
    in.sum = static_cast<T*>(a.sum) + row * a.sum_stride;
  }

  Piece<T> held[kHeld];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int64_t column = first + i * step;
    if (column >= end) continue;
    held[i] = normed<T, RESIDUAL, ALIGNED>(in, column, a.width);
    squares = add_squares(squares, held[i]);
  }
  for (int64_t column = first + kHeld * step; column < end; column += step)
    squares = add_squares(squares, normed<T, RESIDUAL, ALIGNED>(in, column, a.width));

  const float mean = gpu::div_rn(row_sum(squares, threads_per_row), static_cast<float>(a.width));
  const float scale = gpu::div_rn(1.0f, sqrtf(gpu::add_rn(mean, a.eps)));

  const T* weight = static_cast<const T*>(a.weight);
  T* out = static_cast<T*>(a.y) + row * a.y_stride;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int64_t column = first + i * step;
    if (column >= end) continue;
    store<T, ALIGNED>(out, column, a.width, scaled(held[i], load<T, ALIGNED>(weight, column, a.width), scale));
  }
  for (int64_t column = first + kHeld * step; column < end; column += step) {
    const Piece<T> piece = load<T, ALIGNED>(RESIDUAL ? in.sum : in.x, column, a.width);  // what this thread wrote or read
    store<T, ALIGNED>(out, column, a.width, scaled(piece, load<T, ALIGNED>(weight, column, a.width), scale));
  }
}

template <class T> bool aligned(const RmsNormArguments& a) {
  const auto fits = [](const void* pointer, int64_t stride) {
    return reinterpret_cast<uintptr_t>(pointer) % sizeof(Piece<T>) == 0 && stride % kPiece == 0;
  };
  return a.width % kPiece == 0 && fits(a.x, a.x_stride) && fits(a.weight, 0) && fits(a.y, a.y_stride) &&
         (a.residual == nullptr || (fits(a.residual, a.residual_stride) && fits(a.sum, a.sum_stride)));
}

int threads_for(int64_t width) {
  int threads = gpu::kGroup;
  while (threads < kMaxThreads && static_cast<int64_t>(threads) * kPiece < width) threads *= 2;
  return threads;
}

template <class T, bool RESIDUAL, bool ALIGNED> void launch(const RmsNormArguments& a, void* stream) {
  const int threads = threads_for(a.width), rows_here = threads == gpu::kGroup ? kRowsPerBlock : 1;
  const int64_t blocks = (a.rows + rows_here - 1) / rows_here;
  if (blocks > 0x7fffffff) throw std::invalid_argument("rms_norm: too many rows: " + std::to_string(a.rows));
  QW_LAUNCH((rms_norm_kernel<T, RESIDUAL, ALIGNED>), dim3(static_cast<unsigned>(blocks)),
            dim3(static_cast<unsigned>(threads * rows_here)), 0, gpu::stream_of(stream), a, threads);
}

template <class T> void launch_for(const RmsNormArguments& a, void* stream) {
  const bool vectors = aligned<T>(a);
  if (a.residual != nullptr) vectors ? launch<T, true, true>(a, stream) : launch<T, true, false>(a, stream);
  else vectors ? launch<T, false, true>(a, stream) : launch<T, false, false>(a, stream);
}

}  // namespace

void rms_norm(const RmsNormArguments& a, void* stream) {
  if (a.rows < 0 || a.width < 1)
    throw std::invalid_argument("rms_norm: " + std::to_string(a.rows) + " rows of " + std::to_string(a.width) +
                                ", expected rows >= 0 and a width >= 1");
  if ((a.residual == nullptr) != (a.sum == nullptr))
    throw std::invalid_argument("rms_norm: residual and sum belong together: give both or neither");
  if (a.rows == 0) return;
  switch (a.dtype) {
    case DType::f32: return launch_for<float>(a, stream);
    case DType::bf16: return launch_for<gpu::bf16>(a, stream);
    case DType::fp16: return launch_for<gpu::fp16>(a, stream);
  }
}

}  // namespace qwen3tts
