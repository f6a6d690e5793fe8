#include "common/decode/frame.h"

#include "common/dtype.h"
#include "common/gpu.h"
#include "common/launch.h"

namespace qwen3tts {
namespace {

constexpr int kThreads = 256;
constexpr int kPiece = 4;       // elements that a thread of `sum` owns
constexpr int kInFlight = 16;   // embeddings that it loads at once

template <class T> struct alignas(kPiece * sizeof(T)) Piece { T at[kPiece]; };

// The whole block copies `bytes`, a multiple of 16.
__device__ __forceinline__ void copy_row(void* to, const void* from, int64_t bytes) {
  const int pieces = static_cast<int>(bytes / static_cast<int64_t>(sizeof(uint4)));
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kThreads)
    static_cast<uint4*>(to)[i] = static_cast<const uint4*>(from)[i];
}

__device__ __forceinline__ char* at(void* base, int64_t row, int64_t bytes) {
  return static_cast<char*>(base) + row * bytes;
}
__device__ __forceinline__ const char* at(const void* base, int64_t row, int64_t bytes) {
  return static_cast<const char*>(base) + row * bytes;
}

// ---------------------------------------------------------------- begin

__global__ void __launch_bounds__(kThreads) begin_kernel(FrameBeginArguments a, int64_t row_bytes) {
  gpu::launch_dependents();
  gpu::wait_for_previous();
  const int r = static_cast<int>(blockIdx.x);
  const FrameState& s = a.state;
  const bool active = s.finished[r] == kRunning && s.frame[r] < s.limit[r];
  if (threadIdx.x == 0) {
    a.active[r] = a.active[a.rows + r] = active ? r : -1;
    a.position[r] = active ? s.position[r] : 0;
  }
  if (!active) return;
  if (a.copy_hidden) copy_row(at(a.x, r, row_bytes), at(s.hidden, r, row_bytes), row_bytes);
  const int64_t code = s.codes[static_cast<int64_t>(r) * s.groups];
  copy_row(at(a.x, a.rows + r, row_bytes), at(a.code_0_input, code, row_bytes), row_bytes);
}

// ---------------------------------------------------------------- sum

// The embeddings of codes first .. first + kInFlight - 1 (groups at most) are added to `total` in order.
template <class T>
__device__ __forceinline__ void add_embeddings(const FrameSumArguments& a, const std::int32_t* codes, int first,
                                               int64_t column, float (&total)[kPiece]) {
  const int64_t width = a.state.hidden_size;
  Piece<T> loaded[kInFlight];
#pragma unroll
  for (int g = 0; g < kInFlight; ++g)
    if (first + g < a.state.groups)
      loaded[g] = *reinterpret_cast<const Piece<T>*>(static_cast<const T*>(a.tables[first + g]) +
                                                     codes[first + g] * width + column);
#pragma unroll
  for (int g = 0; g < kInFlight; ++g)
    if (first + g < a.state.groups)
#pragma unroll
      for (int i = 0; i < kPiece; ++i) total[i] = gpu::add_rn(total[i], gpu::widen(loaded[g].at[i]));
}

template <class T> __global__ void __launch_bounds__(kThreads) sum_kernel(FrameSumArguments a) {
  gpu::launch_dependents();
  gpu::wait_for_previous();
  const FrameState& s = a.state;
  const int r = static_cast<int>(blockIdx.x);
  const bool active = a.active[r] >= 0;
  const std::int32_t* codes = s.codes + static_cast<int64_t>(r) * s.groups;
  if (blockIdx.y == 0)
    for (int g = static_cast<int>(threadIdx.x); g < s.groups; g += kThreads)
      a.ring[static_cast<int64_t>(r) * s.groups + g] = active ? codes[g] : -1;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kPiece;
  if (!active || column >= s.hidden_size) return;

  const int frame = s.frame[r];
  const T* added = static_cast<const T*>(frame < s.text_rows[r] ? s.text[r] : a.padding);
  if (frame < s.text_rows[r]) added += static_cast<int64_t>(frame) * s.hidden_size;
  const Piece<T> text = *reinterpret_cast<const Piece<T>*>(added + column);
  float total[kPiece] = {};
  for (int first = 0; first < s.groups; first += kInFlight) add_embeddings<T>(a, codes, first, column, total);
  Piece<T> out;
#pragma unroll
  for (int i = 0; i < kPiece; ++i)
    out.at[i] = gpu::narrow<T>(gpu::add_rn(gpu::widen(gpu::narrow<T>(total[i])), gpu::widen(text.at[i])));
  *reinterpret_cast<Piece<T>*>(static_cast<T*>(a.x) + static_cast<int64_t>(r) * s.hidden_size + column) = out;
}

// ---------------------------------------------------------------- end, prompt, admit

__global__ void __launch_bounds__(kThreads) end_kernel(FrameEndArguments a, int64_t row_bytes) {
  gpu::launch_dependents();
  gpu::wait_for_previous();
  const int r = static_cast<int>(blockIdx.x);
  const FrameState& s = a.state;
  const int64_t slot = a.slots[r];
  if (slot < 0) return;
  copy_row(at(s.hidden, slot, row_bytes), at(a.normed, r, row_bytes), row_bytes);
  if (threadIdx.x != 0) return;
  const std::int32_t frame = s.frame[slot] + a.step;
  s.frame[slot] = frame;
  s.position[slot] += a.step;
  if (s.codes[slot * s.groups] == a.eos_id) s.finished[slot] = kFinishedEos;
  else if (frame >= s.max_frames[slot]) s.finished[slot] = kFinishedLength;
}

__global__ void __launch_bounds__(kThreads) prompt_kernel(FramePromptArguments a, int64_t row_bytes) {
  gpu::launch_dependents();
  gpu::wait_for_previous();
  const int c = static_cast<int>(blockIdx.x);
  const bool there = c < a.count;
  if (threadIdx.x == 0) {
    a.slots[c] = there ? a.slot[c] : -1;
    a.positions[c] = there ? a.position[c] : 0;
  }
  if (there) copy_row(at(a.x, c, row_bytes), at(a.packed, c, row_bytes), row_bytes);
}

__global__ void __launch_bounds__(kThreads) admit_kernel(FrameAdmitArguments a, int64_t row_bytes) {
  gpu::launch_dependents();
  gpu::wait_for_previous();
  const int r = static_cast<int>(blockIdx.x);
  const int column = a.last[r] - a.first;
  if (column < 0 || column >= a.count) return;
  const FrameState& s = a.state;
  const int64_t slot = a.slots[r];
  copy_row(at(a.x, r, row_bytes), at(a.columns, column, row_bytes), row_bytes);
  for (int64_t i = threadIdx.x; i < s.vocab; i += kThreads) s.seen[slot * s.vocab + i] = 0;
  if (threadIdx.x != 0) return;
  s.frame[slot] = 0;
  s.position[slot] = a.counts[r];
  s.finished[slot] = kRunning;
  s.status[slot] = 0;
}

// ---------------------------------------------------------------- launches

// Bytes of a row of `width` elements. Raises std::invalid_argument unless they can be copied.
int64_t row_bytes_of(const char* what, int32_t width, DType dtype) {
  const int64_t bytes = static_cast<int64_t>(width) * static_cast<int64_t>(size_of(dtype));
  if (width < 1 || bytes % static_cast<int64_t>(sizeof(uint4)) != 0)
    throw std::invalid_argument(std::string(what) + ": a row has " + std::to_string(width) + " elements or " +
                                std::to_string(bytes) + " bytes, expected a multiple of 16 bytes");
  return bytes;
}

// The same, and raises std::invalid_argument unless the rows fit.
int64_t check(const char* what, const FrameState& s, int32_t rows, int32_t width, DType dtype) {
  if (rows < 0 || rows > s.slots)
    throw std::invalid_argument(std::string(what) + ": " + std::to_string(rows) + " rows, expected 0 to the " +
                                std::to_string(s.slots) + " slots");
  const int64_t bytes = row_bytes_of(what, width, dtype);
  if (s.groups < 1 || s.groups > kMaxCodeGroups || s.vocab < 1)
    throw std::invalid_argument(std::string(what) + ": " + std::to_string(s.groups) + " codes a frame of " +
                                std::to_string(s.vocab) + " tokens, expected 1 to " + std::to_string(kMaxCodeGroups) +
                                " and a positive number");
  return bytes;
}

// Not a dependent launch, although a chain of them goes on from here: everything queued before has ended when it starts,
// so the talker's attention may read positions, page tables and older keys ahead of its own wait.
template <class T> void launch_sum(const FrameSumArguments& a, void* stream) {
  const int per_block = kThreads * kPiece;
  QW_LAUNCH((sum_kernel<T>),
            dim3(static_cast<unsigned>(a.rows),
                 static_cast<unsigned>((a.state.hidden_size + per_block - 1) / per_block)),
            dim3(kThreads), 0, gpu::stream_of(stream), a);
}

}  // namespace

