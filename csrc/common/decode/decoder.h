// One frame of all rows, as launches on one stream (docs/decode.md): eager, or captured and replayed. Host only.
//
// Nothing is allocated on the device here: weights, state, pages and the workspace are the caller's and outlive this.
// Not thread-safe: one caller at a time, everything on one stream (or streams ordered by events).
#pragma once

#include "common/decode/attention.h"
#include "common/decode/frame.h"
#include "common/graph.h"
#include "common/types.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace qwen3tts {

constexpr std::int32_t kPrefillColumns = 64;   // packed positions that go through the layers together
constexpr std::int32_t kDecoderMaxSlots = 64;  // the code predictor's first pass has two columns a slot, a product 128

struct StackGeometry {
  std::int32_t hidden, layers, heads, kv_heads, head_dim, intermediate;
  float eps;
};

// Row-major [out, in], as nn.Linear has them, all of the stack's dtype.
struct LayerWeights {
  const void *input_norm, *q, *k, *v, *q_norm, *k_norm, *o, *post_norm, *gate, *up, *down;
};

struct Head {
  const void* weight;  // [vocab, hidden]
  std::int32_t vocab;
  DType dtype;         // the stack's, or f32
};

// Keys and values of a stack: T [layers][2][pages][kv_heads][page][head_dim]. The talker's pages go by a table, the code
// predictor has one page of kPredictorPositions a slot.
struct KvPool {
  void* base;
  const std::int32_t* table;  // [slots, table_stride]: page numbers; nullptr: slot s has page s
  std::int32_t table_stride, page, pages;
};

struct Stack {
  StackGeometry geometry;
  std::vector<LayerWeights> layers;
  const void* norm;              // final
  const void *cos, *sin;         // T [positions, head_dim], as RotaryTable holds them
  std::int32_t positions;
  KvPool pool;
};

struct DecoderDescription {
  DType dtype;
  std::int32_t eos_id;
  FrameState state;
  Stack talker, predictor;
  Head codec_head;
  std::vector<Head> heads;                // of codes 1 .. groups - 1
  const void *projection, *projection_bias;  // [predictor hidden, talker hidden]; nullptr if the widths are equal
  std::vector<const void*> tables;        // of codes 0 .. groups - 1, T [vocabulary, talker hidden]
  std::vector<const void*> inputs;        // of codes 0 .. groups - 2 as the predictor takes them: projected, or `tables`
  const void* padding;                    // T [talker hidden]
  const std::uint8_t* suppressed;         // [vocab]
  std::int32_t* ring;                     // [ring_frames, slots, groups]: frame i of a call is entry i
  std::int32_t ring_frames;
  bool persistent_predictor;              // one row's codes by one kernel where it fits (persistent.h), with the same bits
  void* workspace;                        // Decoder::workspace_bytes, aligned to 256, zeroed once
  std::int64_t workspace_size;
};

// Prompts packed one after another, as they lie in device memory.
struct PackedPrompts {
  const void* x;                  // T [positions, hidden]
  const std::int32_t* slot;       // [positions]
  const std::int32_t* position;   // [positions]: within its prompt
  std::int32_t positions;
  const std::int32_t *slots, *counts, *last;  // [prompts], see FrameAdmitArguments
  std::int32_t prompts;           // at most the slots
};

class Decoder {
 public:
  static std::int64_t workspace_bytes(const DecoderDescription& description);

  // Raises std::invalid_argument, saying what does not fit together.
  explicit Decoder(DecoderDescription description);

  // `count` frames of slots 0 .. rows - 1. Rows at most 64 and at most the slots.
  void frames(std::int32_t rows, std::int32_t count, void* stream);

  // Runs prompts: stores their keys and values, draws their first code 0 and makes their slots' state that of frame 0.
  // What the host writes of a slot must be there already, with limit as it shall be from then on.
  void prefill(const PackedPrompts& prompts, void* stream);

