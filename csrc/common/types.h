// Element types as they cross the boundary to Python. Host only: no GPU runtime is included.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

namespace qwen3tts {

enum class DType : int { f32 = 0, bf16 = 1, fp16 = 2 };

inline std::size_t size_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

// Raises std::invalid_argument for a code that is none of the above.
inline DType dtype_of(int code) {
  if (code < 0 || code > 2)
    throw std::invalid_argument("dtype code " + std::to_string(code) + ", expected 0 (f32), 1 (bf16) or 2 (fp16)");
  return static_cast<DType>(code);
}

}  // namespace qwen3tts
