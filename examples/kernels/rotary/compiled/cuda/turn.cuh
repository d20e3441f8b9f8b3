#pragma once

// The kernel, without Torch: heads of a token turned by the token's angles.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace rotary_cuda {

constexpr int kMostThreads = 256;

// Blocks that a multiprocessor holds: with the heads of a thread that are under way they are some 40 to 60 kB, more than
// memory needs to be busy. The compiler alone would take more registers.
template <int Count>
constexpr int kBlocks = Count == 4 ? 2 : Count == 2 ? 3 : 5;

struct Strides {
  int64_t batch, token, head, value;
};

// Queries or keys, and where they go.
template <typename T, typename Output>
struct Heads {
  const T* from;
  Output* to;
  Strides from_strides, to_strides;
  int count;
};

template <typename T, typename Angle>
struct Arguments {
  Heads<T, Angle> q, k;
  const Angle* cos;
  const Angle* sin;
  Strides cos_strides, sin_strides;
  int64_t batches, tokens;
  int half;
  bool inverse;
};

// Moved with loads and stores of 16 bytes, or of all there is.
template <typename T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vector {
  T values[N];
};

// As whole words: the compiler takes values of two bytes apart otherwise, which costs registers. Loads and stores that
// are not kept in a cache were measured slower.
template <typename V>
__device__ __forceinline__ V load(const void* from) {
  V result;
  if constexpr (sizeof(V) % 16 == 0) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(V) / 16); ++i) {
      const auto* const words = static_cast<const uint4*>(from) + i;
      reinterpret_cast<uint4*>(&result)[i] = *words;
    }
  } else if constexpr (sizeof(V) == 8) {
    const auto* const words = static_cast<const uint2*>(from);
    *reinterpret_cast<uint2*>(&result) = *words;
  } else {
    result = *static_cast<const V*>(from);
  }
  return result;
}

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
      if constexpr (std::is_same_v<T, float>) {
        to[i] = from.values[i];
      } else if constexpr (std::is_same_v<T, __half>) {
        to[i] = __half2float(from.values[i]);
      } else {
        to[i] = __bfloat162float(from.values[i]);
      }
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
      if constexpr (std::is_same_v<T, float>) {
        to.values[i] = from[i];
      } else if constexpr (std::is_same_v<T, __half>) {
        to.values[i] = __float2half_rn(from[i]);
      } else {
        to.values[i] = __float2bfloat16_rn(from[i]);
      }
    }
  }
  return to;
}

// A thread turns `Size` values of the first half of a head against those of the second, for `Count` heads of one token:
// it reads its angles once, and has all heads under way before it uses the first. Threads: x along a half, y between
// heads, z between tokens, so that no thread divides to find its place. Grid: tokens, heads, batches.
template <typename T, typename Angle, int Size, int Count>
__global__ void __launch_bounds__(kMostThreads, kBlocks<Count>)
    rotate(const __grid_constant__ Arguments<T, Angle> with) {
  using Values = Vector<T, Size>;
  using Turned = Vector<Angle, Size>;
  const int64_t token = blockIdx.x * static_cast<int64_t>(blockDim.z) + threadIdx.z;
  if (token >= with.tokens) {
    return;
  }
  const int first_head = static_cast<int>(blockIdx.y * blockDim.y) * Count + threadIdx.y;
  const auto value = [](const Strides& by) { return Size > 1 ? 1 : by.value; };  // vectors lie side by side
  for (int64_t batch = blockIdx.z; batch < with.batches; batch += gridDim.z) {
    for (int column = threadIdx.x * Size; column < with.half; column += blockDim.x * Size) {
      const auto start = [&](const Strides& by) { return batch * by.batch + token * by.token + column * value(by); };
      const T* const q_from = with.q.from + start(with.q.from_strides);
      const T* const k_from = with.k.from + start(with.k.from_strides);
      Values first[Count], second[Count];
#pragma unroll
      for (int each = 0; each < Count; ++each) {
        const int head = first_head + each * blockDim.y;
        const bool key = head >= with.q.count;
        const int number = key ? head - with.q.count : head;
        const T* const from = (key ? k_from : q_from) + number * (key ? with.k : with.q).from_strides.head;
        const int64_t across = with.half * value((key ? with.k : with.q).from_strides);
        if (head < with.q.count + with.k.count) {
          first[each] = load<Values>(from);
          second[each] = load<Values>(from + across);
        }
      }
      const Angle* const cos = with.cos + start(with.cos_strides);
      const Angle* const sin = with.sin + start(with.sin_strides);
      const auto cos_of_first = load<Turned>(cos);
      const auto cos_of_second = load<Turned>(cos + with.half * value(with.cos_strides));
      const auto sin_of_first = load<Turned>(sin);
      const auto sin_of_second = load<Turned>(sin + with.half * value(with.sin_strides));
      float c1[Size], c2[Size], s1[Size], s2[Size];
      widen(cos_of_first, c1);
      widen(cos_of_second, c2);
      widen(sin_of_first, s1);
      widen(sin_of_second, s2);
      if (with.inverse) {  // the transposed rotation: the signs change and each half takes the other's sine
#pragma unroll
        for (int i = 0; i < Size; ++i) {
          const float swapped = -s1[i];
          s1[i] = -s2[i];
          s2[i] = swapped;
        }
      }
      Angle* const q_to = with.q.to + start(with.q.to_strides);
      Angle* const k_to = with.k.to + start(with.k.to_strides);
#pragma unroll
      for (int each = 0; each < Count; ++each) {
        const int head = first_head + each * blockDim.y;
        const bool key = head >= with.q.count;
        const int number = key ? head - with.q.count : head;
        Angle* const to = (key ? k_to : q_to) + number * (key ? with.k : with.q).to_strides.head;
        const int64_t across = with.half * value((key ? with.k : with.q).to_strides);
        if (head < with.q.count + with.k.count) {
          float a[Size], b[Size], x[Size], y[Size];
          widen(first[each], a);
          widen(second[each], b);
#pragma unroll
          for (int i = 0; i < Size; ++i) {
            x[i] = a[i] * c1[i] - b[i] * s1[i];
            y[i] = b[i] * c2[i] + a[i] * s2[i];
          }
          *reinterpret_cast<Turned*>(to) = narrow<Angle>(x);
          *reinterpret_cast<Turned*>(to + across) = narrow<Angle>(y);
        }
      }
    }
  }
}

}  // namespace rotary_cuda
