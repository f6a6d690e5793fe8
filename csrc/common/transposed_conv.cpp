#include "common/transposed_conv.h"

#include "common/dtype.h"
#include "common/gpu.h"

namespace qwen3tts {
namespace {

constexpr int kThreads = 128;   // direct and scatter
constexpr int kTile = 32;       // time steps and output channels of a tile
constexpr int kDepth = 16;      // input channels that are in shared memory at a time
constexpr int kPerThread = 4;   // output channels of one thread
constexpr int kTileThreads = kTile * kTile / kPerThread;

template <class T> __device__ __forceinline__ T* output_row(const TransposedConvArguments& a, int64_t batch, int64_t channel) {
  return static_cast<T*>(a.y) + (batch * a.out + channel) * a.steps * a.stride;
}

template <class T> __device__ __forceinline__ T with_bias(const TransposedConvArguments& a, int64_t channel, float sum) {
  if (a.bias != nullptr) sum = gpu::add_rn(sum, gpu::widen(static_cast<const T*>(a.bias)[channel]));
  return gpu::narrow<T>(sum);
}

// Grid: samples of y, output channels, batch.
template <class T, int TAPS> __global__ void direct_kernel(TransposedConvArguments a) {
  const int64_t sample = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (sample >= a.steps * a.stride) return;
  const int64_t step = sample / a.stride, phase = sample % a.stride, channel = blockIdx.y, batch = blockIdx.z;
  const T* x = static_cast<const T*>(a.x) + batch * a.x_batch_stride + step;
  const T* weight = static_cast<const T*>(a.weight) + channel * a.weight_out_stride + phase * a.weight_tap_stride;
  const int64_t second = a.stride * a.weight_tap_stride;
  float sum = 0.0f;
  for (int64_t i = 0; i < a.in; ++i) {
    sum = fmaf(gpu::widen(weight[0]), gpu::widen(x[TAPS - 1]), sum);
    if constexpr (TAPS == 2) sum = fmaf(gpu::widen(weight[second]), gpu::widen(x[0]), sum);
    x += a.x_channel_stride;
    weight += a.weight_in_stride;
  }
  output_row<T>(a, batch, channel)[sample] = with_bias<T>(a, channel, sum);
}

// Grid: tiles of steps, tiles of output channels, batch * stride. Thread: one step, kPerThread channels.
template <class T, int TAPS> __global__ void __launch_bounds__(kTileThreads) tiled_kernel(TransposedConvArguments a) {
  __shared__ float inputs[kDepth][kTile + TAPS - 1];
  __shared__ float weights[TAPS][kDepth][kTile + 1];
  const int64_t phase = blockIdx.z % a.stride, batch = blockIdx.z / a.stride;
  const int64_t first_step = static_cast<int64_t>(blockIdx.x) * kTile, first_channel = static_cast<int64_t>(blockIdx.y) * kTile;
  const int64_t columns = a.steps + TAPS - 1;
  const T* x = static_cast<const T*>(a.x) + batch * a.x_batch_stride;
  const T* weight = static_cast<const T*>(a.weight) + phase * a.weight_tap_stride;
  const int thread = static_cast<int>(threadIdx.x), column = thread % kTile, row = thread / kTile * kPerThread;

  float sums[kPerThread] = {};
  for (int64_t base = 0; base < a.in; base += kDepth) {
    // Zeros outside: they add nothing.
#pragma unroll 1
    for (int e = thread; e < kDepth * (kTile + TAPS - 1); e += kTileThreads) {
      const int i = e / (kTile + TAPS - 1), t = e % (kTile + TAPS - 1);
      const bool inside = base + i < a.in && first_step + t < columns;
      inputs[i][t] = inside ? gpu::widen(x[(base + i) * a.x_channel_stride + first_step + t]) : 0.0f;
    }
#pragma unroll 1
    for (int e = thread; e < TAPS * kDepth * kTile; e += kTileThreads) {
      const int i = e % kDepth, o = e / kDepth % kTile, tap = e / (kDepth * kTile);
      const bool inside = base + i < a.in && first_channel + o < a.out;
      weights[tap][i][o] = inside ? gpu::widen(weight[(base + i) * a.weight_in_stride +
                                                      (first_channel + o) * a.weight_out_stride +
                                                      tap * a.stride * a.weight_tap_stride])
                                  : 0.0f;
    }
    __syncthreads();
#pragma unroll 4
    for (int i = 0; i < kDepth; ++i) {
      const float now = inputs[i][column + TAPS - 1], before = inputs[i][column];
#pragma unroll
      for (int j = 0; j < kPerThread; ++j) {
        sums[j] = fmaf(weights[0][i][row + j], now, sums[j]);
        if constexpr (TAPS == 2) sums[j] = fmaf(weights[TAPS - 1][i][row + j], before, sums[j]);
      }
    }
    __syncthreads();
  }
  const int64_t step = first_step + column;
  if (step >= a.steps) return;
  for (int j = 0; j < kPerThread; ++j) {
    const int64_t channel = first_channel + row + j;
    if (channel < a.out) output_row<T>(a, batch, channel)[step * a.stride + phase] = with_bias<T>(a, channel, sums[j]);
  }
}

// z [batch, stride, out, steps] to y. Grid: samples of y, output channels, batch.
template <class T> __global__ void interleave_kernel(TransposedConvArguments a, const float* z) {
  const int64_t sample = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (sample >= a.steps * a.stride) return;
  const int64_t step = sample / a.stride, phase = sample % a.stride, channel = blockIdx.y, batch = blockIdx.z;
  const float sum = z[((batch * a.stride + phase) * a.out + channel) * a.steps + step];
  output_row<T>(a, batch, channel)[sample] = with_bias<T>(a, channel, sum);
}

void check_arguments(const TransposedConvArguments& a) {
  const auto refuse = [](const std::string& what) { throw std::invalid_argument("transposed_conv: " + what); };
  if (a.batch < 0 || a.steps < 0 || a.in < 1 || a.out < 1 || a.stride < 1)
    refuse("batch " + std::to_string(a.batch) + ", steps " + std::to_string(a.steps) + ", channels " + std::to_string(a.in) +
           " to " + std::to_string(a.out) + ", stride " + std::to_string(a.stride) +
           ", expected batch and steps >= 0 and the rest >= 1");
  if (a.taps != 1 && a.taps != 2) refuse(std::to_string(a.taps) + " taps, expected 1 or 2 (kernel = taps * stride)");
  constexpr int64_t limit = 65535;  // of a grid's y and z
  if (a.out > limit || a.batch * a.stride > limit) refuse("out and batch * stride are limited to 65535");
  if (a.steps * a.stride > 0x7fffffff) refuse("more than 2147483647 samples in one call");
}

unsigned blocks_of(int64_t count, int64_t size) { return static_cast<unsigned>((count + size - 1) / size); }

// Threads and blocks of the kernels that have a thread per sample: short pieces get small blocks.
dim3 sample_block(const TransposedConvArguments& a) {
  const int64_t samples = a.steps * a.stride;
  return dim3(samples >= kThreads ? kThreads : blocks_of(samples, 32) * 32);
}
dim3 sample_grid(const TransposedConvArguments& a) {
  return dim3(blocks_of(a.steps * a.stride, kThreads), static_cast<unsigned>(a.out), static_cast<unsigned>(a.batch));
}

template <class T> void direct(const TransposedConvArguments& a, void* stream) {
  if (a.taps == 1) QW_LAUNCH((direct_kernel<T, 1>), sample_grid(a), sample_block(a), 0, gpu::stream_of(stream), a);
  else QW_LAUNCH((direct_kernel<T, 2>), sample_grid(a), sample_block(a), 0, gpu::stream_of(stream), a);
}

template <class T> void tiled(const TransposedConvArguments& a, void* stream) {
  const dim3 grid(blocks_of(a.steps, kTile), blocks_of(a.out, kTile), static_cast<unsigned>(a.batch * a.stride));
  if (a.taps == 1) QW_LAUNCH((tiled_kernel<T, 1>), grid, dim3(kTileThreads), 0, gpu::stream_of(stream), a);
  else QW_LAUNCH((tiled_kernel<T, 2>), grid, dim3(kTileThreads), 0, gpu::stream_of(stream), a);
}

template <class T> void interleave(const TransposedConvArguments& a, const float* z, void* stream) {
  QW_LAUNCH((interleave_kernel<T>), sample_grid(a), sample_block(a), 0, gpu::stream_of(stream), a, z);
}

// Calls one of the above with the element type.
#define QW_FOR_DTYPE(dtype, call, ...)                               \
  switch (dtype) {                                                   \
    case DType::f32: return call<float>(__VA_ARGS__);                \
    case DType::bf16: return call<gpu::bf16>(__VA_ARGS__);           \
    case DType::fp16: return call<gpu::fp16>(__VA_ARGS__);           \
  }

}  // namespace

void transposed_conv_direct(const TransposedConvArguments& a, void* stream) {
  check_arguments(a);
  if (a.batch == 0 || a.steps == 0) return;
  QW_FOR_DTYPE(a.dtype, direct, a, stream)
}

void transposed_conv_tiled(const TransposedConvArguments& a, void* stream) {
  check_arguments(a);
  if (a.batch == 0 || a.steps == 0) return;
  QW_FOR_DTYPE(a.dtype, tiled, a, stream)
}

void transposed_conv_gemm(const TransposedConvArguments& a, float* workspace, Blas& blas, void* stream) {
  check_arguments(a);
  if (a.weight_in_stride != 1 || a.weight_out_stride != a.in || a.weight_tap_stride != a.in * a.out)
    throw std::invalid_argument("transposed_conv: the products need the weight packed as [taps * stride, out, in]");
  if (a.batch == 0 || a.steps == 0) return;
  const int64_t rows = a.stride * a.out, size = static_cast<int64_t>(size_of(a.dtype));
  Gemm product{rows, a.steps, a.in, a.batch, a.weight, nullptr, workspace, a.in, a.x_channel_stride, a.steps,
               0, a.x_batch_stride, rows * a.steps, false, 0.0f, a.dtype, DType::f32};
  for (int64_t tap = 0; tap < a.taps; ++tap) {
    product.a = static_cast<const char*>(a.weight) + tap * rows * a.in * size;
    product.b = static_cast<const char*>(a.x) + (a.taps - 1 - tap) * size;
    product.beta = tap == 0 ? 0.0f : 1.0f;
    blas.gemm(product, stream);
  }
  QW_FOR_DTYPE(a.dtype, interleave, a, workspace, stream)
}

}  // namespace qwen3tts
