// What the decoder's two sources share.
#pragma once

#include "common/types.h"

#include <cstdint>
#include <stdexcept>
#include <string>

namespace qwen3tts {

inline std::int64_t bytes_of(std::int64_t elements, DType dtype) {
  return elements * static_cast<std::int64_t>(size_of(dtype));
}

inline void expect(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument("decoder: " + what);
}

}  // namespace qwen3tts
