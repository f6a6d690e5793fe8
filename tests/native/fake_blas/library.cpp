// Stands for cuBLAS, hipBLAS (each of its three interfaces) or rocBLAS: column-major loops on the host behind the C
// functions and type codes that the real library has. What was set is asked for with `recorded`.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace {

struct Handle {
  void* stream = nullptr;
  void* workspace = nullptr;
  std::size_t bytes = 0;
  int mode = -1;
};

Handle* last = nullptr;

struct Types { int plain, transposed, f32, f16, bf16; };

float read(const void* base, std::int64_t at, int type, const Types& types) {
  if (type == types.f32) return static_cast<const float*>(base)[at];
  const std::uint32_t bits = static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(base)[at]) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;  // bf16; the test uses no fp16
}

// C = op(A) op(B) + beta C, column-major. Returns the libraries' "invalid value" for what they would refuse.
int product(const Types& types, int op_a, int op_b, int m, int n, int k, const float* alpha, const void* a, int type_a,
            int row_a, std::int64_t step_a, const void* b, int type_b, int row_b, std::int64_t step_b, const float* beta,
            void* c, int type_c, int row_c, std::int64_t step_c, int batch) {
  const bool transposed = op_a == types.transposed;
  if ((!transposed && op_a != types.plain) || op_b != types.plain || type_c != types.f32 || type_a != type_b) return 7;
  if (type_a != types.f32 && type_a != types.bf16) return 7;
  if (row_a < (transposed ? k : m) || row_b < k || row_c < m || *alpha != 1.0f || last->workspace == nullptr) return 7;
  for (int i = 0; i < batch; ++i)
    for (int column = 0; column < n; ++column)
      for (int row = 0; row < m; ++row) {
        float* out = static_cast<float*>(c) + i * step_c + static_cast<std::int64_t>(column) * row_c + row;
        float sum = *beta == 0.0f ? 0.0f : *beta * *out;
        for (std::int64_t j = 0; j < k; ++j) {
          const std::int64_t at = transposed ? row * static_cast<std::int64_t>(row_a) + j : j * row_a + row;
          sum += read(a, i * step_a + at, type_a, types) *
                 read(b, i * step_b + static_cast<std::int64_t>(column) * row_b + j, type_b, types);
        }
        *out = sum;
      }
  return 0;
}

int create(void** handle) {
  *handle = last = new Handle;
  return 0;
}
int destroy(void* handle) {
  delete static_cast<Handle*>(handle);
  last = nullptr;
  return 0;
}
int set_stream(void* handle, void* stream) {
  *static_cast<Handle*>(handle) = {stream, nullptr, 0, static_cast<Handle*>(handle)->mode};  // the workspace is forgotten
  return 0;
}
int set_workspace(void* handle, void* memory, std::size_t bytes) {
  static_cast<Handle*>(handle)->workspace = memory;
  static_cast<Handle*>(handle)->bytes = bytes;
  return 0;
}
int set_mode(void* handle, int mode) {
  static_cast<Handle*>(handle)->mode = mode;
  return 0;
}

}  // namespace

#define GEMM_PARAMETERS(Step)                                                                                       \
  void*, int op_a, int op_b, int m, int n, int k, const float *alpha, const void *a, int type_a, int row_a, Step step_a, \
      const void *b, int type_b, int row_b, Step step_b, const float *beta
#define GEMM_CALL(types)                                                                                             \
  product(types, op_a, op_b, m, n, k, alpha, a, type_a, row_a, step_a, b, type_b, row_b, step_b, beta, c, type_c, row_c, \
          step_c, batch)

extern "C" {
#if defined(FAKE_CUBLAS)
int cublasCreate_v2(void** handle) { return create(handle); }
int cublasDestroy_v2(void* handle) { return destroy(handle); }
int cublasSetStream_v2(void* handle, void* stream) { return set_stream(handle, stream); }
int cublasSetWorkspace_v2(void* handle, void* memory, std::size_t bytes) { return set_workspace(handle, memory, bytes); }
int cublasSetMathMode(void* handle, int mode) { return set_mode(handle, mode); }
int cublasGetVersion_v2(void*, int* version) { return *version = 130100, 0; }
int cublasGemmStridedBatchedEx(GEMM_PARAMETERS(long long), void* c, int type_c, int row_c, long long step_c, int batch,
                               int compute, int algorithm) {
  if (compute != 68 || algorithm != -1) return 7;
  return GEMM_CALL((Types{0, 1, 0, 2, 14}));
}
#elif defined(FAKE_HIPBLAS)
int hipblasCreate(void** handle) { return create(handle); }
int hipblasDestroy(void* handle) { return destroy(handle); }
int hipblasSetStream(void* handle, void* stream) { return set_stream(handle, stream); }
int hipblasSetWorkspace(void* handle, void* memory, std::size_t bytes) { return set_workspace(handle, memory, bytes); }
int hipblasSetAtomicsMode(void* handle, int mode) { return set_mode(handle, mode); }
#define HIPBLAS_GEMM(name, types, compute_f32)                                                                       \
  int name(GEMM_PARAMETERS(std::int64_t), void* c, int type_c, int row_c, std::int64_t step_c, int batch, int compute, \
           int algorithm) {                                                                                          \
    if (compute != (compute_f32) || algorithm != 160) return 7;                                                      \
    return GEMM_CALL(types);                                                                                         \
  }
#if FAKE_HIPBLAS == 3
HIPBLAS_GEMM(hipblasGemmStridedBatchedEx, (Types{111, 112, 0, 2, 14}), 2)
#else
HIPBLAS_GEMM(hipblasGemmStridedBatchedEx, (Types{111, 112, 151, 150, 168}), 151)
#endif
#if FAKE_HIPBLAS == 2
HIPBLAS_GEMM(hipblasGemmStridedBatchedEx_v2, (Types{111, 112, 0, 2, 14}), 2)
#endif
#elif defined(FAKE_ROCBLAS)
int rocblas_create_handle(void** handle) { return create(handle); }
int rocblas_destroy_handle(void* handle) { return destroy(handle); }
int rocblas_set_stream(void* handle, void* stream) { return set_stream(handle, stream); }
int rocblas_set_workspace(void* handle, void* memory, std::size_t bytes) { return set_workspace(handle, memory, bytes); }
int rocblas_set_atomics_mode(void* handle, int mode) { return set_mode(handle, mode); }
int rocblas_gemm_strided_batched_ex(GEMM_PARAMETERS(std::int64_t), const void* in, int type_in, int row_in,
                                    std::int64_t step_in, void* c, int type_c, int row_c, std::int64_t step_c, int batch,
                                    int compute, int algorithm, std::int32_t solution, std::uint32_t flags) {
  const bool same = in == c && type_in == type_c && row_in == row_c && step_in == step_c;
  if (!same || compute != 151 || algorithm != 0 || solution != 0 || flags != 0) return 7;
  return GEMM_CALL((Types{111, 112, 151, 150, 168}));
}
#endif

void recorded(void** stream, std::size_t* bytes, int* mode) {
  *stream = last->stream;
  *bytes = last->bytes;
  *mode = last->mode;
}
}
