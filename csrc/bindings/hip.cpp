#include "bindings/module.h"

PYBIND11_MODULE(_hip, m) {
  m.doc() = "Kernels of the HIP backend";
  qwen3tts::bind_all(m);
#ifndef QWEN3TTS_NO_DECODE_CORE  // the emulation has it
  qwen3tts::bind_decode_core(m);
#endif
}
