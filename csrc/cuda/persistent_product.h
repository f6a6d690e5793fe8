// The products of the persistent kernel: eight warps make the slices of the sums, one more adds them up and finishes them,
// in the arithmetic of common/decode/linear_parts.h. For device sources only.
#pragma once

#include "persistent_ring.h"

namespace qwen3tts {
namespace persistent {

// Chain c of a unit has words c and c + 2 of a lane's 16 bytes; else words 2 c and 2 c + 1.
#ifndef QW_WORDS_APART
#define QW_WORDS_APART 0
#endif
constexpr bool kApart = QW_WORDS_APART != 0;

constexpr int kMaxRows = 48;  // of weights that a block has in one product: gate and up
constexpr int kRed = 52;

struct Partial {  // of a product, double: [slice][column]
  float sums[kConsumerWarps][kColumns][kRed];
  float squares[kConsumerWarps][kColumns];
};

// The column that a lane multiplies with: of 8 there are 2, several times, or once if columns is 1.
__device__ __forceinline__ int lane_column(int columns) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  return (kApart ? g / 2 : g) % 2 * (columns - 1);
}

// GROUPS times 8 rows of weights.
template <int GROUPS> struct Sums {
  static constexpr int tiles = kApart ? GROUPS : (GROUPS + 1) / 2;
  static constexpr int chains = kApart ? 1 : 2;
  float c[chains][tiles][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < chains; ++n)
#pragma unroll
      for (int t = 0; t < tiles; ++t)
#pragma unroll
        for (int i = 0; i < 4; ++i) c[n][t][i] = 0.0f;
  }
  // One unit. weight(group): the lane's 16 bytes.
  template <class Weight> __device__ __forceinline__ void add(const Weight& weight, const gpu::Vector& v) {
    if constexpr (kApart) {
      // Both chains in one product: the upper eight rows are the same weights' other words, in columns of their own.
      const bool odd = (threadIdx.x & 4u) != 0;
      const uint32_t b0 = odd ? v.word[1] : v.word[0], b1 = odd ? v.word[3] : v.word[2];
#pragma unroll
      for (int t = 0; t < tiles; ++t) {
        const gpu::Vector& w = weight(t);
        gpu::mma<gpu::bf16>(c[0][t], w.word[0], w.word[1], w.word[2], w.word[3], b0, b1);
      }
    } else {
#pragma unroll
      for (int t = 0; t < tiles; ++t) {
        const gpu::Vector& low = weight(2 * t);
        const gpu::Vector high = 2 * t + 1 < GROUPS ? weight(2 * t + 1 < GROUPS ? 2 * t + 1 : 0) : gpu::Vector{{0, 0, 0, 0}};
#pragma unroll
        for (int n = 0; n < 2; ++n)
          gpu::mma<gpu::bf16>(c[n][t], low.word[2 * n], high.word[2 * n], low.word[2 * n + 1], high.word[2 * n + 1],
                              v.word[2 * n], v.word[2 * n + 1]);
      }
    }
  }
  // Lane 4 g + column leaves the sums of row g of every group.
  __device__ __forceinline__ void leave(Partial& to, int columns) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, column = lane % 4;
    if (column >= columns) return;
    float* at = to.sums[threadIdx.x / 32][column] + g;
    if constexpr (kApart) {
#pragma unroll
      for (int t = 0; t < tiles; ++t) at[8 * t] = gpu::add_rn(c[0][t][0], c[0][t][3]);
    } else {
#pragma unroll
      for (int t = 0; t < tiles; ++t)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (2 * t + half < GROUPS)
            at[16 * t + 8 * half] = column == 0 ? gpu::add_rn(c[0][t][2 * half], c[chains - 1][t][2 * half])
                                                : gpu::add_rn(c[0][t][2 * half + 1], c[chains - 1][t][2 * half + 1]);
    }
  }
};

__device__ __forceinline__ void leave_squares(Partial& to, int columns, float squares) {
  squares = gpu::add_rn(squares, gpu::shfl_xor(squares, 1));
  squares = gpu::add_rn(squares, gpu::shfl_xor(squares, 2));
  const int lane = static_cast<int>(threadIdx.x) % 32, column = lane / (kApart ? 8 : 4);
  if (lane % (kApart ? 8 : 4) == 0 && column < columns) to.squares[threadIdx.x / 32][column] = squares;
}

__device__ __forceinline__ float with_squares(float sum, const gpu::Vector& v) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float a, b;
    gpu::unpack<gpu::bf16>(v.word[i], a, b);
    sum = fmaf(b, b, fmaf(a, a, sum));
  }
  return sum;
}

