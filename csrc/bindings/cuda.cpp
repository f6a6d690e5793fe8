#include "bindings/module.h"

PYBIND11_MODULE(_cuda, m) {
  m.doc() = "Kernels of the CUDA backend";
  qwen3tts::bind_all(m);
  qwen3tts::bind_decode_core(m);
}
