// The products of the persistent kernel: eight warps make the slices of the sums, one more adds them up and finishes them,
// in the arithmetic of common/decode/linear_parts.h. For device sources only.
#pragma once

#include "cuda/persistent_ring.h"

namespace qwen3tts {
namespace persistent {

// Which words of a lane's 16 bytes make chain c of a sum: c and c + 2, or 2 c and 2 c + 1, as in all other kernels. Apart
// they save the registers that the other order has to be brought into: 2 % of the kernel's time.
#ifndef QW_WORDS_APART
#define QW_WORDS_APART 0
#endif
constexpr bool kApart = QW_WORDS_APART != 0;

constexpr int kMaxRows = 48;  // of weights that a block has in one product: gate and up
constexpr int kRed = 52;

struct Partial {  // of a product, double: [slice][column]
  float sums[kConsumerWarps][kColumns][kRed];
  gpu::Vector x[kColumns][kConsumerWarps][4 * kSteps + 1];  // as the consumers have received it: [slice][4 step + quarter]
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
        const gpu::Vector high =
            2 * t + 1 < GROUPS ? weight(2 * t + 1 < GROUPS ? 2 * t + 1 : 0) : gpu::Vector{{0, 0, 0, 0}};
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

__device__ __forceinline__ float with_squares(float sum, const gpu::Vector& v) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float a, b;
    gpu::unpack<gpu::bf16>(v.word[i], a, b);
    sum = fmaf(b, b, fmaf(a, a, sum));
  }
  return sum;
}

// The consumers' part of norm(x) W for GROUPS times 8 rows of weights and k = 1024. x: where this lane's 16 bytes of its
// warp's slice are, `tag` what they are to say: lanes 0 .. 15 have column 0, the others column 1, or column 0 once more.
// norm: the lane's piece of the norm's weight for the first unit, in shared memory. Exchanged words are used as they are,
// 2^32 times too small: what comes of it is too small by as much, to the bit.
template <int GROUPS>
__device__ __forceinline__ void normed_product(Ring& ring, const uint32_t* x, const gpu::Vector* norm, uint32_t tag,
                                               uint32_t check, int columns, Partial& to, uint32_t received, Watch& watch) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  gpu::Vector weight[GROUPS][kSteps], norm_weight[kSteps], v[1];
  take<GROUPS>(weight, ring, watch);
#pragma unroll
  for (int t = 0; t < kSteps; ++t) norm_weight[t] = norm[t * 32];
  receive(v, [&](int) { return x; }, tag, check, watch);
  if (lane < 16 * columns) to.x[lane / 16][warp][lane % 16] = v[0];
  __syncwarp();
  if (lane == 0) arrive(received);  // the finisher takes the norm's scale from it meanwhile
  const gpu::Vector* mine = &to.x[lane_column(columns)][warp][lane % 4];
  Sums<GROUPS> sums;
  sums.clear();
#pragma unroll
  for (int t = 0; t < kSteps; ++t) {
    const gpu::Vector one = mine[4 * t];
    gpu::Vector u;
#pragma unroll
    for (int i = 0; i < 4; ++i) u.word[i] = gpu::multiply_pairs<gpu::bf16>(one.word[i], norm_weight[t].word[i]);
    sums.add([&](int group) -> const gpu::Vector& { return weight[group][t]; }, u);
  }
  sums.leave(to, columns);
}

// A logit as it is handed over: its key in the lower half, the tag and what is wrong with it in the upper one.
__device__ __forceinline__ gpu::u64 logit_word(float logit, const SamplerRow& row, uint32_t tag) {
  const float v = gpu::div_rn(logit, row.do_sample != 0 ? row.temperature : 1.0f);
  const uint32_t status = (gpu::is_finite(logit) ? 0u : static_cast<uint32_t>(kSamplerNotFinite)) |
                          (v == v ? 0u : static_cast<uint32_t>(kSamplerNoPick));
  return static_cast<gpu::u64>(status << 2 | tag) << 32 | (v == v ? gpu::key_of(v) : 0u);
}

// ---------------------------------------------------------------- the finishing warp

struct Finisher {
  const PersistentArguments& a;
  ExchangeArea& area;
  int block, lane;
  float x;        // lanes 0 .. 15: x of row lane % 8 of this block's, column lane / 8
  uint32_t lost;  // what did not fit into exchanged words