  // Captures frames(rows, count) if that has not been done. Returns the launches in the graph.
  std::int64_t capture(std::int32_t rows, std::int32_t count);
  // As frames(rows, count). Raises std::logic_error if it was not captured.
  void replay(std::int32_t rows, std::int32_t count, void* stream);
  // The talker's layers over so many columns of prompts, 1 to kPrefillColumns, captured if that has not been done. prefill()
  // takes the least that covers its positions, with the same results. Returns the launches in the graph.
  std::int64_t capture_prompt(std::int32_t columns);
  // These layers over columns that belong to nobody, from the graph if there is one: what comes before a first use.
  void idle_prompt(std::int32_t columns, void* stream);
  // Graphs launched so far, of frames and of prompts.
  std::int64_t replays() const { return replays_; }

  // Why one row's code predictor is launched kernel by kernel; an empty string: it is one kernel.
  const std::string& persistent_problem() const { return persistent_problem_; }
  // After a status of kPredictorStuck, before the next frame.
  void clear_exchange(void* stream) const;
  // For tests: what frames that are launched or captured from now on do wrong (PersistentArguments::fault), and how long
  // their blocks wait for each other.
  void disturb_predictor(std::int32_t fault, std::int64_t timeout_ns);

  // From the next launch on, the logits of each codebook stay until the next frame, for looking inside: those of codebook
  // c from to[c * slots * vocab] on, fp32 [slots, vocabulary of its head], vocab being the talker's. nullptr: all go to
  // one place in the workspace.
  void keep_logits(float* to);

  // Bytes of one frame that must come from memory: weights once per pass, keys and values of rows at `position`.
  std::int64_t frame_bytes(std::int32_t rows, std::int32_t position) const;

  const DecoderDescription& description() const { return d_; }

 private:
  struct Scratch {
    void *qkv, *attended, *gated;     // columns x the wider stack's
    void *predictor_x, *talker_x, *normed;
    void* prompt_x;                   // [kPrefillColumns]
    std::int32_t *prompt_slots, *prompt_positions;
    float* logits;
    std::int32_t *active, *position;
    void *attention, *exchange;
  };
  static Scratch carve(const DecoderDescription& description, char* base, std::int64_t* bytes);

  // The columns of a pass through a stack, and whose they are.
  struct Columns {
    std::int32_t count, rows;       // count = 2 rows in the code predictor's first pass
    const std::int32_t* slots;      // [count]
    const std::int32_t* positions;  // [count]; not for the code predictor
    std::int32_t pass;              // of the code predictor, or one of the next two
  };
  static constexpr std::int32_t kTalkerStep = -1, kPrompt = -2;

  void frame(std::int32_t rows, std::int32_t index, void* stream);
  void prompt_layers(std::int32_t columns, void* stream);
  void run_prompt(const void* x, const std::int32_t* slot, const std::int32_t* position, std::int32_t count,
                  std::int32_t columns, void* stream);
  void predictor_at_once(void* stream);
  void predictor_pass(std::int32_t pass, std::int32_t rows, void* stream);
  void layer(const Stack& stack, std::int32_t index, void* x, const Columns& columns, void* stream);
  void attend(const Stack& stack, std::int32_t index, const Columns& columns, void* stream);
  void head(const Stack& stack, std::int32_t codebook, const void* x, std::int32_t rows, void* normed, void* stream);
  const Head& head_of(std::int32_t codebook) const;
  float* logits_of(std::int32_t codebook) const;
  SamplerArguments sampler(std::int32_t codebook, std::int32_t rows, const std::int32_t* slots) const;
  void pick_code_0(std::int32_t rows, const std::int32_t* slots, std::int32_t frame_offset, void* stream);
  void end(std::int32_t rows, const std::int32_t* slots, std::int32_t step, void* stream);
  void check_frames(std::int32_t rows, std::int32_t count) const;

  DecoderDescription d_;
  Scratch s_;
  float* kept_logits_ = nullptr;
  std::string persistent_problem_;
  std::int32_t fault_ = 0;
  std::int64_t timeout_ns_ = 2'000'000'000;
  std::map<std::pair<std::int32_t, std::int32_t>, Graph> graphs_;
  std::map<std::int32_t, Graph> prompt_graphs_;  // by columns
  std::int64_t replays_ = 0;
};

}  // namespace qwen3tts
