#include "common/graph.h"

#include "common/gpu.h"

#include <utility>

namespace qwen3tts {
namespace {

#ifdef QWEN3TTS_CUDA
using Template = cudaGraph_t;
using Executable = cudaGraphExec_t;
inline gpu::Status create_stream(gpu::Stream* s) { return cudaStreamCreateWithFlags(s, cudaStreamNonBlocking); }
inline gpu::Status destroy_stream(gpu::Stream s) { return cudaStreamDestroy(s); }
inline gpu::Status begin(gpu::Stream s) { return cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal); }
inline gpu::Status end(gpu::Stream s, Template* g) { return cudaStreamEndCapture(s, g); }
inline gpu::Status count(Template g, std::size_t* n) { return cudaGraphGetNodes(g, nullptr, n); }
inline gpu::Status instantiate(Executable* e, Template g) { return cudaGraphInstantiate(e, g, 0); }
inline gpu::Status destroy_template(Template g) { return cudaGraphDestroy(g); }
inline gpu::Status destroy_executable(Executable e) { return cudaGraphExecDestroy(e); }
inline gpu::Status launch_executable(Executable e, gpu::Stream s) { return cudaGraphLaunch(e, s); }
#else
using Template = hipGraph_t;
using Executable = hipGraphExec_t;
inline gpu::Status create_stream(gpu::Stream* s) { return hipStreamCreateWithFlags(s, hipStreamNonBlocking); }
inline gpu::Status destroy_stream(gpu::Stream s) { return hipStreamDestroy(s); }
inline gpu::Status begin(gpu::Stream s) { return hipStreamBeginCapture(s, hipStreamCaptureModeThreadLocal); }
inline gpu::Status end(gpu::Stream s, Template* g) { return hipStreamEndCapture(s, g); }
inline gpu::Status count(Template g, std::size_t* n) { return hipGraphGetNodes(g, nullptr, n); }
inline gpu::Status instantiate(Executable* e, Template g) { return hipGraphInstantiate(e, g, nullptr, nullptr, 0); }
inline gpu::Status destroy_template(Template g) { return hipGraphDestroy(g); }
inline gpu::Status destroy_executable(Executable e) { return hipGraphExecDestroy(e); }
inline gpu::Status launch_executable(Executable e, gpu::Stream s) { return hipGraphLaunch(e, s); }
#endif

// A stream that is recording. However it ends, no recording is left open.
class Recording {
 public:
  Recording() {
    gpu::check(create_stream(&stream_), "stream for a graph");
    if (const gpu::Status status = begin(stream_); status != gpu::kSuccess) {
      static_cast<void>(destroy_stream(stream_));
      gpu::check(status, "begin of a graph's capture");
    }
    open_ = true;
  }
  ~Recording() {
    if (open_) {  // an error is on its way already; what the runtime says about the lost capture adds nothing
      Template lost = nullptr;
      static_cast<void>(end(stream_, &lost));
      if (lost != nullptr) static_cast<void>(destroy_template(lost));
      static_cast<void>(gpu::last_status());
    }
    static_cast<void>(destroy_stream(stream_));
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  gpu::Stream stream() const { return stream_; }

  Template finish() {
    Template graph = nullptr;
    open_ = false;  // also after an error: the runtime has ended it
    const gpu::Status status = end(stream_, &graph);
    if (status != gpu::kSuccess) static_cast<void>(gpu::last_status());
    gpu::check(status, "end of a graph's capture");
    return graph;
  }

 private:
  gpu::Stream stream_ = nullptr;
  bool open_ = false;
};

}  // namespace

Graph::~Graph() { destroy(); }

Graph::Graph(Graph&& other) noexcept
    : executable_(std::exchange(other.executable_, nullptr)), nodes_(std::exchange(other.nodes_, 0)) {}

Graph& Graph::operator=(Graph&& other) noexcept {
  if (this == &other) return *this;
  destroy();
  executable_ = std::exchange(other.executable_, nullptr);
  nodes_ = std::exchange(other.nodes_, 0);
  return *this;
}

void Graph::destroy() noexcept {
  if (executable_ != nullptr) static_cast<void>(destroy_executable(static_cast<Executable>(executable_)));
  executable_ = nullptr;
  nodes_ = 0;
}

void Graph::capture(const std::function<void(void* stream)>& work) {
  Recording recording;
  work(recording.stream());
  Template graph = recording.finish();
  std::size_t nodes = 0;
  Executable executable = nullptr;
  gpu::Status status = count(graph, &nodes);
  if (status == gpu::kSuccess) status = instantiate(&executable, graph);
  static_cast<void>(destroy_template(graph));
  gpu::check(status, "making a graph ready");
  destroy();
  executable_ = executable;
  nodes_ = nodes;
}

void Graph::launch(void* stream) const {
  if (executable_ == nullptr) throw std::logic_error("graph: nothing was captured, so nothing can be replayed");
  gpu::check(launch_executable(static_cast<Executable>(executable_), gpu::stream_of(stream)), "replay of a graph");
}

}  // namespace qwen3tts