void frame_begin(const FrameBeginArguments& a, void* stream) {
  const int64_t row_bytes = check("frame_begin", a.state, a.rows, a.width, a.dtype);
  if (a.copy_hidden && a.width != a.state.hidden_size)
    throw std::invalid_argument("frame_begin: the hidden state has " + std::to_string(a.state.hidden_size) +
                                " elements and the predictor's input " + std::to_string(a.width) +
                                ": expected a projection between them");
  if (a.rows == 0) return;
  QW_LAUNCH_DEPENDENT(begin_kernel, dim3(static_cast<unsigned>(a.rows)), dim3(kThreads), 0, gpu::stream_of(stream), a,
                      row_bytes);
}

void frame_sum(const FrameSumArguments& a, void* stream) {
  check("frame_sum", a.state, a.rows, a.state.hidden_size, a.dtype);
  if (a.rows == 0) return;
  switch (a.dtype) {
    case DType::f32: return launch_sum<float>(a, stream);
    case DType::bf16: return launch_sum<gpu::bf16>(a, stream);
    case DType::fp16: return launch_sum<gpu::fp16>(a, stream);
  }
}

void frame_end(const FrameEndArguments& a, void* stream) {
  const int64_t row_bytes = check("frame_end", a.state, a.rows, a.state.hidden_size, a.dtype);
  if (a.rows == 0) return;
  QW_LAUNCH_DEPENDENT(end_kernel, dim3(static_cast<unsigned>(a.rows)), dim3(kThreads), 0, gpu::stream_of(stream), a,
                      row_bytes);
}

