#pragma once

#include <cstdint>

namespace rotary_cpu {

// A float16 value, as its bits.
struct Half {
  uint16_t bits;
};

// `count` rows of 2 * `half` values that lie side by side; from one row to the next the pointers move by their stride,
// which may be 0. A bfloat16 value is passed as its 16 bits.
template <typename T>
struct Rows {
  const T* x;
  const T* cos;
  const T* sin;
  T* output;
  int64_t x_stride, cos_stride, sin_stride, output_stride;
  int64_t count, half;
};

void rotate(const Rows<float>& rows, bool inverse);
void rotate(const Rows<uint16_t>& rows, bool inverse);
void rotate(const Rows<Half>& rows, bool inverse);

}  // namespace rotary_cpu
