#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "../torch-ext/torch_binding.h"

namespace {

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

template <typename Input, typename Output, typename Weight>
__device__ __forceinline__ Output scaled(Input value, float scale, Weight weight) {
  return narrow<Output>(widen(narrow<Input>(widen(value) * scale)) * widen(weight));
}

// Moved with loads and stores of 16 bytes, the widest there are.
template <typename T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vector {
  T values[N];
};

template <int Width>
__device__ __forceinline__ float sum_of_lanes(float value) {
#pragma unroll
  for (int offset = Width / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFu, value, offset, Width);
  }
  return value;
}

__device__ __forceinline__ float sum_of_block(float value) {
  __shared__ float of_warp[32];
  value = sum_of_lanes<32>(value);
  if (threadIdx.x % 32 == 0) {
    of_warp[threadIdx.x / 32] = value;
  }
  __syncthreads();
  return sum_of_lanes<32>(threadIdx.x % 32 < blockDim.x / 32 ? of_warp[threadIdx.x % 32] : 0.0f);
}

// A row stays in the registers of the threads that share it: `Lanes` lanes of a warp, or (0) a whole block. Each holds up
// to `PerThread` vectors of `Size` values, so that the row is read from memory once.
template <typename Input, typename Weight, typename Output, int Size, int PerThread, int Lanes>
__global__ void rms_norm_in_registers(const Input* __restrict__ input, const Weight* __restrict__ weight,
                                      Output* __restrict__ output, int64_t rows, int vectors, int64_t input_stride,
                                      float eps) {
  const int threads = Lanes == 0 ? blockDim.x : Lanes;
  const int thread = threadIdx.x % threads;
  const int64_t row = blockIdx.x * static_cast<int64_t>(blockDim.x / threads) + threadIdx.x / threads;
  const bool inside = row < rows;  // lanes past the end still take part in the shuffles
  const auto* from = reinterpret_cast<const Vector<Input, Size>*>(input + row * input_stride);
  auto* to = reinterpret_cast<Vector<Output, Size>*>(output + row * vectors * Size);
  const auto* scale_by = reinterpret_cast<const Vector<Weight, Size>*>(weight);

  Vector<Input, Size> held[PerThread];
  float sum = 0.0f;
#pragma unroll
  for (int each = 0; each < PerThread; ++each) {
    const int at = thread + each * threads;
    if (inside && at < vectors) {
      held[each] = from[at];
    }
  }
#pragma unroll
  for (int each = 0; each < PerThread; ++each) {
    if (inside && thread + each * threads < vectors) {
#pragma unroll
      for (int i = 0; i < Size; ++i) {
        const float value = widen(held[each].values[i]);
        sum += value * value;
      }
    }
  }
  if constexpr (Lanes == 0) {
    sum = sum_of_block(sum);
  } else {
    sum = sum_of_lanes<Lanes>(sum);
  }
  const float scale = rsqrtf(sum / static_cast<float>(vectors * Size) + eps);

#pragma unroll
  for (int each = 0; each < PerThread; ++each) {
    const int at = thread + each * threads;
    if (inside && at < vectors) {
      const Vector<Weight, Size> by = scale_by[at];
      Vector<Output, Size> result;
#pragma unroll
      for (int i = 0; i < Size; ++i) {
        result.values[i] = scaled<Input, Output>(held[each].values[i], scale, by.values[i]);
      }
      to[at] = result;
    }
  }
}

// Any length and alignment: one block a row, one value at a time, the row read twice.
template <typename Input, typename Weight, typename Output>
__global__ void rms_norm_by_value(const Input* __restrict__ input, const Weight* __restrict__ weight,
                                  Output* __restrict__ output, int64_t n, int64_t input_stride, float eps) {
  const Input* from = input + blockIdx.x * input_stride;
  Output* to = output + blockIdx.x * n;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    const float value = widen(from[i]);
    sum += value * value;
  }
  const float scale = rsqrtf(sum_of_block(sum) / static_cast<float>(n) + eps);
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    to[i] = scaled<Input, Output>(from[i], scale, weight[i]);
  }
}

