// Stand-in for the tensor cores' product of a 16 x 16 and a 16 x 8 matrix, by the 32 lanes of a group.
#pragma once

#include "emulation/device.h"

namespace emulation {

// c += a b; which lane holds what is said in csrc/common/decode/nvidia.h. `widen(word, pair)` makes floats of a word.
// Sums go over k in ascending order: a card has another one, but also the same for every column.
template <class Widen>
void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1, Widen widen,
         const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const Site site{"mma", file, line};
  const unsigned first = position.lane / 32 * 32, g = position.lane % 32 / 4, q = position.lane % 4;
  uint32_t rows[2][2][4], columns[2][2][4];  // [half of k][row or column][q of the lane that has the word]
  const auto take_rows = [&](uint32_t low, uint32_t high, int half) {
    const uint64_t* given = exchange(low | uint64_t{high} << 32, site);
    for (unsigned j = 0; j < 4; ++j)
      for (unsigned row = 0; row < 2; ++row)
        rows[half][row][j] = static_cast<uint32_t>(given[first + 4 * g + j] >> 32 * row);
  };
  take_rows(a0, a1, 0);
  take_rows(a2, a3, 1);
  const uint64_t* given = exchange(b0 | uint64_t{b1} << 32, site);
  for (unsigned j = 0; j < 4; ++j)
    for (unsigned column = 0; column < 2; ++column)
      for (unsigned half = 0; half < 2; ++half)
        columns[half][column][j] = static_cast<uint32_t>(given[first + 4 * (2 * q + column) + j] >> 32 * half);
  for (int half = 0; half < 2; ++half)
    for (int j = 0; j < 4; ++j)
      for (int row = 0; row < 2; ++row)
        for (int column = 0; column < 2; ++column) {
          float a[2], v[2];
          widen(rows[half][row][j], a);
          widen(columns[half][column][j], v);
          c[row * 2 + column] += a[0] * v[0];
          c[row * 2 + column] += a[1] * v[1];
        }
}

}  // namespace emulation
