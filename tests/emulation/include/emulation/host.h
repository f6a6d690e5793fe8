// What the host calls: devices, memory, streams, events, graphs. Error codes carry HIP's own numbers.
#pragma once

#include "emulation/types.h"

#include <functional>

enum hipError_t {
  hipSuccess = 0,
  hipErrorInvalidValue = 1,
  hipErrorOutOfMemory = 2,
  hipErrorInvalidConfiguration = 9,
  hipErrorInsufficientDriver = 35,
  hipErrorNoDevice = 100,
  hipErrorInvalidDevice = 101,
  hipErrorInvalidHandle = 400,
  hipErrorIllegalState = 401,
  hipErrorNotReady = 600,
  hipErrorLaunchFailure = 719,
  hipErrorStreamCaptureUnsupported = 900,
  hipErrorStreamCaptureInvalidated = 901,
  hipErrorStreamCaptureUnmatched = 903,
};

namespace emulation {
struct Stream;
struct Event;
struct Graph;
}  // namespace emulation
using hipStream_t = emulation::Stream*;
using hipEvent_t = emulation::Event*;
using hipGraph_t = emulation::Graph*;
using hipGraphExec_t = emulation::Graph*;
using hipGraphNode_t = void*;

enum hipMemcpyKind {
  hipMemcpyHostToHost,
  hipMemcpyHostToDevice,
  hipMemcpyDeviceToHost,
  hipMemcpyDeviceToDevice,
  hipMemcpyDefault,
};
enum hipStreamCaptureMode {
  hipStreamCaptureModeGlobal,
  hipStreamCaptureModeThreadLocal,
  hipStreamCaptureModeRelaxed,
};
enum hipStreamCaptureStatus {
  hipStreamCaptureStatusNone,
  hipStreamCaptureStatusActive,
  hipStreamCaptureStatusInvalidated,
};
enum : unsigned { hipStreamDefault = 0, hipStreamNonBlocking = 1 };
enum : unsigned { hipEventDefault = 0, hipEventDisableTiming = 2 };
enum hipDeviceAttribute_t {
  hipDeviceAttributeWarpSize,
  hipDeviceAttributeMultiprocessorCount,
  hipDeviceAttributeMaxThreadsPerBlock,
  hipDeviceAttributeMaxSharedMemoryPerBlock,
  hipDeviceAttributeL2CacheSize,
};

struct hipDeviceProp_t {
  char name[256];
  char gcnArchName[256];
  std::size_t totalGlobalMem, sharedMemPerBlock;
  int regsPerBlock, warpSize, maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3];
  int clockRate, memoryClockRate, memoryBusWidth, multiProcessorCount, l2CacheSize, major, minor;
};

const char* hipGetErrorString(hipError_t error);  // of a failed launch: with what went wrong where
const char* hipGetErrorName(hipError_t error);
hipError_t hipGetLastError();   // of the calling thread, and forgets it
hipError_t hipPeekAtLastError();

hipError_t hipGetDeviceCount(int* count);
hipError_t hipGetDevice(int* device);
hipError_t hipSetDevice(int device);
hipError_t hipGetDeviceProperties(hipDeviceProp_t* properties, int device);
hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int device);
hipError_t hipDeviceSynchronize();
hipError_t hipDriverGetVersion(int* version);
hipError_t hipRuntimeGetVersion(int* version);

hipError_t hipMalloc(void** pointer, std::size_t bytes);
template <class T> hipError_t hipMalloc(T** pointer, std::size_t bytes) {
  return hipMalloc(reinterpret_cast<void**>(pointer), bytes);
}
hipError_t hipFree(void* pointer);
hipError_t hipMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes);
hipError_t hipMemcpy(void* to, const void* from, std::size_t bytes, hipMemcpyKind kind);
hipError_t hipMemset(void* to, int value, std::size_t bytes);
hipError_t hipMemcpyAsync(void* to, const void* from, std::size_t bytes, hipMemcpyKind kind, hipStream_t = nullptr);
hipError_t hipMemsetAsync(void* to, int value, std::size_t bytes, hipStream_t = nullptr);

hipError_t hipStreamCreate(hipStream_t* stream);
hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags);
hipError_t hipStreamDestroy(hipStream_t stream);
hipError_t hipStreamSynchronize(hipStream_t stream);
hipError_t hipStreamQuery(hipStream_t stream);
hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned flags = 0);

hipError_t hipEventCreate(hipEvent_t* event);
hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned flags);
hipError_t hipEventDestroy(hipEvent_t event);
hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream = nullptr);
hipError_t hipEventSynchronize(hipEvent_t event);
hipError_t hipEventQuery(hipEvent_t event);
hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop);

hipError_t hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode mode);
hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t* graph);
hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus* status);
hipError_t hipGraphGetNodes(hipGraph_t graph, hipGraphNode_t* nodes, std::size_t* count);
hipError_t hipGraphInstantiate(hipGraphExec_t* out, hipGraph_t graph, hipGraphNode_t* at, char* log, std::size_t bytes);
hipError_t hipGraphLaunch(hipGraphExec_t graph, hipStream_t stream);
hipError_t hipGraphExecDestroy(hipGraphExec_t graph);
hipError_t hipGraphDestroy(hipGraph_t graph);

namespace emulation {

struct Launch;

// Runs the work now, or adds it to the graph that the stream is recording. Its error is returned and remembered.
hipError_t submit(hipStream_t stream, std::function<hipError_t()> work);

// Checks the launch's configuration as a card does, then submits it.
hipError_t submit_launch(hipStream_t stream, Launch launch);

}  // namespace emulation

extern "C" {
// From now on, threads and blocks take turns in a random order drawn from `seed`; 0 goes back to ascending order.
__attribute__((visibility("default"))) void emulation_set_lane_order(unsigned long long seed);

// Copies `bytes` when the next kernel that waits for the one ahead does so, as if that one had written them only then.
// The first block's threads then wait for each other, which they otherwise do not.
__attribute__((visibility("default"))) void emulation_arrive_at_wait(void* to, const void* from, std::size_t bytes);
__attribute__((visibility("default"))) std::size_t emulation_pending_arrivals();  // whose wait has not come
}
