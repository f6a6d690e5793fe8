// Prompts: the talker's layers over up to kPrefillColumns positions at a time, and what becomes of each prompt's last one.
#include "common/decode/decoder.h"
#include "common/decode/decoder_parts.h"
#include "common/shared_memory.h"

#include <utility>

namespace qwen3tts {
namespace {

void check_columns(std::int32_t columns) {
  expect(columns >= 1 && columns <= kPrefillColumns,
         std::to_string(columns) + " columns of prompts, expected 1 to " + std::to_string(kPrefillColumns));
}

}  // namespace

// The columns are those in the workspace, so that a graph of them serves every prompt.
void Decoder::prompt_layers(std::int32_t count, void* stream) {
  const SharedMemoryScope scope(shared_percent(count));
  Columns columns{};
  columns.count = columns.rows = count;
  columns.slots = s_.prompt_slots;
  columns.positions = s_.prompt_positions;
  columns.pass = kPrompt;
  for (std::int32_t i = 0; i < d_.talker.geometry.layers; ++i) layer(d_.talker, i, s_.prompt_x, columns, stream);
}

void Decoder::run_prompt(const void* x, const std::int32_t* slot, const std::int32_t* position, std::int32_t count,
                         std::int32_t columns, void* stream) {
  frame_prompt({x, slot, position, count, columns, s_.prompt_x, s_.prompt_slots, s_.prompt_positions,
                d_.state.hidden_size, d_.dtype},
               stream);
  const auto graph = prompt_graphs_.find(columns);
  if (graph == prompt_graphs_.end()) return prompt_layers(columns, stream);
  graph->second.launch(stream);
  ++replays_;
}

std::int64_t Decoder::capture_prompt(std::int32_t columns) {
  check_columns(columns);
  auto found = prompt_graphs_.find(columns);
  if (found == prompt_graphs_.end()) {
    Graph graph;
    graph.capture([&](void* stream) { prompt_layers(columns, stream); });
    found = prompt_graphs_.emplace(columns, std::move(graph)).first;
  }
  return static_cast<std::int64_t>(found->second.nodes());
}

void Decoder::idle_prompt(std::int32_t columns, void* stream) {
  check_columns(columns);
  run_prompt(nullptr, nullptr, nullptr, 0, columns, stream);
}

void Decoder::prefill(const PackedPrompts& p, void* stream) {
  expect(p.prompts >= 0 && p.prompts <= d_.state.slots,
         std::to_string(p.prompts) + " prompts, expected 0 to the " + std::to_string(d_.state.slots) + " slots");
  expect(p.positions >= p.prompts, std::to_string(p.positions) + " positions of " + std::to_string(p.prompts) +
                                       " prompts, expected at least one each");
  if (p.prompts == 0) return;
  for (std::int32_t first = 0; first < p.positions; first += kPrefillColumns) {
    const std::int32_t count = p.positions - first < kPrefillColumns ? p.positions - first : kPrefillColumns;
    const auto graph = prompt_graphs_.lower_bound(count);
    const void* x = row_of(p.x, first, d_.state.hidden_size, d_.dtype);
    run_prompt(x, p.slot + first, p.position + first, count, graph == prompt_graphs_.end() ? count : graph->first, stream);
    FrameAdmitArguments admit{};
    admit.state = d_.state;
    admit.rows = p.prompts;
    admit.slots = p.slots;
    admit.counts = p.counts;
    admit.last = p.last;
    admit.columns = s_.prompt_x;
    admit.first = first;
    admit.count = count;
    admit.x = s_.talker_x;
    admit.dtype = d_.dtype;
    frame_admit(admit, stream);
  }
  const SharedMemoryScope scope(shared_percent(p.prompts));
  head(d_.talker, 0, s_.talker_x, p.prompts, s_.normed, stream);
  pick_code_0(p.prompts, p.slots, 0, stream);
  end(p.prompts, p.slots, 0, stream);
}

}  // namespace qwen3tts
