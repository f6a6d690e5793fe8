#include "common/decode/decoder.h"
#include "common/decode/persistent.h"

#include "bindings/frame_state.h"

namespace qwen3tts {
namespace {

StackGeometry geometry(Fields f) {
  StackGeometry g{};
  f.int32("hidden", g.hidden);
  f.int32("layers", g.layers);
  f.int32("heads", g.heads);
  f.int32("kv_heads", g.kv_heads);
  f.int32("head_dim", g.head_dim);
  f.int32("intermediate", g.intermediate);
  g.eps = f.number<float>("eps");
  f.done();
  return g;
}

LayerWeights layer(Fields f) {
  LayerWeights w{};
  f.pointer("input_norm", w.input_norm);
  f.pointer("q", w.q);
  f.pointer("k", w.k);
  f.pointer("v", w.v);
  f.pointer("q_norm", w.q_norm);
  f.pointer("k_norm", w.k_norm);
  f.pointer("o", w.o);
  f.pointer("post_norm", w.post_norm);
  f.pointer("gate", w.gate);
  f.pointer("up", w.up);
  f.pointer("down", w.down);
  f.done();
  return w;
}

KvPool pool(Fields f) {
  KvPool p{};
  f.pointer("base", p.base);
  f.pointer("table", p.table);
  f.int32("table_stride", p.table_stride);
  f.int32("page", p.page);
  f.int32("pages", p.pages);
  f.done();
  return p;
}

Stack stack(Fields f) {
  Stack s{};
  s.geometry = geometry(f.nested("geometry"));
  for (Fields& one : f.list("layers")) s.layers.push_back(layer(one));
  f.pointer("norm", s.norm);
  f.pointer("cos", s.cos);
  f.pointer("sin", s.sin);
  f.int32("positions", s.positions);
  s.pool = pool(f.nested("pool"));
  f.done();
  return s;
}

Head head(Fields f) {
  Head h{};
  f.pointer("weight", h.weight);
  f.int32("vocab", h.vocab);
  h.dtype = f.dtype("dtype");
  f.done();
  return h;
}

DecoderDescription describe(const pybind11::dict& fields) {
  Fields f(fields, "decoder");
  DecoderDescription d{};
  d.dtype = f.dtype("dtype");
  f.int32("eos_id", d.eos_id);
  d.state = frame_state(f.nested("state"));
  d.talker = stack(f.nested("talker"));
  d.predictor = stack(f.nested("predictor"));
  d.codec_head = head(f.nested("codec_head"));
  for (Fields& one : f.list("heads")) d.heads.push_back(head(one));
  f.pointer("projection", d.projection);
  f.pointer("projection_bias", d.projection_bias);
  d.tables = f.pointers("tables");
  d.inputs = f.pointers("inputs");
  f.pointer("padding", d.padding);
  f.pointer("suppressed", d.suppressed);
  f.pointer("ring", d.ring);
  f.int32("ring_frames", d.ring_frames);
  d.persistent_predictor = f.number<bool>("persistent_predictor");
  f.pointer("workspace", d.workspace);
  d.workspace_size = f.number<std::int64_t>("workspace_size");
  f.done();
  return d;
}

PackedPrompts prompts(const pybind11::dict& fields) {
  Fields f(fields, "prompts");
  PackedPrompts p{};
  f.pointer("x", p.x);
  f.pointer("slot", p.slot);
  f.pointer("position", p.position);
  f.int32("positions", p.positions);
  f.pointer("slots", p.slots);
  f.pointer("counts", p.counts);
  f.pointer("last", p.last);
  f.int32("prompts", p.prompts);
  f.done();
  return p;
}

}  // namespace

void bind_decode(pybind11::module_& m) {
  using pybind11::arg;
  using release = pybind11::call_guard<pybind11::gil_scoped_release>;
  pybind11::class_<Decoder>(m, "Decoder", pybind11::module_local(),
                            "One frame of all rows as launches; see csrc/common/decode/decoder.h.")
      .def(pybind11::init([](const pybind11::dict& fields) { return Decoder(describe(fields)); }), arg("description"),
           "description: the fields of DecoderDescription by name. Whatever they point to must outlive this.")
      .def_static("workspace_bytes", [](const pybind11::dict& fields) { return Decoder::workspace_bytes(describe(fields)); },
                  arg("description"), "Bytes that workspace must have; workspace and workspace_size may be 0 here.")
      .def("frames",
           [](Decoder& d, std::int32_t rows, std::int32_t count, std::uintptr_t stream) {
             d.frames(rows, count, pointer(stream));
           },
           arg("rows"), arg("count"), arg("stream"), release(), "`count` frames of slots 0 .. rows - 1, launch by launch.")
      .def("prefill",
           [](Decoder& d, const pybind11::dict& fields, std::uintptr_t stream) {
             const PackedPrompts packed = prompts(fields);
             pybind11::gil_scoped_release released;
             d.prefill(packed, pointer(stream));
           },
           arg("prompts"), arg("stream"), "Runs packed prompts: the fields of PackedPrompts by name.")
      .def("capture", &Decoder::capture, arg("rows"), arg("count"), release(),
           "Captures frames(rows, count) once; how many launches it has.")
      .def("capture_prompt", &Decoder::capture_prompt, arg("columns"), release(),
           "Captures the layers over so many columns of prompts once; how many launches they are.")
      .def("idle_prompt",
           [](Decoder& d, std::int32_t columns, std::uintptr_t stream) { d.idle_prompt(columns, pointer(stream)); },
           arg("columns"), arg("stream"), release(), "These layers over columns that belong to nobody.")
      .def("replay",
           [](Decoder& d, std::int32_t rows, std::int32_t count, std::uintptr_t stream) {
             d.replay(rows, count, pointer(stream));
           },
           arg("rows"), arg("count"), arg("stream"), release(), "As frames(rows, count), from its graph.")
      .def("keep_logits",
           [](Decoder& d, std::uintptr_t to) { d.keep_logits(static_cast<float*>(pointer(to))); }, arg("to"),
           "The logits of each codebook stay at this address, see csrc/common/decode/decoder.h; 0: no longer. Not for "
           "graphs that are captured already.")
      .def_property_readonly("persistent_problem", &Decoder::persistent_problem,
                             "Why one row's code predictor is launched kernel by kernel; empty: it is one kernel.")
      .def("clear_exchange", [](const Decoder& d, std::uintptr_t stream) { d.clear_exchange(pointer(stream)); }, arg("stream"),
           "After a status of predictor_stuck, before the next frame.")
      .def("disturb_predictor", &Decoder::disturb_predictor, arg("fault"), arg("timeout_ns"),
           "For tests: see csrc/common/decode/decoder.h. Not for graphs that are captured already.")
      .def_property_readonly("replays", &Decoder::replays, "Graphs launched so far, of frames and of prompts.")
      .def("frame_bytes", &Decoder::frame_bytes, arg("rows"), arg("position"),
           "Bytes of one frame that must come from memory, with every row at `position`.");
  m.attr("predictor_stuck") = kPredictorStuck;
  m.attr("prefill_columns") = kPrefillColumns;
  m.attr("decoder_max_slots") = kDecoderMaxSlots;
}

}  // namespace qwen3tts