// This and frame_admit are no dependent launches: a graph may follow and go before.
void frame_prompt(const FramePromptArguments& a, void* stream) {
  const int64_t row_bytes = row_bytes_of("frame_prompt", a.width, a.dtype);
  if (a.count < 0 || a.count > a.columns)
    throw std::invalid_argument("frame_prompt: " + std::to_string(a.count) + " positions, expected 0 to the " +
                                std::to_string(a.columns) + " columns");
  for (const void* rows : {a.packed, static_cast<const void*>(a.x)})
    if (reinterpret_cast<std::uintptr_t>(rows) % sizeof(uint4) != 0)
      throw std::invalid_argument("frame_prompt: rows must begin at multiples of 16 bytes");
  if (a.columns == 0) return;
  QW_LAUNCH(prompt_kernel, dim3(static_cast<unsigned>(a.columns)), dim3(kThreads), 0, gpu::stream_of(stream), a, row_bytes);
}

void frame_admit(const FrameAdmitArguments& a, void* stream) {
  const int64_t row_bytes = check("frame_admit", a.state, a.rows, a.state.hidden_size, a.dtype);
  if (a.rows == 0) return;
  QW_LAUNCH(admit_kernel, dim3(static_cast<unsigned>(a.rows)), dim3(kThreads), 0, gpu::stream_of(stream), a, row_bytes);
}

}  // namespace qwen3tts
