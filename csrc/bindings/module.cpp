#include "bindings/module.h"

namespace qwen3tts {

void bind_all(pybind11::module_& m) {
  bind_device(m);
  bind_blas(m);
  bind_graph(m);
  bind_rms_norm(m);
  bind_sampler(m);
  bind_skinny_product(m);
  bind_transposed_conv(m);
}

}  // namespace qwen3tts
