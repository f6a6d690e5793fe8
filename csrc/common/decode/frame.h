// State of the rows that speak, and the small kernels that hold a frame together (docs/decode.md):
//
//   frame_begin  active[r] = slot r makes this frame ? r : -1, its talker position, the code predictor's two inputs
//   frame_sum    talker input = round(round(sum of the frame's code embeddings, in order, in fp32) + text row);
//                the codes go into the output ring
//   frame_end    frame + 1, position + 1, hidden state kept, finished?
//   frame_prompt some positions of prompts, packed, into columns; columns beyond them belong to nobody
//   frame_admit  what a slot's state is before the first code 0 of a prompt is picked, once its last position is through
//
// A slot makes a frame if it has not finished and frame < limit. What does not is idle: nothing of its state is written,
// and its entry of the ring says -1. `finished` follows the torch frame decoder: after a frame, code 0 of the next one
// is drawn; the end token ends the row, else frame >= max_frames does.
//
// Bytes that must move per row: begin 4 rows of the predictor's width, sum groups + 2 rows of the talker's, end 2.
//
// Shape: a block per row (sum: per row and 1024 elements); copies of 16 bytes; a thread of `sum` owns 4 elements and has
// all its loads on their way at once. Latency is all there is. Dependent launches (common/launch.h) but for `sum`, before
// which all earlier work of the stream has ended: the talker's attention relies on that (`settled` in attention.h), and
// `prompt` and `admit`, which stand before and behind a graph.
// Registers on sm_90: prompt 30, begin, end, admit 32, sum 76 (bf16), 108 (fp32), 113 (fp16); no spills.
#pragma once

#include "common/sampler.h"
#include "common/types.h"

#include <cstdint>

namespace qwen3tts {

constexpr int kMaxCodeGroups = 32;

enum FinishedCode : std::int32_t { kRunning = 0, kFinishedEos = 1, kFinishedLength = 2 };

// Arrays in device memory with one entry per slot. Those marked "host" are only read here; the host writes them in
// stream order, so that work queued before keeps what it was queued with.
struct FrameState {
  std::int32_t* frame;             // frames made
  std::int32_t* position;          // where the talker's next step goes: prompt + frame
  std::int32_t* finished;          // FinishedCode
  std::int32_t* codes;             // [slots, groups]: of the frame being made; code 0 is drawn a frame ahead
  std::int32_t* status;            // of the sampler (kSamplerNotFinite, kSamplerNoPick), cleared by frame_admit
  std::uint8_t* seen;              // [slots, vocab]: code-0 tokens so far
  void* hidden;                    // T [slots, hidden]: the talker's last hidden state, after the final norm
  const std::int32_t* limit;       // host: the row pauses when frame reaches it; 0: the slot is free
  const std::int32_t* max_frames;  // host
  const void* const* text;         // host: per slot T [text_rows, hidden], frame s adds row s
  const std::int32_t* text_rows;   // host; from this frame on the padding row is added
  const SamplerRow* talker;        // host: how code 0 is drawn
  const SamplerRow* predictor;     // host: how codes 1.. are drawn
  std::int32_t slots, groups, vocab, hidden_size;
};

struct FrameBeginArguments {
  FrameState state;
  std::int32_t rows;
  std::int32_t* active;        // [2, rows]: both of the predictor's first inputs of a row are the row's
  std::int32_t* position;      // [rows]: of the talker's step; 0 for idle rows
  void* x;                     // T [2 rows, width]: row r from the hidden state, row rows + r from code 0
  const void* code_0_input;    // T [vocab, width]: what code 0 enters the predictor as
  std::int32_t width;
  bool copy_hidden;            // x[r] = hidden[r]; false: a projection writes it
  DType dtype;
};
void frame_begin(const FrameBeginArguments& arguments, void* stream);

struct FrameSumArguments {
  FrameState state;
  std::int32_t rows;
  const std::int32_t* active;            // [rows]
  const void* tables[kMaxCodeGroups];    // T [vocabulary, hidden] each, of code 0, 1, ...
  const void* padding;                   // T [hidden]
  void* x;                               // T [rows, hidden]
  std::int32_t* ring;                    // [rows, groups]: this frame's entries
  DType dtype;
};
void frame_sum(const FrameSumArguments& arguments, void* stream);

struct FrameEndArguments {
  FrameState state;
  std::int32_t rows;
  const std::int32_t* slots;   // [rows]: the slot of row r, -1: none
  const void* normed;          // T [rows, hidden]: becomes the slot's hidden state
  std::int32_t step;           // 1 after a frame, 0 after a prompt
  std::int32_t eos_id;
  DType dtype;
};
void frame_end(const FrameEndArguments& arguments, void* stream);

struct FramePromptArguments {
  const void* packed;                    // T [count, width]
  const std::int32_t *slot, *position;   // [count]: whose they are, and where in its prompt
  std::int32_t count, columns;           // columns from `count` on are idle: slot -1, position 0, x as it was
  void* x;                               // T [columns, width]
  std::int32_t *slots, *positions;       // [columns]
  std::int32_t width;
  DType dtype;
};
void frame_prompt(const FramePromptArguments& arguments, void* stream);

struct FrameAdmitArguments {
  FrameState state;
  std::int32_t rows;
  const std::int32_t* slots;   // [rows]
  const std::int32_t* counts;  // [rows]: positions of the prompt
  const std::int32_t* last;    // [rows]: which packed position is the prompt's last
  const void* columns;         // T [count, hidden]: packed positions first .. first + count - 1, after all layers
  std::int32_t first, count;   // rows whose last position is another are left alone
  void* x;                     // T [rows, hidden]: the last positions, gathered
  DType dtype;
};
void frame_admit(const FrameAdmitArguments& arguments, void* stream);

// All are asynchronous and raise std::invalid_argument for impossible arguments, std::runtime_error if a launch fails.

}  // namespace qwen3tts
