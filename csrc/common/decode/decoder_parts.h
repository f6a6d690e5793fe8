// What the decoder's sources share.
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

inline void* row_of(void* base, std::int64_t row, std::int64_t width, DType dtype) {
  return static_cast<char*>(base) + bytes_of(row * width, dtype);
}
inline const void* row_of(const void* base, std::int64_t row, std::int64_t width, DType dtype) {
  return static_cast<const char*>(base) + bytes_of(row * width, dtype);
}

// Products of many rows keep their weights and sums in shared memory; with less of it, or a kernel between them that has
// another share, the next one's blocks find no place beside this one's. Of few rows, they rather need the cache. Measured:
// PERF_NOTES.md.
inline int shared_percent(std::int32_t rows) { return rows <= 16 ? -1 : rows <= 32 ? 60 : 50; }

}  // namespace qwen3tts
