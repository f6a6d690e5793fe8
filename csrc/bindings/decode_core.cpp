#include "bindings/module.h"

namespace qwen3tts {

void bind_decode_core(pybind11::module_& m) {
  bind_attention(m);
  bind_decode(m);
  bind_frame(m);
  bind_linear(m);
}

}  // namespace qwen3tts
