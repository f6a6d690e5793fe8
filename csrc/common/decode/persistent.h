// The code predictor of one frame of one row as one kernel: all passes, layers, heads and picks, between frame_begin and
// frame_sum. It takes the place of some 400 launches and gives the same bits (docs/decode.md).
//
// One shape, that of the released models, in bf16, on cards of compute capability 9.0 and up with at least 128
// multiprocessors of enough shared memory (persistent_predictor_problem). One row, in slot 0; if that is idle, nothing is
// written.
//
// 128 blocks stay on the card for the whole frame and each owns every 128th part of every matrix. They hand activations to
// each other through memory that all can see, in words that say themselves whether they are there (csrc/cuda/
// persistent_exchange.h has the argument why that is right). So all must run at the same time: a cooperative launch. It
// is not a dependent launch, nor may one follow it that does not wait for its end.
//
// A block that waits longer than `timeout_ns` marks the slot's status with kPredictorStuck and stops waiting, as do then
// all others: the kernel ends, with codes that mean nothing, and while that is in the status nothing more is done. The
// exchange must be zeroed then before the status is cleared, and before the first launch; else never.
//
// Bytes that must move: all weights, once per pass. Between passes a part of them stays in the second-level cache.
#pragma once

#include "common/decode/decoder.h"

#include <string>

namespace qwen3tts {

constexpr std::int32_t kPredictorStuck = 4;  // in a slot's status, beside those of the sampler

// The released models' code predictor.
struct PersistentShape {
  static constexpr int hidden = 1024, intermediate = 3072, heads = 16, kv_heads = 8, head_dim = 128, layers = 5,
                       passes = 15, vocab = 2048;
};

struct PersistentArguments {
  LayerWeights layers[PersistentShape::layers];
  const void* norm;                            // final
  const void* heads[PersistentShape::passes];  // bf16 [vocab, hidden]
  const void* inputs[PersistentShape::passes]; // [i], i > 0: bf16 [vocab, hidden], what code i enters pass i as
  const void *cos, *sin;                       // bf16 [16, head_dim]
  float eps;
  const void* x;                // bf16 [2, hidden]: the hidden state and code 0, as frame_begin leaves them
  const std::int32_t* active;   // [1]: 0, or -1: idle
  void* pool;                   // bf16 [layers][2][pages][kv_heads][16][head_dim], page 0
  std::int64_t pool_half;       // elements of [pages][kv_heads][16][head_dim]
  const SamplerRow* sampling;   // of slot 0, and so below
  const std::int32_t* frame;
  std::int32_t* codes;          // [16]: entries 1 .. 15 are written
  std::int32_t* status;
  float* logits;                // nullptr: not wanted; else [passes, logits_stride]
  std::int64_t logits_stride;
  void* exchange;               // persistent_exchange_bytes, aligned to 256
  std::int64_t timeout_ns;
  std::int32_t depth;           // stages of weights (16 KB) on their way to a block at a time
  std::int32_t pinned;          // stages of a pass's 75 that are to stay in the second-level cache
  std::int32_t fault;           // kFaultless, or for tests one of the next two
};

enum PersistentFault : std::int32_t {
  kFaultless = 0,
  kConstantTags = 1,  // words do not say for which use they are: wrong results
  kSilentBlock = 2,   // one block never sends its logits: the others wait in vain
};

// Why the kernel cannot be used or is not wanted, on the current device; an empty string: it can. Stages of weights on
// their way and kept, as measured to be best, are kPersistentDepth and kPersistentPinned.
std::string persistent_predictor_problem(const DecoderDescription& description);

constexpr std::int32_t kPersistentDepth = 2, kPersistentPinned = 10;

std::int64_t persistent_exchange_bytes();

// Asynchronous, on the current device. Raises std::runtime_error if the launch fails.
void persistent_predictor(const PersistentArguments& arguments, void* stream);

}  // namespace qwen3tts
