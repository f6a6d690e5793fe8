// Streams and graphs for tests in Python: what torch.cuda.CUDAGraph does on a card. Codes are hipError_t.
#include "emulation/host.h"

#define EMU_EXPORT extern "C" __attribute__((visibility("default")))

EMU_EXPORT void* emulation_stream_create() {
  hipStream_t stream = nullptr;
  return hipStreamCreate(&stream) == hipSuccess ? stream : nullptr;
}
EMU_EXPORT int emulation_stream_destroy(void* stream) { return hipStreamDestroy(static_cast<hipStream_t>(stream)); }

EMU_EXPORT int emulation_begin_capture(void* stream) {
  return hipStreamBeginCapture(static_cast<hipStream_t>(stream), hipStreamCaptureModeGlobal);
}
EMU_EXPORT int emulation_end_capture(void* stream, void** graph, unsigned long long* nodes) {
  hipGraph_t recorded = nullptr;
  if (const hipError_t error = hipStreamEndCapture(static_cast<hipStream_t>(stream), &recorded); error != hipSuccess)
    return error;
  std::size_t count = 0;
  hipGraphExec_t instance = nullptr;
  hipError_t error = hipGraphGetNodes(recorded, nullptr, &count);
  if (error == hipSuccess) error = hipGraphInstantiate(&instance, recorded, nullptr, nullptr, 0);
  static_cast<void>(hipGraphDestroy(recorded));
  *graph = instance;
  *nodes = count;
  return error;
}
EMU_EXPORT int emulation_graph_launch(void* graph, void* stream) {
  return hipGraphLaunch(static_cast<hipGraphExec_t>(graph), static_cast<hipStream_t>(stream));
}
EMU_EXPORT int emulation_graph_destroy(void* graph) { return hipGraphExecDestroy(static_cast<hipGraphExec_t>(graph)); }