template <typename Input, typename Weight, typename Output>
void launch(const at::Tensor& input, const at::Tensor& weight, at::Tensor& output, double epsilon) {
  const auto* from = static_cast<const Input*>(input.const_data_ptr());
  const auto* by = static_cast<const Weight*>(weight.const_data_ptr());
  auto* to = static_cast<Output*>(output.mutable_data_ptr());
  const int64_t rows = input.size(0), n = input.size(1), stride = input.stride(0);
  const auto eps = static_cast<float>(epsilon);
  const auto stream = c10::cuda::getCurrentCUDAStream();

  constexpr int kSize = 16 / sizeof(Input);
  constexpr int kMostThreads = 512;
  const auto aligned = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; };
  const int64_t vectors = n / kSize;
  const bool whole = n % kSize == 0 && (rows == 1 || stride % kSize == 0) && aligned(from) && aligned(by) && aligned(to);
  if (!whole || vectors > 8 * kMostThreads) {
    rms_norm_by_value<Input, Weight, Output>
        <<<static_cast<unsigned>(rows), 256, 0, stream>>>(from, by, to, n, stride, eps);
  } else {
    const auto run = [&](auto per_thread, auto lanes) {
      constexpr int kPerThread = decltype(per_thread)::value;
      constexpr int kLanes = decltype(lanes)::value;
      const int64_t threads_a_row = kLanes ? kLanes : (vectors + kPerThread * 32 - 1) / (kPerThread * 32) * 32;
      const int64_t threads = kLanes ? 128 : threads_a_row;
      const int64_t rows_a_block = threads / threads_a_row;
      rms_norm_in_registers<Input, Weight, Output, kSize, kPerThread, kLanes>
          <<<static_cast<unsigned>((rows + rows_a_block - 1) / rows_a_block), static_cast<unsigned>(threads), 0, stream>>>(
              from, by, to, rows, static_cast<int>(vectors), stride, eps);
    };
    using std::integral_constant;
    if (vectors <= 16) {
      run(integral_constant<int, 1>(), integral_constant<int, 16>());
    } else if (vectors <= 32) {
      run(integral_constant<int, 1>(), integral_constant<int, 32>());
    } else if (vectors <= 64) {
      run(integral_constant<int, 2>(), integral_constant<int, 32>());
    } else if (vectors <= 128) {
      run(integral_constant<int, 4>(), integral_constant<int, 32>());
    } else if (vectors <= 2 * kMostThreads) {
      run(integral_constant<int, 2>(), integral_constant<int, 0>());
    } else if (vectors <= 4 * kMostThreads) {
      run(integral_constant<int, 4>(), integral_constant<int, 0>());
    } else {
      run(integral_constant<int, 8>(), integral_constant<int, 0>());
    }
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename Input>
void launch_for_weight(const at::Tensor& input, const at::Tensor& weight, at::Tensor& output, double eps) {
  if (weight.scalar_type() == input.scalar_type()) {
    launch<Input, Input, Input>(input, weight, output, eps);
  } else {
    launch<Input, float, float>(input, weight, output, eps);
  }
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& input, const at::Tensor& weight, double eps) {
  const auto type = input.scalar_type();
  TORCH_CHECK(input.dim() >= 1, "rms_norm: `input` has no dimension; allowed is [..., N].");
  TORCH_CHECK(weight.dim() == 1 && weight.size(0) == input.size(-1), "rms_norm: `weight` has the shape ",
              weight.sizes(), "; allowed is [", input.size(-1), "], the last dimension of `input` ", input.sizes(), ".");
  TORCH_CHECK(type == at::kFloat || type == at::kHalf || type == at::kBFloat16, "rms_norm: `input` is ", type,
              "; allowed are float32, float16 and bfloat16.");
  TORCH_CHECK(weight.scalar_type() == type || weight.scalar_type() == at::kFloat, "rms_norm: `weight` is ",
              weight.scalar_type(), "; allowed are the type of `input`, ", type, ", and float32.");
  TORCH_CHECK(weight.device() == input.device(), "rms_norm: `weight` is on ", weight.device(),
              "; allowed is the device of `input`, ", input.device(), ".");

  const c10::cuda::CUDAGuard guard(input.device());
  auto output = at::empty(input.sizes(), input.options().dtype(weight.scalar_type()));
  if (output.numel() == 0) {
    return output;
  }

  auto rows = input.reshape({-1, input.size(-1)});
  if (rows.size(1) > 1 && rows.stride(1) != 1) {
    rows = rows.contiguous();
  }
  TORCH_CHECK(rows.size(0) <= INT32_MAX, "rms_norm: `input` has ", rows.size(0), " rows; allowed are 2^31 - 1.");
  const auto scale = weight.contiguous();
  auto to = output.view({-1, input.size(-1)});
  if (type == at::kFloat) {
    launch_for_weight<float>(rows, scale, to, eps);
  } else if (type == at::kHalf) {
    launch_for_weight<__half>(rows, scale, to, eps);
  } else {
    launch_for_weight<__nv_bfloat16>(rows, scale, to, eps);
  }
  return output;
}
