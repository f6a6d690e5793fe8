// HIP's host API on one CPU "device" whose streams are synchronous.
#include "emulation/host.h"
#include "emulation/threads.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace emulation {

using Work = std::function<hipError_t()>;

struct Graph {
  std::vector<Work> nodes;
};
struct Capture {
  Graph graph;
  hipStreamCaptureMode mode;
  Stream* origin;
  bool broken = false, ended = false;
};
struct Stream {
  std::shared_ptr<Capture> capture;  // of its own, or one it joined by waiting for an event
};
struct Event {
  bool timed = true, recorded = false;
  std::chrono::steady_clock::time_point when;
  std::shared_ptr<Capture> capture;
};

namespace {

thread_local hipError_t last_error = hipSuccess;
thread_local std::string last_failure;
int strict_captures = 0;  // in progress, of a mode that forbids allocations

hipError_t result(hipError_t error) {
  if (error != hipSuccess) last_error = error;
  return error;
}

Capture* capture_of(const Stream* stream) {
  return stream == nullptr || stream->capture == nullptr || stream->capture->ended ? nullptr : stream->capture.get();
}

// The runtime refuses what would wait or allocate while a stream records; the recording is lost.
hipError_t refuse(Stream* stream) {
  if (Capture* capture = capture_of(stream)) capture->broken = true;
  return result(hipErrorStreamCaptureUnsupported);
}

bool within(unsigned value, unsigned limit) { return value >= 1 && value <= limit; }

hipError_t check_configuration(const Launch& launch) {
  const dim3 g = launch.grid, b = launch.block;
  const uint64_t threads = uint64_t{b.x} * b.y * b.z;
  if (!within(g.x, 0x7fffffffu) || !within(g.y, 65535) || !within(g.z, 65535)) return hipErrorInvalidConfiguration;
  if (uint64_t{g.x} * b.x > 0xffffffffu) return hipErrorInvalidConfiguration;  // AMD counts work items in 32 bits
  if (!within(b.x, 1024) || !within(b.y, 1024) || !within(b.z, 64) || threads > kMaxThreads)
    return hipErrorInvalidConfiguration;
  return launch.dynamic_shared > kMaxShared ? hipErrorInvalidValue : hipSuccess;
}

}  // namespace

hipError_t submit(hipStream_t stream, Work work) {
  Capture* capture = capture_of(stream);
  if (capture == nullptr) return result(work());
  if (capture->broken) return result(hipErrorStreamCaptureInvalidated);
  capture->graph.nodes.push_back(std::move(work));
  return hipSuccess;
}

hipError_t submit_launch(hipStream_t stream, Launch launch) {
  if (const hipError_t error = check_configuration(launch); error != hipSuccess) return result(error);
  return submit(stream, [launch = std::move(launch)] {
    std::string failure = run(launch);
    if (failure.empty()) return hipSuccess;
    last_failure = "launch failure: " + failure;
    return hipErrorLaunchFailure;
  });
}

}  // namespace emulation

using emulation::last_error;
using emulation::refuse;
using emulation::result;
using emulation::submit;

const char* hipGetErrorName(hipError_t error) {
  switch (error) {
#define EMU_NAME(name) case name: return #name;
    EMU_NAME(hipSuccess) EMU_NAME(hipErrorInvalidValue) EMU_NAME(hipErrorOutOfMemory)
    EMU_NAME(hipErrorInvalidConfiguration) EMU_NAME(hipErrorInsufficientDriver) EMU_NAME(hipErrorNoDevice)
    EMU_NAME(hipErrorInvalidDevice) EMU_NAME(hipErrorInvalidHandle) EMU_NAME(hipErrorIllegalState)
    EMU_NAME(hipErrorNotReady) EMU_NAME(hipErrorLaunchFailure) EMU_NAME(hipErrorStreamCaptureUnsupported)
    EMU_NAME(hipErrorStreamCaptureInvalidated) EMU_NAME(hipErrorStreamCaptureUnmatched)
#undef EMU_NAME
  }
  return "unknown error";
}
const char* hipGetErrorString(hipError_t error) {
  return error == hipErrorLaunchFailure ? emulation::last_failure.c_str() : hipGetErrorName(error);
}
hipError_t hipGetLastError() { return std::exchange(last_error, hipSuccess); }
hipError_t hipPeekAtLastError() { return last_error; }

