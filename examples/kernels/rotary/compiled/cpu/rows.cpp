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

template <typename To, typename From>
INLINE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

INLINE float load(float value) { return value; }

INLINE float load(uint16_t bits) { return bits_as<float>(static_cast<uint32_t>(bits) << 16); }

// Written out, as not every processor has an instruction for it, and the loader's copies must not call one of GCC's
// runtime. The scaling by powers of two is exact, also for subnormals.
INLINE float load(rotary_cpu::Half half) {
  const uint32_t wide = static_cast<uint32_t>(half.bits) << 16, twice = wide << 1;
  const float normal = bits_as<float>((twice >> 4) + (0xE0u << 23)) * 0x1.0p-112f;
  const float subnormal = bits_as<float>((twice >> 17) | (126u << 23)) - 0.5f;
  return bits_as<float>((wide & 0x80000000u) | bits_as<uint32_t>(twice < (1u << 27) ? subnormal : normal));
}

INLINE void store(float value, float* to) { *to = value; }

// To nearest, ties to even; a NaN stays one.
INLINE void store(float value, uint16_t* to) {
  const auto bits = bits_as<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  *to = static_cast<uint16_t>(is_nan ? 0x7FC0u : rounded);
}

// To nearest, ties to even: adding a power of two leaves the digits that a half has; a NaN stays one.
INLINE rotary_cpu::Half to_half(float value) {
  const uint32_t bits = bits_as<uint32_t>(value), twice = bits << 1;
  const float scaled = bits_as<float>(bits & 0x7FFFFFFFu) * 0x1.0p+112f * 0x1.0p-110f;  // infinity from 65520 on
  const uint32_t power = twice & 0xFF000000u;
  const float rounded = bits_as<float>(((power < 0x71000000u ? 0x71000000u : power) >> 1) + 0x07800000u) + scaled;
  const uint32_t digits = bits_as<uint32_t>(rounded);
  const uint32_t half = twice > 0xFF000000u ? 0x7E00u : ((digits >> 13) & 0x7C00u) + (digits & 0x0FFFu);
  return {static_cast<uint16_t>((bits >> 16 & 0x8000u) | half)};
}

INLINE void store(float value, rotary_cpu::Half* to) { *to = to_half(value); }

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
FOR_EACH_ISA void rotate(const Rows<Half>& rows, bool inverse) { rotate_rows(rows, inverse); }

}  // namespace rotary_cpu