// The consumers' part of norm(x) W for GROUPS times 8 rows of weights and k = 1024. x: the lane's words of the warp's first
// unit; norm: likewise in shared memory.
template <int GROUPS>
__device__ __forceinline__ void normed_product(Ring& ring, const uint32_t* x, const gpu::Vector* norm, uint32_t tag,
                                               uint32_t check, uint32_t grow, int columns, Partial& to, Watch& watch) {
  gpu::Vector weight[GROUPS][kSteps], v[kSteps], norm_weight[kSteps];
  take<GROUPS>(weight, ring, watch);
#pragma unroll
  for (int t = 0; t < kSteps; ++t) norm_weight[t] = norm[t * 32];
  receive(v, [&](int t) { return x + t * 128; }, tag, check, watch);
  Sums<GROUPS> sums;
  sums.clear();
  float squares = 0.0f;
#pragma unroll
  for (int t = 0; t < kSteps; ++t) {
    const gpu::Vector one = scaled(v[t], grow);
    squares = with_squares(squares, one);
    gpu::Vector u;
#pragma unroll
    for (int i = 0; i < 4; ++i) u.word[i] = gpu::multiply_pairs<gpu::bf16>(one.word[i], norm_weight[t].word[i]);
    sums.add([&](int group) -> const gpu::Vector& { return weight[group][t]; }, u);
  }
  sums.leave(to, columns);
  leave_squares(to, columns, squares);
}

// ---------------------------------------------------------------- the finishing warp

struct Finisher {
  const PersistentArguments& a;
  ExchangeArea& area;
  int block, lane;
  float x;        // lanes 0 .. 15: x of row lane % 8 of this block's, column lane / 8
  uint32_t lost;  // what did not fit into exchanged words

  __device__ __forceinline__ float total(const Partial& p, int column, int row) const {
    float sum = p.sums[0][column][row];
#pragma unroll
    for (int s = 1; s < kConsumerWarps; ++s) sum = gpu::add_rn(sum, p.sums[s][column][row]);
    return sum;
  }
  __device__ __forceinline__ float scale(const Partial& p, int column) const {
    float squares = p.squares[0][column];
#pragma unroll
    for (int s = 1; s < kConsumerWarps; ++s) squares = gpu::add_rn(squares, p.squares[s][column]);
    return gpu::div_rn(1.0f, sqrtf(gpu::add_rn(gpu::div_rn(squares, static_cast<float>(Shape::hidden)), a.eps)));
  }
  static __device__ __forceinline__ float rounded(float v) {
    return gpu::from_bits(gpu::pack<gpu::bf16>(0.0f, v) & 0xffff0000u);
  }
  // Even lanes send their value and their neighbour's.
  template <class Place>
  __device__ __forceinline__ void send(float v, bool wanted, uint32_t tag, const Place& place) {
    const float next = gpu::shfl_xor(v, 1);
    const uint32_t before = lost, word = encoded(v, next, tag, lost);
    if (!wanted) lost = before;
    if (wanted && lane % 2 == 0)
#pragma unroll
      for (int i = 0; i < kCopies; ++i) store_word(place(area.copies[i]), word);
  }

  // q, k, v: 32 outputs.
  __device__ __forceinline__ void qkv(const Partial& p, int columns, int buffer, uint32_t tag, uint32_t extra_tag) {
#pragma unroll 1
    for (int column = 0; column < columns; ++column) {
      const float v = gpu::mul_rn(total(p, column, lane), scale(p, column));
      send(v, true, column == kMain ? tag : extra_tag,
           [&](Exchange& e) { return &e.qkv[buffer][column][block * 16 + lane / 2]; });
    }
  }
  // silu(gate) * up: 24 outputs.
  __device__ __forceinline__ void gated(const Partial& p, int columns, int buffer, uint32_t tag, uint32_t extra_tag) {
#pragma unroll 1
    for (int column = 0; column < columns; ++column) {
      const int row = lane < 24 ? lane : 0;
      const float s = scale(p, column);
      const float gate = rounded(gpu::mul_rn(total(p, column, row), s)), up = rounded(gpu::mul_rn(total(p, column, 24 + row), s));
      const float silu = gpu::div_rn(gate, gpu::add_rn(1.0f, expf(-gate)));
      send(gpu::mul_rn(rounded(silu), up), lane < 24, column == kMain ? tag : extra_tag,
           [&](Exchange& e) { return &e.gated[buffer][column][block * 12 + lane / 2]; });
    }
  }
  // x += product: 8 outputs of each column.
  template <class Words>
  __device__ __forceinline__ void residual(const Partial& p, int columns, uint32_t tag, uint32_t extra_tag, const Words& words) {
    const int column = lane / 8 % 2, row = lane % 8;
    const bool mine = lane < 8 * columns;
    if (mine) x = rounded(gpu::add_rn(x, rounded(total(p, column, row))));
    send(x, mine, column == kMain ? tag : extra_tag, [&](Exchange& e) { return words(e, column) + block * 4 + row / 2; });
  }
  // 16 logits. After a value that did not fit they are NaN, which the picks notice.
  __device__ __forceinline__ void head(const Partial& p, int pass, uint32_t tag) {
    const bool fits = !__any_sync(0xffffffffu, lost != 0);
    float v = gpu::mul_rn(total(p, kMain, lane % 16), scale(p, kMain));
    v = fits ? v : gpu::from_bits(0x7fffffffu);
    if (lane >= 16) return;
    const gpu::u64 word = static_cast<gpu::u64>(tag) << 32 | gpu::to_bits(v);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) store_long_word(&area.copies[i].logits[pass & 1][block * 16 + lane], word);
    if (a.logits != nullptr) a.logits[pass * a.logits_stride + block * 16 + lane] = v;
  }
};

}  // namespace persistent
}  // namespace qwen3tts
