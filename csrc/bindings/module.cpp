#include "bindings/module.h"

namespace qwen3tts {

void bind_all(pybind11::module_& m) {
  bind_device(m);
  bind_rms_norm(m);
}

}  // namespace qwen3tts
