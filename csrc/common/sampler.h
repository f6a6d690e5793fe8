// Picks one token per row of fp32 logits: the definition of qwen3tts/model/sampling.py, bit for bit.
//
//   repetition penalty -> end token while it is too early and suppressed tokens to -inf -> temperature (IEEE division)
//   -> ranks by value descending, then index ascending -> top-k -> whole-number weights floor(2^24 exp(l - l_0))
//   -> top-p -> draw with Philox4x32-10, key = seed, counter = (frame, codebook, part, 0)
//
// logits fp32 [rows, vocab] with a row stride; seen u8 [rows, vocab]; suppressed u8 [vocab]; picks i64 [rows].
// Optionally the block that picked copies the token's row of an embedding table: the next step's input, without a launch.
// A dependent launch (common/launch.h).
// Bytes that must move: rows * vocab * 4, with the talker's masks rows * vocab * 5 + vocab.
//
// Shape: a block of 256 threads per row; a thread keeps its 8, 12 or 32 logits in registers as ordered 32-bit keys, so
// memory is read once, and all of it at the same time (in_order). What cannot be picked is thrown away before anything is sorted:
//   * the maxima of the threads are sorted bitonically in groups of 32. The least of the groups' ceil(k/8)-th maxima
//     has at least k logits at or above it: what is below is outside the top k;
//   * a logit 17 or more below the largest has weight 0.
// With top_k = 50 about 100 of 2048 logits are left. Up to 128 are not sorted: four threads compare two of them with all
// others and add up the weights ahead of each. Up to 256 are sorted bitonically, one per thread: partners within 32 lanes through
// shuffles, the rest through shared memory with one barrier each. More (top_k = 0 or large, many equal logits) are sorted
// in shared memory, 6 bytes each. Nothing depends on the order of execution: survivors take places given by a prefix sum,
// keys are all different, sums are of whole numbers.
//
// Registers at 8, 12 and 32 logits a thread: 62, 71 and 125 (sm_90), and nothing spills there.
#pragma once

#include <cstdint>

namespace qwen3tts {

constexpr int kSamplerMaxVocab = 8192;

// How one row is sampled, as it lies in device memory. Ranges are the caller's to check.
struct SamplerRow {
  std::uint64_t seed;
  float temperature;
  float repetition_penalty;  // of seen tokens
  std::int32_t top_k;        // 0 = off
  std::int32_t top_p;        // round(p * 2^24), half to even; 2^24 = off
  std::int32_t do_sample;    // 0: the lowest index of the largest logit
  std::uint32_t part;        // third word of the counter
  std::int32_t min_frames;   // the end token is too early in frames below this
  std::int32_t reserved;
};
static_assert(sizeof(SamplerRow) == 40, "the Python side packs this layout");

// What is ORed into a row's status.
constexpr std::int32_t kSamplerNotFinite = 1;  // a logit was NaN or infinite before anything was done to it
constexpr std::int32_t kSamplerNoPick = 2;     // a NaN, or nothing finite to draw from; the pick is 0

struct SamplerArguments {
  const float* logits;
  std::int64_t row_stride;         // elements
  std::int32_t rows, vocab;
  const SamplerRow* params;        // [rows]
  const std::int32_t* frames;      // [rows]: the frame that the pick belongs to
  std::int32_t codebook;
  std::uint8_t* seen;              // nullptr: no penalty. The pick is marked in it, if there is one.
  const std::uint8_t* suppressed;  // nullptr: none
  std::int32_t eos_id;             // -1: never too early
  std::int64_t* picks;             // nullptr: not wanted
  std::int32_t* status;            // nullptr: not wanted. Never cleared here.

  // For the decode core, all off when zero.
  const std::int32_t* slots = nullptr;  // [rows]: which entry of params, frames, seen, status, picks and codes is row
                                        // r's (nullptr: r); -1: an idle row, for which nothing is written
  std::int32_t frame_offset = 0;        // added to frames
  std::int32_t* codes = nullptr;        // picks again, at codes[slot * code_stride]
  std::int64_t code_stride = 0;
  const void* table = nullptr;          // the picked token's row of `row_bytes` bytes is copied to gathered + r * row_bytes;
  void* gathered = nullptr;             // all three multiples of 16 bytes
  std::int64_t row_bytes = 0;
  bool in_order = false;                // the caller's word that slots[r] is r or -1, and that all these have entry r:
                                        // they are read together with slots[r]
};

// Asynchronous. Raises std::invalid_argument for impossible arguments, std::runtime_error if the launch fails.
void sample(const SamplerArguments& arguments, void* stream);

// floor(2^24 exp(x)) of fp32 [count], x <= 0: the weights of the draw, for tests and as a building block.
void sampler_weights(const float* x, std::int64_t* weights, std::int64_t count, void* stream);

}  // namespace qwen3tts
