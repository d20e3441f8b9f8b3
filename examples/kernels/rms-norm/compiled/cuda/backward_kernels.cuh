#pragma once

// The kernels of the backward pass, without Torch.

#include <cuda_pipeline.h>
#include <cuda_runtime.h>

#include "values.cuh"

// y = w * x * r with r = (mean(x^2) + eps)^(-1/2), so with g = w * dy:  dx = r * (g - x * r * mean(g * x * r)).
//
// The blocks share the rows, and each adds up its part of the weight's gradient in registers; `sum_rows` adds the parts.
// Rows that are longer than a block's registers are divided between the blocks of a team. Each block tells the others its
// two sums of every row in one word of memory, which says by its sign whether it was written. It adds up its next rows
// before it waits for the words of this one, which by then are there. All blocks of the launch run at once (a cooperative
// launch).

namespace rms_norm_cuda {

constexpr int kMostThreads = 512, kMostWarps = kMostThreads / 32;  // of a block

template <typename Input, typename Output>
struct Arguments {
  const Output* grad;
  const Input* input;
  const Input* added;  // null, or a gradient that is added to that of `input`
  Input* grad_input;
  float* partial;            // [teams, n]
  long long* words;          // [rows, parts], all -1
  int64_t rows, n, grad_stride, input_stride, added_stride;
  int parts;
  float eps, mean_of_one;  // 1 / n
};

// How a block works. Of a row a thread has `PerThread` vectors of `Size` values; `Lanes` lanes of a warp share one, or (0) a
// whole block, or a team of blocks that tell each other their sums `Lag` rows ahead (0: no team). Of a thread's rows
// `Stages` are under way to it or in use.
template <int Threads, int Blocks, int Size, int PerThread, int Lanes, int Stages, int Lag>
struct Shape {
  static constexpr int kThreads = Threads, kBlocks = Blocks, kSize = Size, kPerThread = PerThread, kLanes = Lanes;
  static constexpr int kStages = Stages, kLag = Lag;
};

// To shared memory without a register in between, and without waiting for it; what no such copy exists for is loaded.
template <typename T>
__device__ __forceinline__ void fetch(T* to, const T* from) {
  if constexpr (sizeof(T) % 16 == 0) {
#pragma unroll
    for (int byte = 0; byte < static_cast<int>(sizeof(T)); byte += 16) {
      __pipeline_memcpy_async(reinterpret_cast<char*>(to) + byte, reinterpret_cast<const char*>(from) + byte, 16);
    }
  } else {
    *to = *from;
  }
}

// The sums over groups of `width` lanes, a power of two.
__device__ __forceinline__ void sum_of_lanes(float& first, float& second, int width) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    if (offset < width) {
      first += __shfl_xor_sync(0xFFFFFFFFu, first, offset);
      second += __shfl_xor_sync(0xFFFFFFFFu, second, offset);
    }
  }
}

// The sums over a block, in every warp or, after `tell_warps`, in those that ask. `of_warp` is another one in the next
// call: then one barrier is enough.
__device__ __forceinline__ void tell_warps(float first, float second, float2* of_warp) {
  sum_of_lanes(first, second, 32);
  if (threadIdx.x % 32 == 0) {
    of_warp[threadIdx.x / 32] = make_float2(first, second);
  }
  __syncthreads();
}

__device__ __forceinline__ void sum_of_warps(float& first, float& second, const float2* of_warp) {
  const int lane = threadIdx.x % kMostWarps;
  const float2 of_mine = lane < blockDim.x / 32 ? of_warp[lane] : make_float2(0.0f, 0.0f);
  first = of_mine.x;
  second = of_mine.y;
  sum_of_lanes(first, second, kMostWarps);
}

__device__ __forceinline__ void tell(float squares, float products, volatile long long* word) {
  const long long high = __float_as_int(squares) & 0x7FFFFFFF;  // a sum of squares, or NaN: the sign says nothing
  *word = high << 32 | static_cast<unsigned>(__float_as_int(products));
}

// The sums over a team, whose words are divided between groups of `width` lanes; each has asked for its first already.
// Every warp waits for itself; all add in the same order.
__device__ __forceinline__ void sum_of_team(float& squares, float& products, const volatile long long* words,
                                            long long word, int parts, int width) {
  squares = products = 0.0f;
  for (int each = threadIdx.x % width; each < parts;) {
    while (word < 0) {
      word = words[each];
    }
    squares += __int_as_float(static_cast<int>(word >> 32));
    products += __int_as_float(static_cast<int>(word));
    each += width;
    word = each < parts ? words[each] : 0;
  }
  sum_of_lanes(squares, products, width);
}

