#include "bindings/module.h"

PYBIND11_MODULE(_hip, m) {
  m.doc() = "Kernels of the HIP backend";
  qwen3tts::bind_all(m);
}
