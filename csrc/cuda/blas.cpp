#include "common/gpu.h"
#include "cuda/cublas.h"

namespace qwen3tts {
namespace {

struct CudaRuntime {
  static int current_device() {
    int device = 0;
    gpu::check(cudaGetDevice(&device), "cudaGetDevice");
    return device;
  }
  static void set_device(int device) { gpu::check(cudaSetDevice(device), "cudaSetDevice"); }
  static void* allocate(std::size_t bytes) {
    void* memory = nullptr;
    gpu::check(cudaMalloc(&memory, bytes), "cudaMalloc of the cuBLAS workspace");
    return memory;
  }
  static void release(void* memory) { static_cast<void>(cudaFree(memory)); }  // may fail when the process ends
};

}  // namespace

std::unique_ptr<Blas> open_blas(int device, std::size_t workspace_bytes, const std::string& path) {
  return std::make_unique<DeviceBlas<CudaRuntime>>(device, workspace_bytes,
                                                   [&] { return std::make_unique<CublasLibrary>(path); });
}

}  // namespace qwen3tts
