// Stands in for csrc/hip/blas.cpp under the emulation: plain loops, launched as a kernel of one thread, so that a
// capture records them like everything else.
#include "common/blas.h"
#include "common/dtype.h"
#include "common/gpu.h"

namespace qwen3tts {
namespace {

template <class In, class Out> __global__ void gemm_kernel(Gemm g) {
  for (int64_t i = 0; i < g.batch; ++i) {
    const In* a = static_cast<const In*>(g.a) + i * g.step_a;
    const In* b = static_cast<const In*>(g.b) + i * g.step_b;
    Out* c = static_cast<Out*>(g.c) + i * g.step_c;
    for (int64_t row = 0; row < g.m; ++row)
      for (int64_t column = 0; column < g.n; ++column) {
        float sum = g.beta == 0.0f ? 0.0f : gpu::widen(c[row * g.row_c + column]);
        for (int64_t k = 0; k < g.k; ++k)
          sum += gpu::widen(a[row * g.row_a + k]) *
                 gpu::widen(g.b_transposed ? b[column * g.row_b + k] : b[k * g.row_b + column]);
        c[row * g.row_c + column] = gpu::narrow<Out>(sum);
      }
  }
}

template <class In> void launch(const Gemm& g, void* stream) {
  if (g.output == g.input) QW_LAUNCH((gemm_kernel<In, In>), dim3(1), dim3(1), 0, gpu::stream_of(stream), g);
  else QW_LAUNCH((gemm_kernel<In, float>), dim3(1), dim3(1), 0, gpu::stream_of(stream), g);
}

class PlainBlas : public Blas {
 public:
  void gemm(const Gemm& g, void* stream) override {
    check_gemm(g);
    switch (g.input) {
      case DType::f32: return launch<float>(g, stream);
      case DType::bf16: return launch<gpu::bf16>(g, stream);
      case DType::fp16: return launch<gpu::fp16>(g, stream);
    }
  }
  std::string library() const override { return "plain loops"; }
};

}  // namespace

std::unique_ptr<Blas> open_blas(int, std::size_t, const std::string& path) {
  if (!path.empty()) throw std::runtime_error("The emulation has no library " + path);
  return std::make_unique<PlainBlas>();
}

}  // namespace qwen3tts
