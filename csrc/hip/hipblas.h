// hipBLAS and rocBLAS through our own declarations. Host only. The numbers are those of their C interfaces.
#pragma once

#include "common/blas_library.h"

namespace qwen3tts {

// hipBLAS changed the types of its Ex functions: 1.x has its own type codes, 2.x has those plus a second set of functions
// with the suffix _v2 that take HIP's, 3.x has HIP's alone, under the first names.
class HipblasLibrary : public BlasLibrary {
 public:
  // Newest first.
  static std::vector<std::string> names() {
    return {"libhipblas.so.3", "libhipblas.so.2", "libhipblas.so.1", "libhipblas.so.0"};
  }

  explicit HipblasLibrary(const DynamicLibrary& library) : library_(library) {
    destroy_ = library_.symbol<int(void*)>("hipblasDestroy");
    set_stream_ = library_.symbol<int(void*, void*)>("hipblasSetStream");
    set_workspace_ = library_.find_symbol<int(void*, void*, std::size_t)>("hipblasSetWorkspace");  // since 2.x
    gemm_ = library_.find_symbol<GemmStridedBatchedEx>("hipblasGemmStridedBatchedEx_v2");
    hip_types_ = gemm_ != nullptr || library_.name().find("libhipblas.so.3") != std::string::npos;
    if (gemm_ == nullptr) gemm_ = library_.symbol<GemmStridedBatchedEx>("hipblasGemmStridedBatchedEx");
    check_status(library_.symbol<int(void**)>("hipblasCreate")(&handle_), "hipblasCreate");
    if (auto* set_mode = library_.find_symbol<int(void*, int)>("hipblasSetAtomicsMode"))
      check_status(set_mode(handle_, kNoAtomics), "hipblasSetAtomicsMode");  // the same sums at every run
  }
  ~HipblasLibrary() override { destroy_(handle_); }
  HipblasLibrary(const HipblasLibrary&) = delete;
  HipblasLibrary& operator=(const HipblasLibrary&) = delete;

  std::string description() const override { return "hipBLAS (" + library_.name() + ")"; }
  void set_stream(void* stream) override { check_status(set_stream_(handle_, stream), "hipblasSetStream"); }
  void set_workspace(void* memory, std::size_t bytes) override {
    if (set_workspace_ != nullptr) check_status(set_workspace_(handle_, memory, bytes), "hipblasSetWorkspace");
  }
  void gemm(const Gemm& g) override {
    const float one = 1.0f;
    check_status(gemm_(handle_, g.b_transposed ? kTransposed : kPlain, kPlain, static_cast<int>(g.n),
                       static_cast<int>(g.m), static_cast<int>(g.k), &one, g.b, type(g.input),
                       static_cast<int>(g.row_b), g.step_b, g.a, type(g.input), static_cast<int>(g.row_a), g.step_a,
                       &g.beta, g.c, type(g.output), static_cast<int>(g.row_c), g.step_c, static_cast<int>(g.batch),
                       hip_types_ ? kCompute32F : type(DType::f32), kDefaultAlgorithm),
                 "hipblasGemmStridedBatchedEx");
  }

 private:
  using GemmStridedBatchedEx = int(void*, int, int, int, int, int, const void*, const void*, int, int, std::int64_t,
                                   const void*, int, int, std::int64_t, const void*, void*, int, int, std::int64_t, int,
                                   int, int);
  static constexpr int kPlain = 111, kTransposed = 112, kCompute32F = 2, kDefaultAlgorithm = 160, kNoAtomics = 0;

  int type(DType dtype) const {
    if (hip_types_) return dtype == DType::f32 ? 0 : dtype == DType::fp16 ? 2 : 14;  // hipDataType
    return dtype == DType::f32 ? 151 : dtype == DType::fp16 ? 150 : 168;             // hipblasDatatype_t
  }

  DynamicLibrary library_;
  void* handle_ = nullptr;
  bool hip_types_;
  int (*destroy_)(void*);
  int (*set_stream_)(void*, void*);
  int (*set_workspace_)(void*, void*, std::size_t);
  GemmStridedBatchedEx* gemm_;
};

class RocblasLibrary : public BlasLibrary {
 public:
  static std::vector<std::string> names() {
    return {"librocblas.so.5", "librocblas.so.4", "librocblas.so.3", "librocblas.so.0"};
  }

  explicit RocblasLibrary(const DynamicLibrary& library) : library_(library) {
    destroy_ = library_.symbol<int(void*)>("rocblas_destroy_handle");
    set_stream_ = library_.symbol<int(void*, void*)>("rocblas_set_stream");
    set_workspace_ = library_.symbol<int(void*, void*, std::size_t)>("rocblas_set_workspace");
    gemm_ = library_.symbol<GemmStridedBatchedEx>("rocblas_gemm_strided_batched_ex");
    auto* set_mode = library_.symbol<int(void*, int)>("rocblas_set_atomics_mode");
    check_status(library_.symbol<int(void**)>("rocblas_create_handle")(&handle_), "rocblas_create_handle");
    check_status(set_mode(handle_, kNoAtomics), "rocblas_set_atomics_mode");  // the same sums at every run
  }
  ~RocblasLibrary() override { destroy_(handle_); }
  RocblasLibrary(const RocblasLibrary&) = delete;
  RocblasLibrary& operator=(const RocblasLibrary&) = delete;

  std::string description() const override { return "rocBLAS (" + library_.name() + ")"; }
  void set_stream(void* stream) override { check_status(set_stream_(handle_, stream), "rocblas_set_stream"); }
  void set_workspace(void* memory, std::size_t bytes) override {
    check_status(set_workspace_(handle_, memory, bytes), "rocblas_set_workspace");
  }
  void gemm(const Gemm& g) override {
    const float one = 1.0f;
    const int row_c = static_cast<int>(g.row_c), output = type(g.output);
    check_status(gemm_(handle_, g.b_transposed ? kTransposed : kPlain, kPlain, static_cast<int>(g.n),
                       static_cast<int>(g.m), static_cast<int>(g.k), &one, g.b, type(g.input),
                       static_cast<int>(g.row_b), g.step_b, g.a, type(g.input), static_cast<int>(g.row_a), g.step_a,
                       &g.beta, g.c, output, row_c, g.step_c, g.c, output, row_c, g.step_c, static_cast<int>(g.batch),
                       type(DType::f32), 0, 0, 0),
                 "rocblas_gemm_strided_batched_ex");
  }

 private:
  using GemmStridedBatchedEx = int(void*, int, int, int, int, int, const void*, const void*, int, int, std::int64_t,
                                   const void*, int, int, std::int64_t, const void*, const void*, int, int, std::int64_t,
                                   void*, int, int, std::int64_t, int, int, int, std::int32_t, std::uint32_t);
  static constexpr int kPlain = 111, kTransposed = 112, kNoAtomics = 0;

  static int type(DType dtype) { return dtype == DType::f32 ? 151 : dtype == DType::fp16 ? 150 : 168; }

  DynamicLibrary library_;
  void* handle_ = nullptr;
  int (*destroy_)(void*);
  int (*set_stream_)(void*, void*);
  int (*set_workspace_)(void*, void*, std::size_t);
  GemmStridedBatchedEx* gemm_;
};

}  // namespace qwen3tts
