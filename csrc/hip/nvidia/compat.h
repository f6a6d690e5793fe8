// Lets the headers of HIP 5.7 for NVIDIA compile with CUDA 13, which dropped or changed what they name. Included by the
// compiler before everything else (-include); nothing changes with CUDA 12 and older.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#if CUDART_VERSION >= 13000

// Fields that left cudaDeviceProp.
struct QwHipDeviceProp : cudaDeviceProp {
  int clockRate, memoryClockRate, computeMode, kernelExecTimeoutEnabled, cooperativeMultiDeviceLaunch, deviceOverlap;
  int maxTexture1DLinear, singleToDoublePrecisionPerfRatio;
};
inline cudaError_t cudaGetDeviceProperties(QwHipDeviceProp* p, int device) {
  *p = QwHipDeviceProp{};
  if (const cudaError_t error = cudaGetDeviceProperties(static_cast<cudaDeviceProp*>(p), device); error != cudaSuccess)
    return error;
  const struct {
    int* value;
    cudaDeviceAttr attribute;
  } moved[] = {{&p->clockRate, cudaDevAttrClockRate},
               {&p->memoryClockRate, cudaDevAttrMemoryClockRate},
               {&p->computeMode, cudaDevAttrComputeMode},
               {&p->kernelExecTimeoutEnabled, cudaDevAttrKernelExecTimeout},
               {&p->deviceOverlap, cudaDevAttrGpuOverlap},
               {&p->singleToDoublePrecisionPerfRatio, cudaDevAttrSingleToDoublePrecisionPerfRatio}};
  for (const auto& one : moved)
    if (const cudaError_t error = cudaDeviceGetAttribute(one.value, one.attribute, device); error != cudaSuccess) return error;
  return cudaSuccess;
}
inline cudaError_t cudaChooseDevice(int* device, const QwHipDeviceProp* p) {
  return cudaChooseDevice(device, static_cast<const cudaDeviceProp*>(p));
}
#define cudaDeviceProp QwHipDeviceProp

// Functions that take more than they did.
inline cudaMemLocation qw_hip_location(int device) {
  cudaMemLocation location{};
  location.type = device < 0 ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice;
  location.id = device < 0 ? 0 : device;
  return location;
}
inline cudaError_t cudaMemAdvise(const void* p, size_t bytes, cudaMemoryAdvise advice, int device) {
  return cudaMemAdvise(p, bytes, advice, qw_hip_location(device));
}
inline cudaError_t cudaMemPrefetchAsync(const void* p, size_t bytes, int device, cudaStream_t stream) {
  return cudaMemPrefetchAsync(p, bytes, qw_hip_location(device), 0, stream);
}
inline cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to,
                                            size_t count) {
  return cudaGraphAddDependencies(graph, from, to, nullptr, count);
}
inline cudaError_t cudaGraphRemoveDependencies(cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to,
                                               size_t count) {
  return cudaGraphRemoveDependencies(graph, from, to, nullptr, count);
}
inline cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to, size_t* count) {
  return cudaGraphGetEdges(graph, from, to, nullptr, count);
}
inline cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* nodes, size_t* count) {
  return cudaGraphNodeGetDependencies(node, nodes, nullptr, count);
}
inline cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t* nodes, size_t* count) {
  return cudaGraphNodeGetDependentNodes(node, nodes, nullptr, count);
}
inline cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t* nodes, size_t count,
                                                       unsigned flags) {
  return cudaStreamUpdateCaptureDependencies(stream, nodes, static_cast<const cudaGraphEdgeData*>(nullptr), count, flags);
}
#undef cuCtxCreate
inline CUresult cuCtxCreate(CUcontext* context, unsigned flags, CUdevice device) {
  return cuCtxCreate_v4(context, nullptr, flags, device);
}

// What is gone. HIP's headers name them; this project does not call them.
#define cudaDevAttrCooperativeMultiDeviceLaunch cudaDevAttrCooperativeLaunch
template <class... A> cudaError_t cudaLaunchCooperativeKernelMultiDevice(A...) { return cudaErrorNotSupported; }
template <class... A> CUresult cuStreamGetCaptureInfo_v2(A...) { return CUDA_ERROR_NOT_SUPPORTED; }

#endif