// ---------------------------------------------------------------- device

hipError_t hipGetDeviceCount(int* count) { return *count = 1, hipSuccess; }
hipError_t hipGetDevice(int* device) { return *device = 0, hipSuccess; }
hipError_t hipSetDevice(int device) { return result(device == 0 ? hipSuccess : hipErrorInvalidDevice); }
hipError_t hipDeviceSynchronize() { return emulation::strict_captures > 0 ? refuse(nullptr) : hipSuccess; }
hipError_t hipDriverGetVersion(int* version) { return *version = HIP_VERSION, hipSuccess; }
hipError_t hipRuntimeGetVersion(int* version) { return *version = HIP_VERSION, hipSuccess; }

hipError_t hipGetDeviceProperties(hipDeviceProp_t* p, int device) {
  if (device != 0) return result(hipErrorInvalidDevice);
  *p = hipDeviceProp_t{};
  std::strcpy(p->name, "CPU emulation of HIP");
  std::strcpy(p->gcnArchName, EMU_WAVE == 64 ? "emulation64" : "emulation32");
  p->totalGlobalMem = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  p->sharedMemPerBlock = emulation::kMaxShared;
  p->regsPerBlock = 65536;
  p->warpSize = EMU_WAVE;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = emulation::kMaxThreads;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 0x7fffffff;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->multiProcessorCount = 1;
  return hipSuccess;
}
hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int device) {
  hipDeviceProp_t p;
  if (const hipError_t error = hipGetDeviceProperties(&p, device); error != hipSuccess) return error;
  switch (attribute) {
    case hipDeviceAttributeWarpSize: return *value = p.warpSize, hipSuccess;
    case hipDeviceAttributeMultiprocessorCount: return *value = p.multiProcessorCount, hipSuccess;
    case hipDeviceAttributeMaxThreadsPerBlock: return *value = p.maxThreadsPerBlock, hipSuccess;
    case hipDeviceAttributeMaxSharedMemoryPerBlock: return *value = emulation::kMaxShared, hipSuccess;
    case hipDeviceAttributeL2CacheSize: return *value = p.l2CacheSize, hipSuccess;
  }
  return result(hipErrorInvalidValue);
}

// ---------------------------------------------------------------- memory

hipError_t hipMalloc(void** pointer, std::size_t bytes) {
  if (emulation::strict_captures > 0) return refuse(nullptr);
  *pointer = bytes == 0 ? nullptr : std::malloc(bytes);
  if (bytes == 0) return hipSuccess;
  if (*pointer == nullptr) return result(hipErrorOutOfMemory);
  std::memset(*pointer, 0xff, bytes);
  return hipSuccess;
}
hipError_t hipFree(void* pointer) {
  if (emulation::strict_captures > 0) return refuse(nullptr);
  std::free(pointer);
  return hipSuccess;
}
hipError_t hipMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  *free_bytes = static_cast<std::size_t>(sysconf(_SC_AVPHYS_PAGES)) * page;
  *total_bytes = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * page;
  return hipSuccess;
}
hipError_t hipMemcpy(void* to, const void* from, std::size_t bytes, hipMemcpyKind) {
  if (emulation::strict_captures > 0) return refuse(nullptr);
  std::memmove(to, from, bytes);
  return hipSuccess;
}
hipError_t hipMemset(void* to, int value, std::size_t bytes) {
  if (emulation::strict_captures > 0) return refuse(nullptr);
  std::memset(to, value, bytes);
  return hipSuccess;
}
hipError_t hipMemcpyAsync(void* to, const void* from, std::size_t bytes, hipMemcpyKind, hipStream_t stream) {
  return submit(stream, [=] { return std::memmove(to, from, bytes), hipSuccess; });
}
hipError_t hipMemsetAsync(void* to, int value, std::size_t bytes, hipStream_t stream) {
  return submit(stream, [=] { return std::memset(to, value, bytes), hipSuccess; });
}

// ---------------------------------------------------------------- streams and events

hipError_t hipStreamCreate(hipStream_t* stream) { return *stream = new emulation::Stream, hipSuccess; }
hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned) { return hipStreamCreate(stream); }
hipError_t hipStreamDestroy(hipStream_t stream) {
  if (stream == nullptr) return result(hipErrorInvalidHandle);
  delete stream;
  return hipSuccess;
}
hipError_t hipStreamSynchronize(hipStream_t stream) {
  return emulation::capture_of(stream) != nullptr ? refuse(stream) : hipSuccess;
}
hipError_t hipStreamQuery(hipStream_t stream) { return hipStreamSynchronize(stream); }
hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned) {
  if (event == nullptr) return result(hipErrorInvalidHandle);
  if (stream != nullptr && event->capture != nullptr && !event->capture->ended) stream->capture = event->capture;
  return hipSuccess;
}

hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned flags) {
  *event = new emulation::Event;
  (*event)->timed = (flags & hipEventDisableTiming) == 0;
  return hipSuccess;
}
hipError_t hipEventCreate(hipEvent_t* event) { return hipEventCreateWithFlags(event, hipEventDefault); }
hipError_t hipEventDestroy(hipEvent_t event) {
  if (event == nullptr) return result(hipErrorInvalidHandle);
  delete event;
  return hipSuccess;
}
hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
  if (event == nullptr) return result(hipErrorInvalidHandle);
  event->capture = emulation::capture_of(stream) == nullptr ? nullptr : stream->capture;
  event->recorded = event->capture == nullptr;
  event->when = std::chrono::steady_clock::now();
  return hipSuccess;
}
hipError_t hipEventSynchronize(hipEvent_t event) {
  if (event == nullptr) return result(hipErrorInvalidHandle);
  return event->capture != nullptr && !event->capture->ended ? refuse(nullptr) : hipSuccess;
}
hipError_t hipEventQuery(hipEvent_t event) { return hipEventSynchronize(event); }
hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop) {
  if (start == nullptr || stop == nullptr || !start->timed || !stop->timed || !start->recorded || !stop->recorded)
    return result(hipErrorInvalidHandle);
  *milliseconds = std::chrono::duration<float, std::milli>(stop->when - start->when).count();
  return hipSuccess;
}

// ---------------------------------------------------------------- graphs: lists of what was submitted, in its order

hipError_t hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode mode) {
  if (stream == nullptr) return result(hipErrorStreamCaptureUnsupported);  // the default stream cannot be captured
  if (emulation::capture_of(stream) != nullptr) return result(hipErrorIllegalState);
  stream->capture = std::make_shared<emulation::Capture>();
  stream->capture->mode = mode;
  stream->capture->origin = stream;
  emulation::strict_captures += mode != hipStreamCaptureModeRelaxed;
  return hipSuccess;
}
hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t* graph) {
  *graph = nullptr;
  emulation::Capture* capture = emulation::capture_of(stream);
  if (capture == nullptr) return result(hipErrorIllegalState);
  if (capture->origin != stream) return result(hipErrorStreamCaptureUnmatched);
  capture->ended = true;
  emulation::strict_captures -= capture->mode != hipStreamCaptureModeRelaxed;
  if (capture->broken) return result(hipErrorStreamCaptureInvalidated);
  *graph = new emulation::Graph(std::move(capture->graph));
  return hipSuccess;
}
hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus* status) {
  const emulation::Capture* capture = emulation::capture_of(stream);
  if (capture == nullptr) *status = hipStreamCaptureStatusNone;
  else *status = capture->broken ? hipStreamCaptureStatusInvalidated : hipStreamCaptureStatusActive;
  return hipSuccess;
}
hipError_t hipGraphGetNodes(hipGraph_t graph, hipGraphNode_t* nodes, std::size_t* count) {
  if (graph == nullptr || nodes != nullptr) return result(hipErrorInvalidValue);  // nodes have no handles here
  *count = graph->nodes.size();
  return hipSuccess;
}
hipError_t hipGraphInstantiate(hipGraphExec_t* out, hipGraph_t graph, hipGraphNode_t*, char*, std::size_t) {
  if (graph == nullptr) return result(hipErrorInvalidValue);
  *out = new emulation::Graph(*graph);
  return hipSuccess;
}
hipError_t hipGraphLaunch(hipGraphExec_t graph, hipStream_t stream) {
  if (graph == nullptr) return result(hipErrorInvalidValue);
  for (const auto& node : graph->nodes)
    if (const hipError_t error = submit(stream, node); error != hipSuccess) return error;
  return hipSuccess;
}
hipError_t hipGraphExecDestroy(hipGraphExec_t graph) { return delete graph, hipSuccess; }
hipError_t hipGraphDestroy(hipGraph_t graph) { return delete graph, hipSuccess; }