  __device__ __forceinline__ float total(const Partial& p, int column, int row, float grow) const {
    float sum = p.sums[0][column][row];
#pragma unroll
    for (int s = 1; s < kConsumerWarps; ++s) sum = gpu::add_rn(sum, p.sums[s][column][row]);
    return gpu::mul_rn(sum, grow);
  }
  // The norm's scale of x [hidden]: while the consumers make its product. Lane 4 s + q sums quarter q of slice s.
  __device__ __forceinline__ float scale(const Partial& p, int column, uint32_t grow) const {
    float squares = 0.0f;
#pragma unroll
    for (int t = 0; t < kSteps; ++t) squares = with_squares(squares, scaled(p.x[column][lane / 4][lane % 4 + 4 * t], grow));
    squares = gpu::add_rn(squares, gpu::shfl_xor(squares, 1));
    squares = gpu::add_rn(squares, gpu::shfl_xor(squares, 2));
    float sum = gpu::shfl(squares, 0);
#pragma unroll
    for (int s = 1; s < kConsumerWarps; ++s) sum = gpu::add_rn(sum, gpu::shfl(squares, 4 * s));
    return gpu::div_rn(1.0f, sqrtf(gpu::add_rn(gpu::mul_rn(sum, 1.0f / static_cast<float>(Shape::hidden)), a.eps)));
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

  // q, k, v: 32 outputs. `scales`: of the columns. `grow`: what sums are too small by.
  __device__ __forceinline__ void qkv(const Partial& p, int columns, const float (&scales)[kColumns], float grow,
                                      int buffer, uint32_t tag, uint32_t extra_tag) {
#pragma unroll 1
    for (int column = 0; column < columns; ++column) {
      const float v = gpu::mul_rn(total(p, column, lane, grow), column == kMain ? scales[kMain] : scales[kExtra]);
      send(v, true, column == kMain ? tag : extra_tag,
           [&](Exchange& e) { return &e.qkv[buffer][column][block * 16 + lane / 2]; });
    }
  }
  // silu(gate) * up: 24 outputs.
  __device__ __forceinline__ void gated(const Partial& p, int columns, const float (&scales)[kColumns], int buffer,
                                        uint32_t tag, uint32_t extra_tag) {
#pragma unroll 1
    for (int column = 0; column < columns; ++column) {
      const int row = lane < 24 ? lane : 0;
      const float s = column == kMain ? scales[kMain] : scales[kExtra];
      const float gate = rounded(gpu::mul_rn(total(p, column, row, kGrowth), s));
      const float up = rounded(gpu::mul_rn(total(p, column, 24 + row, kGrowth), s));
      const float silu = gpu::div_rn(gate, gpu::add_rn(1.0f, expf(-gate)));
      send(gpu::mul_rn(rounded(silu), up), lane < 24, column == kMain ? tag : extra_tag,
           [&](Exchange& e) { return &e.gated[buffer][column][word_place<Shape::intermediate>(block * 12 + lane / 2)]; });
    }
  }
  // x += product: 8 outputs of each column.
  template <class Words>
  __device__ __forceinline__ void residual(const Partial& p, int columns, float grow, uint32_t tag, uint32_t extra_tag,
                                           const Words& words) {
    const int column = lane / 8 % 2, row = lane % 8;
    const bool mine = lane < 8 * columns;
    if (mine) x = rounded(gpu::add_rn(x, rounded(total(p, column, row, grow))));
    send(x, mine, column == kMain ? tag : extra_tag,
         [&](Exchange& e) { return words(e, column) + word_place<Shape::hidden>(block * 4 + row / 2); });
  }
  // 16 logits. After a value that did not fit they are NaN, which the picks notice.
  __device__ __forceinline__ void head(const Partial& p, float scale, int pass, uint32_t tag, const SamplerRow& row) {
    const bool fits = !__any_sync(0xffffffffu, lost != 0);
    float v = gpu::mul_rn(total(p, kMain, lane % 16, kGrowth), scale);
    v = fits ? v : gpu::from_bits(0x7fffffffu);
    if (lane >= 16 || (a.fault == kSilentBlock && block == 0)) return;
    const gpu::u64 word = logit_word(v, row, tag);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) store_long_word(&area.copies[i].logits[pass & 1][block * 16 + lane], word);
    if (a.logits != nullptr) a.logits[pass * a.logits_stride + block * 16 + lane] = v;
  }
};

}  // namespace persistent
}  // namespace qwen3tts
