// Plain loops over plain arrays, apart from Torch's headers: the compiler makes one copy for each level of x86-64 and
// the loader picks the one this processor can run (GCC's function multiversioning). Elsewhere there is one copy.
#include "rows.h"

#include <cstring>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EACH_ISA __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define FOR_EACH_ISA
#endif
// A version for another ISA may only inline what has no target of its own.
#define INLINE inline __attribute__((always_inline))

namespace {

INLINE float load(float value) { return value; }

INLINE float load(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

INLINE void store(float value, float* to) { *to = value; }

// To nearest, ties to even; a NaN stays one.
INLINE void store(float value, uint16_t* to) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  *to = static_cast<uint16_t>(is_nan ? 0x7FC0u : rounded);
}

// The two halves of a row are turned against each other: first * cos - second * sin and second * cos + first * sin, each
// with the sine of its own half. Transposed, the signs change and each half takes the other's sine.
template <typename T>
INLINE void rotate_rows(const rotary_cpu::Rows<T>& rows, bool inverse) {
  const int64_t half = rows.half;
  const float sign = inverse ? -1.0f : 1.0f;
  for (int64_t row = 0; row < rows.count; ++row) {
    const T* __restrict__ first = rows.x + row * rows.x_stride;
    const T* __restrict__ second = first + half;
    const T* __restrict__ cos = rows.cos + row * rows.cos_stride;
    const T* __restrict__ sin = rows.sin + row * rows.sin_stride;
    const T* __restrict__ sin_of_first = sin + (inverse ? half : 0);
    const T* __restrict__ sin_of_second = sin + (inverse ? 0 : half);
    T* __restrict__ to = rows.output + row * rows.output_stride;
#pragma omp simd
    for (int64_t i = 0; i < half; ++i) {
      const float a = load(first[i]), b = load(second[i]);
      store(a * load(cos[i]) - sign * b * load(sin_of_first[i]), to + i);
      store(b * load(cos[i + half]) + sign * a * load(sin_of_second[i]), to + half + i);
    }
  }
}

}  // namespace

namespace rotary_cpu {

FOR_EACH_ISA void rotate(const Rows<float>& rows, bool inverse) { rotate_rows(rows, inverse); }
FOR_EACH_ISA void rotate(const Rows<uint16_t>& rows, bool inverse) { rotate_rows(rows, inverse); }

}  // namespace rotary_cpu
