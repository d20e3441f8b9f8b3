// Plain loops over plain arrays, apart from Torch's headers: the compiler makes one copy for each level of x86-64 and
// the loader picks the one this processor can run (GCC's function multiversioning). Elsewhere there is one copy.
#include "spans.h"

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
INLINE float load(silu_mul_cpu::Half half) {
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
INLINE silu_mul_cpu::Half to_half(float value) {
  const uint32_t bits = bits_as<uint32_t>(value), twice = bits << 1;
  const float scaled = bits_as<float>(bits & 0x7FFFFFFFu) * 0x1.0p+112f * 0x1.0p-110f;  // infinity from 65520 on
  const uint32_t power = twice & 0xFF000000u;
  const float rounded = bits_as<float>(((power < 0x71000000u ? 0x71000000u : power) >> 1) + 0x07800000u) + scaled;
  const uint32_t digits = bits_as<uint32_t>(rounded);
  const uint32_t half = twice > 0xFF000000u ? 0x7E00u : ((digits >> 13) & 0x7C00u) + (digits & 0x0FFFu);
  return {static_cast<uint16_t>((bits >> 16 & 0x8000u) | half)};
}

INLINE void store(float value, silu_mul_cpu::Half* to) { *to = to_half(value); }

// e^x without a branch or a call, so that loops over it vectorise: x = k ln 2 + r with |r| <= ln 2 / 2, e^r by its Taylor
// polynomial of degree 7 (the next term is below 6e-9 relative), 2^k by its exponent bits. Infinity from 88.4 on (the
// largest float is e^88.7), zero from -87.7 down (below that floats are subnormal).
INLINE float exponential(float x) {
  x = x < -88.0f ? -88.0f : x;  // a NaN passes both comparisons
  x = x > 89.0f ? 89.0f : x;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const float shifted = x * 1.44269504088896341f + kRound;
  const float k = shifted - kRound;
  float r = x - k * 0.693359375f;  // ln 2 in two parts, the first exact in few bits
  r = r + k * 2.12194440054690583e-4f;
  float power = 1.98412698e-4f;
  power = power * r + 1.38888889e-3f;
  power = power * r + 8.33333333e-3f;
  power = power * r + 4.16666667e-2f;
  power = power * r + 1.66666667e-1f;
  power = power * r + 0.5f;
  power = power * r + 1.0f;
  power = power * r + 1.0f;
  const uint32_t exponent = (bits_as<uint32_t>(shifted) + 127u) << 23;
  return power * bits_as<float>(exponent);
}

INLINE float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

template <typename T>
INLINE void forward_span(const T* __restrict__ gate, const T* __restrict__ up, T* __restrict__ output, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float value = load(gate[i]);
    store(value / (1.0f + exponential(-value)) * load(up[i]), output + i);
  }
}

template <typename T>
INLINE void backward_span(const T* __restrict__ grad, const T* __restrict__ gate, const T* __restrict__ up,
                          T* __restrict__ grad_gate, T* __restrict__ grad_up, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float value = load(gate[i]), by = load(grad[i]), s = sigmoid(value);
    store(by * load(up[i]) * s * (1.0f + value * (1.0f - s)), grad_gate + i);
    store(by * value * s, grad_up + i);
  }
}

}  // namespace

namespace silu_mul_cpu {

#define DEFINE_SPANS(T)                                                                                              \
  FOR_EACH_ISA void forward(const T* gate, const T* up, T* output, int64_t n) { forward_span(gate, up, output, n); } \
  FOR_EACH_ISA void backward(const T* grad, const T* gate, const T* up, T* grad_gate, T* grad_up, int64_t n) {       \
    backward_span(grad, gate, up, grad_gate, grad_up, n);                                                            \
  }

DEFINE_SPANS(float)
DEFINE_SPANS(uint16_t)
DEFINE_SPANS(Half)

}  // namespace silu_mul_cpu
