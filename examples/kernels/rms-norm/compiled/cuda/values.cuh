#pragma once

// What the kernels share, without Torch: values of each type as float32, vectors of them, sums over lanes.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace rms_norm_cuda {

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ float widen(__half value) { return __half2float(value); }
__device__ __forceinline__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__device__ __forceinline__ T narrow(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else {
    return __float2bfloat16_rn(value);
  }
}

// Moved with loads and stores of 16 bytes, the widest there are.
template <typename T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vector {
  T values[N];
};

// Types of two bytes are converted two at a time: one instruction each way, not two and a merge.
template <typename T, int N>
__device__ __forceinline__ void widen(const Vector<T, N>& from, float (&to)[N]) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      float2 pair;
      if constexpr (std::is_same_v<T, __half>) {
        pair = __half22float2(*reinterpret_cast<const __half2*>(from.values + i));
      } else {
        const auto word = *reinterpret_cast<const unsigned*>(from.values + i);  // kept whole: fewer registers
        pair = make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000u));
      }
      to[i] = pair.x;
      to[i + 1] = pair.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      to[i] = widen(from.values[i]);
    }
  }
}

template <typename T, int N>
__device__ __forceinline__ Vector<T, N> narrow(const float (&from)[N]) {
  Vector<T, N> to;
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      if constexpr (std::is_same_v<T, __half>) {
        *reinterpret_cast<__half2*>(to.values + i) = __floats2half2_rn(from[i], from[i + 1]);
      } else {
        *reinterpret_cast<__nv_bfloat162*>(to.values + i) = __floats2bfloat162_rn(from[i], from[i + 1]);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      to.values[i] = narrow<T>(from[i]);
    }
  }
  return to;
}

template <int Width>
__device__ __forceinline__ float sum_of_lanes(float value) {
#pragma unroll
  for (int offset = Width / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFu, value, offset, Width);
  }
  return value;
}

}  // namespace rms_norm_cuda
