// Matrix products by the vendor's library (cuBLAS, hipBLAS or rocBLAS), which is looked for when the first object is
// made: neither building nor importing needs it. csrc/cuda/blas.cpp and csrc/hip/blas.cpp implement `open_blas`.
#pragma once

#include "common/types.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace qwen3tts {

// C[i] = A[i] B[i] + beta * C[i] for i < batch. All matrices are row-major: A [m, k], C [m, n], B [k, n], or [n, k] if
// `b_transposed` (a linear layer's weight). row_* are elements from row to row, step_* from matrix to matrix (0: the same
// for all). Sums are fp32, and never TF32; C is of the inputs' type or fp32.
struct Gemm {
  std::int64_t m, n, k, batch;
  const void* a;
  const void* b;
  void* c;
  std::int64_t row_a, row_b, row_c;
  std::int64_t step_a, step_b, step_c;
  bool b_transposed;
  float beta;  // 0 (C is only written) or 1
  DType input, output;
};

// Raises std::invalid_argument when the product is not one that every library can do.
void check_gemm(const Gemm& gemm);

// A handle and its workspace on one device. The products of one object share the workspace, so they must follow one
// another, on one stream: two streams that run at the same time take two objects. Make it outside of captures.
class Blas {
 public:
  virtual ~Blas() = default;
  // Asynchronous and capturable. Raises std::invalid_argument, or std::runtime_error with the library's answer.
  virtual void gemm(const Gemm& gemm, void* stream) = 0;
  virtual std::string library() const = 0;  // "cuBLAS 13.1.0 (libcublas.so.13)"
};

// `path` is a library's file; empty: one that the process has loaded (torch brings its own), else what the system finds.
// Raises std::runtime_error that says what was tried.
std::unique_ptr<Blas> open_blas(int device, std::size_t workspace_bytes, const std::string& path);

}  // namespace qwen3tts
