// The loaders of csrc on host memory, for ctypes.
#include "cuda/cublas.h"
#include "hip/hipblas.h"

#include <cstdlib>
#include <cstring>

using namespace qwen3tts;

namespace {

struct HostRuntime {
  static int current_device() { return 0; }
  static void set_device(int) {}
  static void* allocate(std::size_t bytes) { return std::malloc(bytes); }
  static void release(void* memory) { std::free(memory); }
};

std::unique_ptr<BlasLibrary> open_library(const std::string& kind, const std::string& path) {
  if (kind == "cublas") return std::make_unique<CublasLibrary>(path);
  std::string tried;
  const DynamicLibrary library = DynamicLibrary::find({path}, tried);
  if (!library) throw std::runtime_error("not found:" + tried);
  if (kind == "hipblas") return std::make_unique<HipblasLibrary>(library);
  return std::make_unique<RocblasLibrary>(library);
}

}  // namespace

extern "C" {

// Returns 0, or 1 with the error in `text`; `text` is the library's description otherwise.
int run(const char* kind, const char* path, const std::int64_t* sizes, const void* a, const void* b, float* c,
        int b_transposed, float beta, int input, void* stream, char* text, std::size_t room) {
  try {
    DeviceBlas<HostRuntime> blas(0, 4096, [&] { return open_library(kind, path); });
    blas.gemm({sizes[0], sizes[1], sizes[2], sizes[3], a, b, c, sizes[4], sizes[5], sizes[6], sizes[7], sizes[8], sizes[9],
               b_transposed != 0, beta, dtype_of(input), DType::f32},
              stream);
    std::strncpy(text, blas.library().c_str(), room - 1);
    void (*recorded)(void**, std::size_t*, int*) =
        reinterpret_cast<void (*)(void**, std::size_t*, int*)>(dlsym(dlopen(path, RTLD_NOW), "recorded"));
    void* seen = nullptr;
    std::size_t bytes = 0;
    int mode = -1;
    recorded(&seen, &bytes, &mode);
    if (seen != stream || bytes != 4096 || mode != (std::strcmp(kind, "cublas") == 0 ? 16 : 0)) {
      std::strncpy(text, "stream, workspace or mode was not set", room - 1);
      return 1;
    }
    return 0;
  } catch (const std::exception& error) {
    std::strncpy(text, error.what(), room - 1);
    return 1;
  }
}
}
