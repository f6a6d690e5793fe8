// What the decoder is given: checks, the places in its workspace, what a frame costs.
#include "common/decode/decoder.h"
#include "common/decode/decoder_parts.h"
#include "common/decode/persistent.h"

#include <utility>

namespace qwen3tts {
namespace {

constexpr std::int64_t kAlignment = 256;

std::int64_t larger(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

std::int64_t qkv_width(const StackGeometry& g) { return static_cast<std::int64_t>(g.heads + 2 * g.kv_heads) * g.head_dim; }
std::int64_t inner_width(const StackGeometry& g) { return static_cast<std::int64_t>(g.heads) * g.head_dim; }

// Weights of all layers.
std::int64_t stack_elements(const StackGeometry& g) {
  return g.layers * g.hidden * (qkv_width(g) + inner_width(g) + std::int64_t{3} * g.intermediate);
}

// Keys and values of one position in all layers.
std::int64_t kv_elements(const StackGeometry& g) { return std::int64_t{2} * g.layers * g.kv_heads * g.head_dim; }

std::int64_t head_bytes(const Head& h, const StackGeometry& g) {
  return bytes_of(static_cast<std::int64_t>(h.vocab) * g.hidden, h.dtype);
}

void check_count(const char* what, std::size_t found, std::int64_t expected) {
  expect(static_cast<std::int64_t>(found) == expected,
         std::to_string(found) + " " + what + ", expected " + std::to_string(expected));
}

void check_stack(const char* name, const Stack& stack) {
  const StackGeometry& g = stack.geometry;
  expect(g.hidden > 0 && g.heads > 0 && g.kv_heads > 0 && g.heads % g.kv_heads == 0 && g.head_dim > 0 &&
             g.intermediate > 0,
         std::string(name) + ": every size must be positive and heads a multiple of kv_heads");
  expect(stack.pool.base != nullptr && stack.pool.page > 0 && stack.pool.pages > 0,
         std::string(name) + ": there is no room for keys and values");
  check_count((std::string("layers of weights for the ") + name).c_str(), stack.layers.size(), g.layers);
}

void check(const DecoderDescription& d) {
  const std::int32_t groups = d.state.groups;
  expect(groups >= 2 && groups <= kPredictorPositions,
         std::to_string(groups) + " codes a frame, expected 2 to " + std::to_string(kPredictorPositions));
  expect(d.state.slots >= 1 && d.state.slots <= kDecoderMaxSlots,
         std::to_string(d.state.slots) + " slots, expected 1 to " + std::to_string(kDecoderMaxSlots));
  check_stack("talker", d.talker);
  check_stack("code predictor", d.predictor);
  check_count("heads of the code predictor", d.heads.size(), groups - 1);
  check_count("embedding tables", d.tables.size(), groups);
  check_count("input tables", d.inputs.size(), groups - 1);
  expect(d.codec_head.vocab == d.state.vocab, "the codec head has " + std::to_string(d.codec_head.vocab) +
                                                  " tokens and the state " + std::to_string(d.state.vocab));
  expect(d.talker.geometry.hidden == d.state.hidden_size, "the talker's width is not that of the state");
  expect(d.projection != nullptr || d.talker.geometry.hidden == d.predictor.geometry.hidden,
         "the talker's and the code predictor's widths differ: a projection is needed");
  expect(d.predictor.positions >= groups, "the code predictor needs one rotary position per code");
  expect(d.talker.pool.table != nullptr, "the talker's keys and values need a page table");
  expect(d.predictor.pool.table == nullptr && d.predictor.pool.page == kPredictorPositions &&
             d.predictor.pool.pages >= d.state.slots,
         "the code predictor needs a page of " + std::to_string(kPredictorPositions) + " positions for every slot, and no table");
  expect(d.ring_frames >= 1, "the ring has no entries");
  const std::int64_t needed = Decoder::workspace_bytes(d);
  expect(d.workspace_size >= needed, "the workspace has " + std::to_string(d.workspace_size) + " bytes, expected " +
                                         std::to_string(needed));
}

}  // namespace

// ---------------------------------------------------------------- workspace

Decoder::Scratch Decoder::carve(const DecoderDescription& d, char* base, std::int64_t* bytes) {
  const StackGeometry &t = d.talker.geometry, &p = d.predictor.geometry;
  const std::int64_t slots = d.state.slots, columns = larger(kPrefillColumns, 2 * slots);
  std::int64_t used = 0, vocab = d.codec_head.vocab;
  for (const Head& h : d.heads) vocab = larger(vocab, h.vocab);
  const auto take = [&](std::int64_t size) {
    void* at = base == nullptr ? nullptr : base + used;
    used += (size + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  };
  const auto wide = [&](std::int64_t talker, std::int64_t predictor) {
    return take(bytes_of(columns * larger(talker, predictor), d.dtype));
  };
  Scratch s{};
  s.qkv = wide(qkv_width(t), qkv_width(p));
  s.attended = wide(inner_width(t), inner_width(p));
  s.gated = wide(t.intermediate, p.intermediate);
  s.predictor_x = take(bytes_of(2 * slots * p.hidden, d.dtype));
  s.talker_x = take(bytes_of(slots * t.hidden, d.dtype));
  s.normed = take(bytes_of(slots * t.hidden, d.dtype));
  s.prompt_x = take(bytes_of(std::int64_t{kPrefillColumns} * t.hidden, d.dtype));
  s.prompt_slots = static_cast<std::int32_t*>(take(kPrefillColumns * 4));
  s.prompt_positions = static_cast<std::int32_t*>(take(kPrefillColumns * 4));
  s.logits = static_cast<float*>(take(slots * vocab * 4));
  s.active = static_cast<std::int32_t*>(take(2 * slots * 4));
  s.position = static_cast<std::int32_t*>(take(slots * 4));
  s.attention = take(attention_workspace_bytes(static_cast<std::int32_t>(larger(kPrefillColumns, slots)), t.heads, t.kv_heads,
                                             t.head_dim));
  if (persistent_predictor_problem(d).empty()) s.exchange = take(persistent_exchange_bytes());
  *bytes = used;
  return s;
}

std::int64_t Decoder::workspace_bytes(const DecoderDescription& d) {
  std::int64_t bytes = 0;
  carve(d, nullptr, &bytes);
  return bytes;
}

Decoder::Decoder(DecoderDescription description) : d_(std::move(description)), s_{} {
  check(d_);
  persistent_problem_ = persistent_predictor_problem(d_);
  std::int64_t bytes = 0;
  s_ = carve(d_, static_cast<char*>(d_.workspace), &bytes);
}

void Decoder::keep_logits(float* to) {
  for (const Head& h : d_.heads)
    expect(h.vocab <= d_.state.vocab, "keep_logits: a head has more codes than the talker has tokens");
  kept_logits_ = to;
}

void Decoder::check_frames(std::int32_t rows, std::int32_t count) const {
  expect(rows >= 1 && rows <= d_.state.slots,
         std::to_string(rows) + " rows, expected 1 to the " + std::to_string(d_.state.slots) + " slots");
  expect(count >= 1 && count <= d_.ring_frames,
         std::to_string(count) + " frames at once, expected 1 to the " + std::to_string(d_.ring_frames) + " of the ring");
}

// ---------------------------------------------------------------- what a frame costs

std::int64_t Decoder::frame_bytes(std::int32_t rows, std::int32_t position) const {
  const StackGeometry &t = d_.talker.geometry, &p = d_.predictor.geometry;
  const std::int64_t passes = d_.state.groups - 1;
  std::int64_t bytes = passes * bytes_of(stack_elements(p), d_.dtype) + bytes_of(stack_elements(t), d_.dtype) +
                       head_bytes(d_.codec_head, t);
  for (const Head& h : d_.heads) bytes += head_bytes(h, p);
  if (d_.projection != nullptr) bytes += bytes_of(static_cast<std::int64_t>(t.hidden) * p.hidden, d_.dtype);
  return bytes + rows * bytes_of(kv_elements(t) * (position + 1), d_.dtype);
}

}  // namespace qwen3tts
