// Plain loops over plain arrays, apart from Torch's headers: the compiler makes one copy for each level of x86-64 and
// the loader picks the one this processor can run (GCC's function multiversioning). Elsewhere there is one copy.
#include "rows.h"

#include <cmath>
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
INLINE float load(rms_norm_cpu::Half half) {
  const uint32_t wide = static_cast<uint32_t>(half.bits) << 16, twice = wide << 1;
  const float normal = bits_as<float>((twice >> 4) + (0xE0u << 23)) * 0x1.0p-112f;
  const float subnormal = bits_as<float>((twice >> 17) | (126u << 23)) - 0.5f;
  return bits_as<float>((wide & 0x80000000u) | bits_as<uint32_t>(twice < (1u << 27) ? subnormal : normal));
}

// To nearest, ties to even; a NaN stays one.
INLINE uint16_t to_bfloat16(float value) {
  const auto bits = bits_as<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  return static_cast<uint16_t>(is_nan ? 0x7FC0u : rounded);
}

// To nearest, ties to even: adding a power of two leaves the digits that a half has; a NaN stays one.
INLINE rms_norm_cpu::Half to_half(float value) {
  const uint32_t bits = bits_as<uint32_t>(value), twice = bits << 1;
  const float scaled = bits_as<float>(bits & 0x7FFFFFFFu) * 0x1.0p+112f * 0x1.0p-110f;  // infinity from 65520 on
  const uint32_t power = twice & 0xFF000000u;
  const float rounded = bits_as<float>(((power < 0x71000000u ? 0x71000000u : power) >> 1) + 0x07800000u) + scaled;
  const uint32_t digits = bits_as<uint32_t>(rounded);
  const uint32_t half = twice > 0xFF000000u ? 0x7E00u : ((digits >> 13) & 0x7C00u) + (digits & 0x0FFFu);
  return {static_cast<uint16_t>((bits >> 16 & 0x8000u) | half)};
}

INLINE void store(float value, float* to) { *to = value; }
INLINE void store(float value, uint16_t* to) { *to = to_bfloat16(value); }
INLINE void store(float value, rms_norm_cpu::Half* to) { *to = to_half(value); }

INLINE float round_like(float value, const float*) { return value; }
INLINE float round_like(float value, const uint16_t*) { return load(to_bfloat16(value)); }
INLINE float round_like(float value, const rms_norm_cpu::Half*) { return load(to_half(value)); }

template <typename Input, typename Weight, typename Output>
INLINE void normalise(const Input* __restrict__ input, const Weight* __restrict__ weight, Output* __restrict__ output,
                      int64_t rows, int64_t n, int64_t input_stride, float eps) {
  // One row at a time: the second loop finds it in the first-level cache.
  for (int64_t row = 0; row < rows; ++row) {
    const Input* __restrict__ from = input + row * input_stride;
    Output* __restrict__ to = output + row * n;
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i) {
      const float value = load(from[i]);
      sum += value * value;
    }
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      store(round_like(load(from[i]) * scale, from) * load(weight[i]), to + i);
    }
  }
}

}  // namespace

namespace rms_norm_cpu {

#define DEFINE_ROWS(Input, Weight, Output)                                                              \
  FOR_EACH_ISA void rows(const Input* input, const Weight* weight, Output* output,                       \
                         int64_t rows, int64_t n, int64_t input_stride, float eps) {                    \
    normalise(input, weight, output, rows, n, input_stride, eps);                              \
  }

DEFINE_ROWS(float, float, float)
DEFINE_ROWS(uint16_t, uint16_t, uint16_t)
DEFINE_ROWS(uint16_t, float, float)
DEFINE_ROWS(float, uint16_t, float)
DEFINE_ROWS(Half, Half, Half)
DEFINE_ROWS(Half, float, float)
DEFINE_ROWS(Half, uint16_t, float)
DEFINE_ROWS(float, Half, float)
DEFINE_ROWS(uint16_t, Half, float)

}  // namespace rms_norm_cpu
