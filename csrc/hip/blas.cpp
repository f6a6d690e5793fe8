// hipBLAS, else rocBLAS. On HIP's NVIDIA platform, where hipBLAS would only pass the calls on, cuBLAS itself.
#include "common/gpu.h"

#if defined(__HIP_PLATFORM_NVIDIA__)
#include "cuda/cublas.h"
#else
#include "hip/hipblas.h"
#endif

namespace qwen3tts {
namespace {

struct HipRuntime {
  static int current_device() {
    int device = 0;
    gpu::check(hipGetDevice(&device), "hipGetDevice");
    return device;
  }
  static void set_device(int device) { gpu::check(hipSetDevice(device), "hipSetDevice"); }
  static void* allocate(std::size_t bytes) {
    void* memory = nullptr;
    gpu::check(hipMalloc(&memory, bytes), "hipMalloc of the BLAS workspace");
    return memory;
  }
  static void release(void* memory) { static_cast<void>(hipFree(memory)); }  // may fail when the process ends
};

#if defined(__HIP_PLATFORM_NVIDIA__)
std::unique_ptr<BlasLibrary> open_library(const std::string& path) { return std::make_unique<CublasLibrary>(path); }
#else
std::unique_ptr<BlasLibrary> open_library(const std::string& path) {
  std::string tried;
  const bool any = path.empty();
  const bool rocblas_asked = path.find("rocblas") != std::string::npos;
  if (any || !rocblas_asked)
    if (DynamicLibrary found = DynamicLibrary::find(any ? HipblasLibrary::names() : std::vector<std::string>{path}, tried))
      return std::make_unique<HipblasLibrary>(found);
  if (any || rocblas_asked)
    if (DynamicLibrary found = DynamicLibrary::find(any ? RocblasLibrary::names() : std::vector<std::string>{path}, tried))
      return std::make_unique<RocblasLibrary>(found);
  throw std::runtime_error("Neither hipBLAS nor rocBLAS was found. A torch built for ROCm brings them: import torch "
                           "first, or give the path of libhipblas.so or librocblas.so. Tried:" + tried);
}
#endif

}  // namespace

std::unique_ptr<Blas> open_blas(int device, std::size_t workspace_bytes, const std::string& path) {
  return std::make_unique<DeviceBlas<HipRuntime>>(device, workspace_bytes, [&] { return open_library(path); });
}

}  // namespace qwen3tts
