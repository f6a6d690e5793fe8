// Launches captured once and replayed: CUDA's and HIP's graphs under one name. Host only.
//
//   Graph graph;
//   graph.capture([&](void* stream) { launch...(stream); });   on a stream of its own, thread-local
//   graph.launch(stream);
//
// Thread-local capture: other threads may allocate and launch meanwhile; what this thread may not do while it captures
// (allocate, wait) ends the capture with an error. An error inside leaves no capture open and the graph as it was.
#pragma once

#include <cstddef>
#include <functional>

namespace qwen3tts {

class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Records what `work` launches on the stream it is given and makes it ready; replaces what was there. Nothing runs.
  // Passes on what `work` throws; raises std::runtime_error if the runtime refuses.
  void capture(const std::function<void(void* stream)>& work);

  // Asynchronous. Raises std::logic_error if nothing was captured.
  void launch(void* stream) const;

  std::size_t nodes() const { return nodes_; }
  explicit operator bool() const { return executable_ != nullptr; }

 private:
  void destroy() noexcept;

  void* executable_ = nullptr;
  std::size_t nodes_ = 0;
};

}  // namespace qwen3tts
