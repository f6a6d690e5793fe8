// What the two Python modules share. Pointers arrive as integers, with sizes and the stream; torch is never touched.
// Classes are bound with pybind11::module_local(): both modules may be loaded at once.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

namespace qwen3tts {

inline void* pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

// One per operation, in the file of its name. All of them are called by the two below.
void bind_device(pybind11::module_& m);
void bind_attention(pybind11::module_& m);
void bind_blas(pybind11::module_& m);
void bind_decode(pybind11::module_& m);
void bind_frame(pybind11::module_& m);
void bind_graph(pybind11::module_& m);
void bind_linear(pybind11::module_& m);
void bind_rms_norm(pybind11::module_& m);
void bind_sampler(pybind11::module_& m);
void bind_skinny_product(pybind11::module_& m);
void bind_transposed_conv(pybind11::module_& m);

void bind_all(pybind11::module_& m);          // all but the decode core
void bind_decode_core(pybind11::module_& m);  // decode_core.cpp; the HIP module is built without it

}  // namespace qwen3tts