template <typename Input, typename Weight, typename Shape, bool Add>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    backward_kernel(const Arguments<Input, Weight> with, const Weight* __restrict__ weight) {
  constexpr int Size = Shape::kSize, PerThread = Shape::kPerThread, Lanes = Shape::kLanes, kStages = Shape::kStages;
  using Values = Vector<Input, Size>;
  using Grads = Vector<Weight, Size>;
  extern __shared__ __align__(16) unsigned char staged[];
  __shared__ float2 of_warp[2][kMostWarps];
  const int threads = Lanes == 0 ? blockDim.x : Lanes, rows_a_block = blockDim.x / threads;
  const int part = Lanes == 0 ? blockIdx.x % with.parts : 0;
  const int64_t team = blockIdx.x / with.parts, teams = gridDim.x / with.parts;
  const int first = part * threads * PerThread + threadIdx.x % threads, vectors = static_cast<int>(with.n / Size);

  // Every thread fetches for itself alone: no barrier stands between a copy and its use.
  auto* const values = reinterpret_cast<Values*>(staged) + threadIdx.x;
  auto* const grads = reinterpret_cast<Grads*>(values - threadIdx.x + kStages * PerThread * blockDim.x) + threadIdx.x;
  auto* const others = reinterpret_cast<Values*>(grads - threadIdx.x + kStages * PerThread * blockDim.x) + threadIdx.x;
  const auto slot = [&](int stage, int each) { return (stage * PerThread + each) * blockDim.x; };
  const auto fetch_row = [&](int64_t row, int stage) {
    if (row < with.rows) {
#pragma unroll
      for (int each = 0; each < PerThread; ++each) {
        const int at = first + each * threads;
        if (at < vectors) {
          fetch(values + slot(stage, each), reinterpret_cast<const Values*>(with.input + row * with.input_stride) + at);
          fetch(grads + slot(stage, each), reinterpret_cast<const Grads*>(with.grad + row * with.grad_stride) + at);
          if constexpr (Add) {
            fetch(others + slot(stage, each), reinterpret_cast<const Values*>(with.added + row * with.added_stride) + at);
          }
        }
      }
    }
    __pipeline_commit();
  };

  Grads by[PerThread];
  float grad_weight[PerThread][Size] = {};
#pragma unroll
  for (int each = 0; each < PerThread; ++each) {
    if (first + each * threads < vectors) {
      by[each] = reinterpret_cast<const Grads*>(weight)[first + each * threads];
    }
  }

  const auto sum_row = [&](bool inside, int stage, float& squares, float& products) {
    squares = products = 0.0f;
#pragma unroll
    for (int each = 0; each < PerThread; ++each) {
      if (inside && first + each * threads < vectors) {
        float x[Size], dy[Size], w[Size];
        widen(values[slot(stage, each)], x);
        widen(grads[slot(stage, each)], dy);
        widen(by[each], w);
#pragma unroll
        for (int i = 0; i < Size; ++i) {
          squares += x[i] * x[i];
          products += dy[i] * w[i] * x[i];
        }
      }
    }
  };
  const auto finish_row = [&](int64_t row, bool inside, int stage, float squares, float products) {
    const float rstd = rsqrtf(squares * with.mean_of_one + with.eps);
    const float mean = products * rstd * with.mean_of_one;
    auto* to = reinterpret_cast<Values*>(with.grad_input + row * with.n);
#pragma unroll
    for (int each = 0; each < PerThread; ++each) {
      if (inside && first + each * threads < vectors) {
        float x[Size], dy[Size], w[Size], result[Size];
        widen(values[slot(stage, each)], x);
        widen(grads[slot(stage, each)], dy);
        widen(by[each], w);
#pragma unroll
        for (int i = 0; i < Size; ++i) {
          x[i] *= rstd;
          result[i] = rstd * (dy[i] * w[i] - x[i] * mean);
        }
        Values rounded = narrow<Input>(x);
        widen(rounded, x);
#pragma unroll
        for (int i = 0; i < Size; ++i) {
          grad_weight[each][i] += dy[i] * x[i];
        }
        rounded = narrow<Input>(result);
        if constexpr (Add) {
          widen(rounded, result);
          widen(others[slot(stage, each)], x);
#pragma unroll
          for (int i = 0; i < Size; ++i) {
            result[i] += x[i];
          }
          rounded = narrow<Input>(result);
        }
        to[first + each * threads] = rounded;
      }
    }
  };

  const auto next = [](int stage) { return stage == kStages - 1 ? 0 : stage + 1; };
  const int64_t step = teams * rows_a_block, mine = threadIdx.x / threads;
  int64_t base = team * rows_a_block;
  for (int stage = 0; stage < kStages - 1; ++stage) {
    fetch_row(base + mine + stage * step, stage);
  }
  float squares, products;
  int stage = 0, parity = 0;
  if constexpr (Shape::kLag > 0) {
    int width = 1;
    while (width < with.parts && width < 32) {
      width *= 2;
    }
    const int lane = threadIdx.x % width;
    const auto tell_row = [&](int64_t row, int at) {
      if (row < with.rows) {
        sum_row(true, at, squares, products);
        tell_warps(squares, products, of_warp[parity]);
        if (threadIdx.x < 32) {
          sum_of_warps(squares, products, of_warp[parity]);
          if (threadIdx.x == 0) {
            tell(squares, products, with.words + row * with.parts + part);
          }
        }
        parity ^= 1;
      }
    };
    constexpr int kLag = Shape::kLag;
#pragma unroll
    for (int ahead = 0; ahead < kLag; ++ahead) {
      __pipeline_wait_prior(kStages - 2 - ahead);
      tell_row(base + ahead * step, ahead);
    }
    for (; base < with.rows; base += step) {
      fetch_row(base + (kStages - 1) * step, stage == 0 ? kStages - 1 : stage - 1);
      __pipeline_wait_prior(kStages - 1 - kLag);
      const volatile long long* const words = with.words + base * with.parts;
      const long long word = lane < with.parts ? words[lane] : 0;
      tell_row(base + kLag * step, stage + kLag < kStages ? stage + kLag : stage + kLag - kStages);
      sum_of_team(squares, products, words, word, with.parts, width);
      finish_row(base, true, stage, squares, products);
      stage = next(stage);
    }
  } else {
    for (; base < with.rows; base += step) {
      const int64_t row = base + mine;
      const bool inside = row < with.rows;
      fetch_row(row + (kStages - 1) * step, stage == 0 ? kStages - 1 : stage - 1);
      __pipeline_wait_prior(kStages - 1);
      sum_row(inside, stage, squares, products);
      if constexpr (Lanes == 0) {
        tell_warps(squares, products, of_warp[parity]);
        sum_of_warps(squares, products, of_warp[parity]);
        parity ^= 1;
      } else {
        squares = sum_of_lanes<Lanes>(squares);
        products = sum_of_lanes<Lanes>(products);
      }
      finish_row(row, inside, stage, squares, products);
      stage = next(stage);
    }
  }
  __pipeline_wait_prior(0);

  float* const to = with.partial + team * with.n;
  if constexpr (Lanes == 0) {
#pragma unroll
    for (int each = 0; each < PerThread; ++each) {
      const int at = first + each * threads;
      if (at < vectors) {
        reinterpret_cast<Vector<float, Size>*>(to)[at] = narrow<float>(grad_weight[each]);
      }
    }
  } else {
    // The rows of a block were divided between its warps, and between the halves of a warp: both are added here.
    float* const of_block = reinterpret_cast<float*>(staged);
    __syncthreads();
#pragma unroll
    for (int each = 0; each < PerThread; ++each) {
#pragma unroll
      for (int i = 0; i < Size; ++i) {
        if constexpr (Lanes == 16) {
          grad_weight[each][i] += __shfl_xor_sync(0xFFFFFFFFu, grad_weight[each][i], 16);
        }
        const int at = first + each * threads;
        if (threadIdx.x % 32 < Lanes && at < vectors) {
          of_block[(threadIdx.x / 32) * with.n + at * Size + i] = grad_weight[each][i];
        }
      }
    }
    __syncthreads();
    for (int at = threadIdx.x; at < with.n; at += blockDim.x) {
      float sum = 0.0f;
      for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) {
        sum += of_block[warp * with.n + at];
      }
      to[at] = sum;
    }
  }
}

// The sum of `count` rows of `n` values, of which a block adds 32 columns.
template <typename Weight>
__global__ void __launch_bounds__(1024) sum_rows(const float* __restrict__ from, Weight* __restrict__ to, int count, int64_t n) {
  __shared__ float of_rows[32][33];
  const int64_t column = blockIdx.x * static_cast<int64_t>(32) + threadIdx.x;
  float sum = 0.0f;
  if (column < n) {
#pragma unroll 4
    for (int row = threadIdx.y; row < count; row += 32) {
      sum += from[row * n + column];
    }
  }
  of_rows[threadIdx.x][threadIdx.y] = sum;
  __syncthreads();
  sum = sum_of_lanes<32>(of_rows[threadIdx.y][threadIdx.x]);
  const int64_t summed = blockIdx.x * static_cast<int64_t>(32) + threadIdx.y;
  if (threadIdx.x == 0 && summed < n) {
    to[summed] = narrow<Weight>(sum);
  }
}

}  // namespace rms_norm_cuda
