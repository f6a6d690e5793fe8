#include "common/graph.h"

#include "bindings/module.h"

namespace qwen3tts {
namespace {

void capture(Graph& graph, const pybind11::function& work) {
  graph.capture([&work](void* stream) { work(reinterpret_cast<std::uintptr_t>(stream)); });
}

}  // namespace

void bind_graph(pybind11::module_& m) {
  using pybind11::arg;
  pybind11::class_<Graph>(m, "Graph", pybind11::module_local(),
                          "Launches captured once and replayed; see csrc/common/graph.h.")
      .def(pybind11::init<>())
      .def("capture", &capture, arg("work"), "work(stream) launches on that stream; nothing runs. Replaces the graph.")
      .def("launch", [](const Graph& graph, std::uintptr_t stream) { graph.launch(pointer(stream)); }, arg("stream"),
           "Replays on a stream.")
      .def_property_readonly("nodes", &Graph::nodes, "How many launches it holds.");
}

}  // namespace qwen3tts
