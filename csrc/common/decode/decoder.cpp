#include "common/decode/decoder.h"

#include "common/decode/decoder_parts.h"
#include "common/decode/linear.h"
#include "common/shared_memory.h"

namespace qwen3tts {
namespace {

// A plain product x W -> y; the caller adds its weights and whatever else stands around it.
LinearArguments product(const void* x, std::int32_t k, std::int32_t rows, void* y, std::int32_t n, DType dtype) {
  LinearArguments a{};
  a.x = x;
  a.x_stride = a.k = k;
  a.parts = 1;
  a.y = y;
  a.y_stride = n;
  a.rows = rows;
  a.dtype = a.weight_dtype = a.output = dtype;
  a.epilogue = Epilogue::store;
  return a;
}

}  // namespace

// ---------------------------------------------------------------- parts of a pass

const Head& Decoder::head_of(std::int32_t codebook) const {
  return codebook == 0 ? d_.codec_head : d_.heads[static_cast<std::size_t>(codebook - 1)];
}

float* Decoder::logits_of(std::int32_t codebook) const {
  const std::int64_t each = std::int64_t{d_.state.slots} * d_.state.vocab;
  return kept_logits_ == nullptr ? s_.logits : kept_logits_ + codebook * each;
}

void Decoder::head(const Stack& stack, std::int32_t codebook, const void* x, std::int32_t rows, void* normed, void* stream) {
  const Head& head = head_of(codebook);
  LinearArguments a = product(x, stack.geometry.hidden, rows, logits_of(codebook), head.vocab, d_.dtype);
  a.norm_weight = stack.norm;
  a.eps = stack.geometry.eps;
  a.weight[0] = head.weight;
  a.n[0] = head.vocab;
  a.normed = normed;
  a.weight_dtype = head.dtype;
  a.output = DType::f32;
  linear(a, stream);
}

void Decoder::layer(const Stack& stack, std::int32_t index, void* x, const Columns& columns, void* stream) {
  const StackGeometry& g = stack.geometry;
  const LayerWeights& w = stack.layers[static_cast<std::size_t>(index)];
  const std::int32_t inner = g.heads * g.head_dim, kv = g.kv_heads * g.head_dim, n = columns.count;

  LinearArguments qkv = product(x, g.hidden, n, s_.qkv, inner + 2 * kv, d_.dtype);
  qkv.norm_weight = w.input_norm;
  qkv.eps = g.eps;
  qkv.parts = 3;
  qkv.weight[0] = w.q;
  qkv.weight[1] = w.k;
  qkv.weight[2] = w.v;
  qkv.n[0] = inner;
  qkv.n[1] = qkv.n[2] = kv;
  linear(qkv, stream);

  attend(stack, index, columns, stream);

  LinearArguments o = product(s_.attended, inner, n, x, g.hidden, d_.dtype);
  o.weight[0] = w.o;
  o.n[0] = g.hidden;
  o.epilogue = Epilogue::residual;
  linear(o, stream);

  LinearArguments gate_up = product(x, g.hidden, n, s_.gated, g.intermediate, d_.dtype);
  gate_up.norm_weight = w.post_norm;
  gate_up.eps = g.eps;
  gate_up.parts = 2;
  gate_up.weight[0] = w.gate;
  gate_up.weight[1] = w.up;
  gate_up.n[0] = gate_up.n[1] = g.intermediate;
  gate_up.epilogue = Epilogue::silu_mul;
  linear(gate_up, stream);

  LinearArguments down = product(s_.gated, g.intermediate, n, x, g.hidden, d_.dtype);
  down.weight[0] = w.down;
  down.n[0] = g.hidden;
  down.epilogue = Epilogue::residual;
  linear(down, stream);
}

void Decoder::attend(const Stack& stack, std::int32_t index, const Columns& columns, void* stream) {
  const StackGeometry& g = stack.geometry;
  const LayerWeights& w = stack.layers[static_cast<std::size_t>(index)];
  const KvPool& pool = stack.pool;
  const std::int64_t half = std::int64_t{pool.pages} * g.kv_heads * pool.page * g.head_dim;
  void* keys = row_of(pool.base, 2 * index, half, d_.dtype);
  void* values = row_of(pool.base, 2 * index + 1, half, d_.dtype);
  if (columns.pass >= 0) {
    const std::int32_t count = columns.count / columns.rows, first = columns.pass == 0 ? 0 : columns.pass + 1;
    predictor_attention({s_.qkv, w.q_norm, w.k_norm, g.eps, stack.cos, stack.sin, columns.slots, keys, values,
                         s_.attended, columns.rows, g.heads, g.kv_heads, g.head_dim, first, count, d_.dtype, true},
                        stream);
    return;
  }
  AttentionArguments a{};
  a.qkv = s_.qkv;
  a.q_norm = w.q_norm;
  a.k_norm = w.k_norm;
  a.eps = g.eps;
  a.cos = stack.cos;
  a.sin = stack.sin;
  a.slot = columns.slots;
  a.position = columns.positions;
  a.pages = {keys, values, pool.table, pool.table_stride, pool.page};
  a.out = s_.attended;
  a.workspace = s_.attention;
  a.rows = columns.count;
  a.heads = g.heads;
  a.kv_heads = g.kv_heads;
  a.head_dim = g.head_dim;
  a.dtype = d_.dtype;
  a.settled = columns.pass == kTalkerStep;  // frame_sum is no dependent launch
  if (columns.pass == kPrompt) store_kv(a, stream);
  talker_attention(a, columns.pass == kPrompt, stream);
}

void Decoder::pick_code_0(std::int32_t rows, const std::int32_t* slots, std::int32_t frame_offset, void* stream) {
  SamplerArguments a = sampler(0, rows, slots);
  a.params = d_.state.talker;
  a.seen = d_.state.seen;
  a.suppressed = d_.suppressed;
  a.eos_id = d_.eos_id;
  a.frame_offset = frame_offset;
  sample(a, stream);
}

SamplerArguments Decoder::sampler(std::int32_t codebook, std::int32_t rows, const std::int32_t* slots) const {
  const Head& head = head_of(codebook);
  SamplerArguments a{};
  a.logits = logits_of(codebook);
  a.row_stride = head.vocab;
  a.rows = rows;
  a.vocab = head.vocab;
  a.params = d_.state.predictor;
  a.frames = d_.state.frame;
  a.codebook = codebook;
  a.eos_id = -1;
  a.status = d_.state.status;
  a.slots = slots;
  a.in_order = slots == s_.active;  // as frame_begin writes them
  a.codes = d_.state.codes + codebook;
  a.code_stride = d_.state.groups;
  return a;
}

// ---------------------------------------------------------------- a frame

// Pass i makes code i + 1. The first has two columns a row: the hidden state at position 0 and code 0 at position 1.
void Decoder::predictor_pass(std::int32_t pass, std::int32_t rows, void* stream) {
  const Stack& stack = d_.predictor;
  const std::int32_t new_positions = pass == 0 ? 2 : 1, width = stack.geometry.hidden;
  Columns columns{};
  columns.count = rows * new_positions;
  columns.slots = s_.active;
  columns.pass = pass;
  columns.rows = rows;
  for (std::int32_t i = 0; i < stack.geometry.layers; ++i) layer(stack, i, s_.predictor_x, columns, stream);
  const void* last = row_of(s_.predictor_x, pass == 0 ? rows : 0, width, d_.dtype);
  head(stack, pass + 1, last, rows, nullptr, stream);

  SamplerArguments a = sampler(pass + 1, rows, s_.active);
  if (pass + 1 < static_cast<std::int32_t>(d_.inputs.size())) {  // the last code enters no further pass
    a.table = d_.inputs[static_cast<std::size_t>(pass + 1)];
    a.gathered = s_.predictor_x;
    a.row_bytes = bytes_of(width, d_.dtype);
  }
  sample(a, stream);
}

void Decoder::frame(std::int32_t rows, std::int32_t index, void* stream) {
  const std::int32_t groups = d_.state.groups, hidden = d_.state.hidden_size;
  FrameBeginArguments begin{};
  begin.state = d_.state;
  begin.rows = rows;
  begin.active = s_.active;
  begin.position = s_.position;
  begin.x = s_.predictor_x;
  begin.code_0_input = d_.inputs[0];
  begin.width = d_.predictor.geometry.hidden;
  begin.copy_hidden = d_.projection == nullptr;
  begin.dtype = d_.dtype;
  frame_begin(begin, stream);
  if (d_.projection != nullptr) {
    LinearArguments a = product(d_.state.hidden, hidden, rows, s_.predictor_x, begin.width, d_.dtype);
    a.weight[0] = d_.projection;
    a.bias = d_.projection_bias;
    a.n[0] = begin.width;
    linear(a, stream);
  }
  if (rows == 1 && persistent_problem_.empty() && kept_logits_ == nullptr) {
    predictor_at_once(stream);
  } else {
    for (std::int32_t pass = 0; pass + 1 < groups; ++pass) predictor_pass(pass, rows, stream);
  }

  FrameSumArguments sum{};
  sum.state = d_.state;
  sum.rows = rows;
  sum.active = s_.active;
  for (std::int32_t i = 0; i < groups; ++i) sum.tables[i] = d_.tables[static_cast<std::size_t>(i)];
  sum.padding = d_.padding;
  sum.x = s_.talker_x;
  sum.ring = d_.ring + static_cast<std::int64_t>(index) * d_.state.slots * groups;
  sum.dtype = d_.dtype;
  frame_sum(sum, stream);

  Columns columns{};
  columns.count = columns.rows = rows;
  columns.slots = s_.active;
  columns.positions = s_.position;
  columns.pass = kTalkerStep;
  for (std::int32_t i = 0; i < d_.talker.geometry.layers; ++i) layer(d_.talker, i, s_.talker_x, columns, stream);
  head(d_.talker, 0, s_.talker_x, rows, s_.normed, stream);
  pick_code_0(rows, s_.active, 1, stream);
  end(rows, s_.active, 1, stream);
}

void Decoder::end(std::int32_t rows, const std::int32_t* slots, std::int32_t step, void* stream) {
  FrameEndArguments a{};
  a.state = d_.state;
  a.rows = rows;
  a.slots = slots;
  a.normed = s_.normed;
  a.step = step;
  a.eos_id = d_.eos_id;
  a.dtype = d_.dtype;
  frame_end(a, stream);
}

void Decoder::frames(std::int32_t rows, std::int32_t count, void* stream) {
  check_frames(rows, count);
  const SharedMemoryScope scope(shared_percent(rows));
  for (std::int32_t i = 0; i < count; ++i) frame(rows, i, stream);
}

std::int64_t Decoder::capture(std::int32_t rows, std::int32_t count) {
  check_frames(rows, count);
  Graph& graph = graphs_[{rows, count}];
  if (!graph) graph.capture([&](void* stream) { frames(rows, count, stream); });
  return static_cast<std::int64_t>(graph.nodes());
}

void Decoder::replay(std::int32_t rows, std::int32_t count, void* stream) {
  const auto found = graphs_.find({rows, count});
  if (found == graphs_.end() || !found->second)
    throw std::logic_error("decoder: " + std::to_string(count) + " frames of " + std::to_string(rows) +
                           " rows were not captured, so they cannot be replayed");
  found->second.launch(stream);
  ++replays_;
}

}  // namespace qwen3tts
