#pragma once

// The kernels of the forward pass, without Torch.

#include <cooperative_groups.h>

#include "values.cuh"

namespace rms_norm_cuda {

// Of a cluster, the most blocks that every processor with clusters can run.
constexpr int kMostBlocks = 8;

template <typename Input>
struct ForwardArguments {
  const Input* input;
  const Input* residual;  // null, or added to `input`
  Input* summed;          // where that sum goes
  int64_t rows, n, input_stride, residual_stride;
  float eps;
  int blocks;  // that share a row
};

__device__ __forceinline__ float sum_of_block(float value) {
  __shared__ float of_warp[32];
  value = sum_of_lanes<32>(value);
  if (threadIdx.x % 32 == 0) {
    of_warp[threadIdx.x / 32] = value;
  }
  __syncthreads();
  return sum_of_lanes<32>(threadIdx.x % 32 < blockDim.x / 32 ? of_warp[threadIdx.x % 32] : 0.0f);
}

// The sum of what the blocks of a cluster have, each in all its threads. Each writes it into the shared memory of all,
// so that none waits for another to have read it.
__device__ __forceinline__ float sum_of_cluster(float value, int blocks) {
#if __CUDA_ARCH__ >= 900
  __shared__ float of_block[kMostBlocks];
  const auto cluster = cooperative_groups::this_cluster();
  cluster.barrier_wait();  // until all run, which each has said when it began
  if (threadIdx.x < blocks) {
    *cluster.map_shared_rank(of_block + cluster.block_rank(), threadIdx.x) = value;
  }
  cluster.sync();
  value = 0.0f;
  for (int each = 0; each < blocks; ++each) {
    value += of_block[each];
  }
#endif
  return value;
}

template <typename Input, int Size>
__device__ __forceinline__ Vector<Input, Size> add(const Vector<Input, Size>& value, const Vector<Input, Size>& other) {
  float sum[Size], added[Size];
  widen(value, sum);
  widen(other, added);
#pragma unroll
  for (int i = 0; i < Size; ++i) {
    sum[i] += added[i];
  }
  return narrow<Input>(sum);
}

template <typename Input, int Size>
__device__ __forceinline__ float sum_of_squares(const Vector<Input, Size>& vector) {
  float values[Size], sum = 0.0f;
  widen(vector, values);
#pragma unroll
  for (int i = 0; i < Size; ++i) {
    sum += values[i] * values[i];
  }
  return sum;
}

template <typename Output, typename Input, typename Weight, int Size>
__device__ __forceinline__ Vector<Output, Size> scaled(const Vector<Input, Size>& value, float scale,
                                                       const Vector<Weight, Size>& weight) {
  float result[Size], by[Size];
  widen(value, result);
  widen(weight, by);
#pragma unroll
  for (int i = 0; i < Size; ++i) {
    result[i] *= scale;
  }
  widen(narrow<Input>(result), result);
#pragma unroll
  for (int i = 0; i < Size; ++i) {
    result[i] *= by[i];
  }
  return narrow<Output>(result);
}

// Who shares a row, beside a number of lanes of a warp.
constexpr int kBlock = 0, kCluster = -1;

// A row stays in the registers of the threads that share it: `Lanes` lanes of a warp, a block, or the blocks of a
// cluster. Each holds up to `PerThread` vectors of `Size` values, so that the row is read from memory once. The weight
// is asked for with the row, where there are registers for it.
template <typename Input, typename Weight, int Size, int PerThread, int Lanes, bool Add>
__global__ void __launch_bounds__(512, PerThread <= 4 ? 2 : 1)
    in_registers(const ForwardArguments<Input> with, const Weight* __restrict__ weight, Weight* __restrict__ output) {
  constexpr bool kWeightEarly = PerThread <= 4;
  const int threads = Lanes > 0 ? Lanes : blockDim.x, vectors = static_cast<int>(with.n / Size);
  int64_t row = blockIdx.x * static_cast<int64_t>(blockDim.x / threads) + threadIdx.x / threads;
  int first = threadIdx.x % threads;
  if constexpr (Lanes == kCluster) {
#if __CUDA_ARCH__ >= 900
    cooperative_groups::this_cluster().barrier_arrive();
#endif
    row = blockIdx.x / with.blocks;
    first += blockIdx.x % with.blocks * threads * PerThread;
  }
  const bool inside = row < with.rows;  // lanes past the end still take part in the shuffles
  const auto* from = reinterpret_cast<const Vector<Input, Size>*>(with.input + row * with.input_stride);
  const auto* scale_by = reinterpret_cast<const Vector<Weight, Size>*>(weight);
  auto* to = reinterpret_cast<Vector<Weight, Size>*>(output + row * with.n);

  Vector<Input, Size> held[PerThread];
  Vector<Input, Size> added[PerThread];
  Vector<Weight, Size> by[PerThread];
#pragma unroll
  for (int each = 0; each < PerThread; ++each) {
    const int at = first + each * threads;
    if (inside && at < vectors) {
      held[each] = from[at];
    }
  }
  if constexpr (Add) {
    const auto* other = reinterpret_cast<const Vector<Input, Size>*>(with.residual + row * with.residual_stride);
#pragma unroll
    for (int each = 0; each < PerThread; ++each) {
      const int at = first + each * threads;
      if (inside && at < vectors) {
        added[each] = other[at];
      }
    }
  }
  if constexpr (kWeightEarly) {
#pragma unroll
    for (int each = 0; each < PerThread; ++each) {
      if (first + each * threads < vectors) {
        by[each] = scale_by[first + each * threads];
      }
    }
  }
  if constexpr (Add) {
    auto* summed = reinterpret_cast<Vector<Input, Size>*>(with.summed + row * with.n);
#pragma unroll
    for (int each = 0; each < PerThread; ++each) {
      const int at = first + each * threads;
      if (inside && at < vectors) {
        held[each] = add(held[each], added[each]);
        summed[at] = held[each];
      }
    }
  }
  float sum = 0.0f;
#pragma unroll
  for (int each = 0; each < PerThread; ++each) {
    if (inside && first + each * threads < vectors) {
      sum += sum_of_squares(held[each]);
    }
  }
  if constexpr (Lanes > 0) {
    sum = sum_of_lanes<Lanes>(sum);
  } else {
    sum = sum_of_block(sum);
  }
  if constexpr (Lanes == kCluster) {
    sum = sum_of_cluster(sum, with.blocks);
  }
  const float scale = rsqrtf(sum / static_cast<float>(with.n) + with.eps);
#pragma unroll
  for (int each = 0; each < PerThread; ++each) {
    const int at = first + each * threads;
    if (inside && at < vectors) {
      to[at] = scaled<Weight>(held[each], scale, kWeightEarly ? by[each] : scale_by[at]);
    }
  }
}

// Any length: one block a row, which is read twice, the second time from a cache.
template <typename Input, typename Weight, int Size>
__global__ void __launch_bounds__(1024)
    in_two_passes(const ForwardArguments<Input> with, const Weight* __restrict__ weight, Weight* __restrict__ output) {
  const int64_t row = blockIdx.x, vectors = with.n / Size;
  const auto* from = reinterpret_cast<const Vector<Input, Size>*>(with.input + row * with.input_stride);
  const auto* other = reinterpret_cast<const Vector<Input, Size>*>(with.residual + row * with.residual_stride);
  auto* summed = reinterpret_cast<Vector<Input, Size>*>(with.summed + row * with.n);
  const auto* scale_by = reinterpret_cast<const Vector<Weight, Size>*>(weight);
  auto* to = reinterpret_cast<Vector<Weight, Size>*>(output + row * with.n);
  const bool add_residual = with.residual != nullptr;
  float sum = 0.0f;
#pragma unroll 4
  for (int64_t at = threadIdx.x; at < vectors; at += blockDim.x) {
    Vector<Input, Size> value = from[at];
    if (add_residual) {
      value = add(value, other[at]);
      summed[at] = value;
    }
    sum += sum_of_squares(value);
  }
  const float scale = rsqrtf(sum_of_block(sum) / static_cast<float>(with.n) + with.eps);
#pragma unroll 4
  for (int64_t at = threadIdx.x; at < vectors; at += blockDim.x) {
    to[at] = scaled<Weight>(add_residual ? summed[at] : from[at], scale, scale_by[at]);
  }
}

}  // namespace rms_norm_cuda
