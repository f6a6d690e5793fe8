#include "common/decode/attention.h"

#include "bindings/fields.h"

namespace qwen3tts {
namespace {

AttentionArguments arguments_of(const pybind11::dict& fields, const char* name, bool attends) {
  Fields f(fields, name);
  AttentionArguments a{};
  f.pointer("qkv", a.qkv);
  f.pointer("k_norm", a.k_norm);
  a.eps = f.number<float>("eps");
  f.pointer("cos", a.cos);
  f.pointer("sin", a.sin);
  f.pointer("slot", a.slot);
  f.pointer("position", a.position);
  f.pointer("keys", a.pages.keys);
  f.pointer("values", a.pages.values);
  f.pointer("table", a.pages.table);
  f.int32("table_stride", a.pages.table_stride);
  f.int32("page", a.pages.page);
  f.int32("rows", a.rows);
  f.int32("heads", a.heads);
  f.int32("kv_heads", a.kv_heads);
  f.int32("head_dim", a.head_dim);
  a.dtype = f.dtype("dtype");
  if (attends) {
    f.pointer("q_norm", a.q_norm);
    f.pointer("out", a.out);
    f.pointer("workspace", a.workspace);
    f.int32("blocks", a.blocks);
    a.settled = f.number<bool>("settled");
  }
  f.done();
  return a;
}

void store(const pybind11::dict& fields, std::uintptr_t stream) {
  store_kv(arguments_of(fields, "store_kv", false), pointer(stream));
}

void talker(const pybind11::dict& fields, bool stored, std::uintptr_t stream) {
  talker_attention(arguments_of(fields, "talker_attention", true), stored, pointer(stream));
}

void predictor(const pybind11::dict& fields, std::uintptr_t stream) {
  Fields f(fields, "predictor_attention");
  PredictorAttentionArguments a{};
  f.pointer("qkv", a.qkv);
  f.pointer("q_norm", a.q_norm);
  f.pointer("k_norm", a.k_norm);
  a.eps = f.number<float>("eps");
  f.pointer("cos", a.cos);
  f.pointer("sin", a.sin);
  f.pointer("slot", a.slot);
  f.pointer("keys", a.keys);
  f.pointer("values", a.values);
  f.pointer("out", a.out);
  f.int32("rows", a.rows);
  f.int32("heads", a.heads);
  f.int32("kv_heads", a.kv_heads);
  f.int32("head_dim", a.head_dim);
  f.int32("first", a.first);
  f.int32("count", a.count);
  a.in_order = f.number<bool>("in_order");
  a.dtype = f.dtype("dtype");
  f.done();
  predictor_attention(a, pointer(stream));
}

}  // namespace

void bind_attention(pybind11::module_& m) {
  using pybind11::arg;
  m.def("store_kv", &store, arg("arguments"), arg("stream"), "See csrc/common/decode/attention.h: fields by name.");
  m.def("talker_attention", &talker, arg("arguments"), arg("stored"), arg("stream"),
        "See csrc/common/decode/attention.h: fields by name, those of pages among them.");
  m.def("predictor_attention", &predictor, arg("arguments"), arg("stream"),
        "See csrc/common/decode/attention.h: fields by name.");
  m.def("attention_workspace_bytes", &attention_workspace_bytes, arg("rows"), arg("heads"), arg("kv_heads"),
        arg("head_dim"), arg("blocks") = 0, "Of talker_attention.");
  m.attr("predictor_positions") = kPredictorPositions;
}

}  // namespace qwen3tts
