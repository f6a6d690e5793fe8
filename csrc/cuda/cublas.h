// cuBLAS through our own declarations: the few functions and constants of its C interface that are used here, unchanged
// since version 11. Host only.
#pragma once

#include "common/blas_library.h"

namespace qwen3tts {

class CublasLibrary : public BlasLibrary {
 public:
  explicit CublasLibrary(const std::string& path) : library_(open(path)) {
    destroy_ = library_.symbol<int(void*)>("cublasDestroy_v2");
    set_stream_ = library_.symbol<int(void*, void*)>("cublasSetStream_v2");
    set_workspace_ = library_.symbol<int(void*, void*, std::size_t)>("cublasSetWorkspace_v2");
    gemm_ = library_.symbol<GemmStridedBatchedEx>("cublasGemmStridedBatchedEx");
    auto* set_math_mode = library_.symbol<int(void*, int)>("cublasSetMathMode");
    check_status(library_.symbol<int(void**)>("cublasCreate_v2")(&handle_), "cublasCreate");
    check_status(set_math_mode(handle_, kExactReductions), "cublasSetMathMode");
  }
  ~CublasLibrary() override { destroy_(handle_); }
  CublasLibrary(const CublasLibrary&) = delete;
  CublasLibrary& operator=(const CublasLibrary&) = delete;

  std::string description() const override {
    int version = 0;
    check_status(library_.symbol<int(void*, int*)>("cublasGetVersion_v2")(handle_, &version), "cublasGetVersion");
    return "cuBLAS " + std::to_string(version) + " (" + library_.name() + ")";
  }
  void set_stream(void* stream) override { check_status(set_stream_(handle_, stream), "cublasSetStream"); }
  void set_workspace(void* memory, std::size_t bytes) override {
    check_status(set_workspace_(handle_, memory, bytes), "cublasSetWorkspace");
  }
  void gemm(const Gemm& g) override {
    const float one = 1.0f;
    check_status(gemm_(handle_, g.b_transposed ? kTransposed : kPlain, kPlain, static_cast<int>(g.n),
                       static_cast<int>(g.m), static_cast<int>(g.k), &one, g.b, type(g.input),
                       static_cast<int>(g.row_b), g.step_b, g.a, type(g.input), static_cast<int>(g.row_a), g.step_a,
                       &g.beta, g.c, type(g.output), static_cast<int>(g.row_c), g.step_c, static_cast<int>(g.batch),
                       kCompute32F, kDefaultAlgorithm),
                 "cublasGemmStridedBatchedEx");
  }

 private:
  using GemmStridedBatchedEx = int(void*, int, int, int, int, int, const void*, const void*, int, int, long long,
                                   const void*, int, int, long long, const void*, void*, int, int, long long, int, int,
                                   int);
  // cublasOperation_t, cublasComputeType_t, cublasGemmAlgo_t, cublasMath_t: default mode (no TF32) and no reduction in
  // less than fp32.
  static constexpr int kPlain = 0, kTransposed = 1, kCompute32F = 68, kDefaultAlgorithm = -1, kExactReductions = 16;

  static int type(DType dtype) {  // cudaDataType_t
    return dtype == DType::f32 ? 0 : dtype == DType::fp16 ? 2 : 14;
  }

  static DynamicLibrary open(const std::string& path) {
    std::string tried;
    const std::vector<std::string> names{"libcublas.so.13", "libcublas.so.12", "libcublas.so.11"};
    DynamicLibrary library = DynamicLibrary::find(path.empty() ? names : std::vector<std::string>{path}, tried);
    if (!library)
      throw std::runtime_error("cuBLAS was not found. A torch built for CUDA brings it: import torch first, or give the "
                               "path of libcublas.so. Tried:" + tried);
    return library;
  }

  DynamicLibrary library_;
  void* handle_ = nullptr;
  int (*destroy_)(void*);
  int (*set_stream_)(void*, void*);
  int (*set_workspace_)(void*, void*, std::size_t);
  GemmStridedBatchedEx* gemm_;
};

}  // namespace qwen3tts
