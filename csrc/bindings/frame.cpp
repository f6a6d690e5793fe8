#include "common/decode/frame.h"

#include "bindings/frame_state.h"

namespace qwen3tts {
namespace {

void begin(const pybind11::dict& arguments, std::uintptr_t stream) {
  Fields f(arguments, "frame_begin");
  FrameBeginArguments a{};
  a.state = frame_state(f.nested("state"));
  f.int32("rows", a.rows);
  f.pointer("active", a.active);
  f.pointer("position", a.position);
  f.pointer("x", a.x);
  f.pointer("code_0_input", a.code_0_input);
  f.int32("width", a.width);
  a.copy_hidden = f.number<bool>("copy_hidden");
  a.dtype = f.dtype("dtype");
  f.done();
  frame_begin(a, pointer(stream));
}

void sum(const pybind11::dict& arguments, std::uintptr_t stream) {
  Fields f(arguments, "frame_sum");
  FrameSumArguments a{};
  a.state = frame_state(f.nested("state"));
  f.int32("rows", a.rows);
  f.pointer("active", a.active);
  const std::vector<const void*> tables = f.pointers("tables");
  if (static_cast<std::int32_t>(tables.size()) != a.state.groups || a.state.groups > kMaxCodeGroups)
    throw std::invalid_argument("frame_sum: " + std::to_string(tables.size()) + " tables for " +
                                std::to_string(a.state.groups) + " codes a frame, expected one each and at most " +
                                std::to_string(kMaxCodeGroups));
  for (std::size_t i = 0; i < tables.size(); ++i) a.tables[i] = tables[i];
  f.pointer("padding", a.padding);
  f.pointer("x", a.x);
  f.pointer("ring", a.ring);
  a.dtype = f.dtype("dtype");
  f.done();
  frame_sum(a, pointer(stream));
}

void end(const pybind11::dict& arguments, std::uintptr_t stream) {
  Fields f(arguments, "frame_end");
  FrameEndArguments a{};
  a.state = frame_state(f.nested("state"));
  f.int32("rows", a.rows);
  f.pointer("slots", a.slots);
  f.pointer("normed", a.normed);
  f.int32("step", a.step);
  f.int32("eos_id", a.eos_id);
  a.dtype = f.dtype("dtype");
  f.done();
  frame_end(a, pointer(stream));
}

void admit(const pybind11::dict& arguments, std::uintptr_t stream) {
  Fields f(arguments, "frame_admit");
  FrameAdmitArguments a{};
  a.state = frame_state(f.nested("state"));
  f.int32("rows", a.rows);
  f.pointer("slots", a.slots);
  f.pointer("counts", a.counts);
  f.pointer("last", a.last);
  f.pointer("columns", a.columns);
  f.int32("first", a.first);
  f.int32("count", a.count);
  f.pointer("x", a.x);
  a.dtype = f.dtype("dtype");
  f.done();
  frame_admit(a, pointer(stream));
}

void prompt(const pybind11::dict& arguments, std::uintptr_t stream) {
  Fields f(arguments, "frame_prompt");
  FramePromptArguments a{};
  f.pointer("packed", a.packed);
  f.pointer("slot", a.slot);
  f.pointer("position", a.position);
  f.int32("count", a.count);
  f.int32("columns", a.columns);
  f.pointer("x", a.x);
  f.pointer("slots", a.slots);
  f.pointer("positions", a.positions);
  f.int32("width", a.width);
  a.dtype = f.dtype("dtype");
  f.done();
  frame_prompt(a, pointer(stream));
}

}  // namespace

FrameState frame_state(Fields f) {
  FrameState s{};
  f.pointer("frame", s.frame);
  f.pointer("position", s.position);
  f.pointer("finished", s.finished);
  f.pointer("codes", s.codes);
  f.pointer("status", s.status);
  f.pointer("seen", s.seen);
  f.pointer("hidden", s.hidden);
  f.pointer("limit", s.limit);
  f.pointer("max_frames", s.max_frames);
  f.pointer("text", s.text);
  f.pointer("text_rows", s.text_rows);
  f.pointer("talker", s.talker);
  f.pointer("predictor", s.predictor);
  f.int32("slots", s.slots);
  f.int32("groups", s.groups);
  f.int32("vocab", s.vocab);
  f.int32("hidden_size", s.hidden_size);
  f.done();
  return s;
}

void bind_frame(pybind11::module_& m) {
  using pybind11::arg;
  m.def("frame_begin", &begin, arg("arguments"), arg("stream"), "See csrc/common/decode/frame.h: fields by name.");
  m.def("frame_sum", &sum, arg("arguments"), arg("stream"), "See csrc/common/decode/frame.h: fields by name.");
  m.def("frame_end", &end, arg("arguments"), arg("stream"), "See csrc/common/decode/frame.h: fields by name.");
  m.def("frame_prompt", &prompt, arg("arguments"), arg("stream"), "See csrc/common/decode/frame.h: fields by name.");
  m.def("frame_admit", &admit, arg("arguments"), arg("stream"), "See csrc/common/decode/frame.h: fields by name.");
  m.attr("max_code_groups") = kMaxCodeGroups;
}

}  // namespace qwen3tts
