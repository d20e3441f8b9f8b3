#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <utility>

#include "../torch-ext/torch_binding.h"
#include "rows.cuh"

namespace rms_norm_cuda {

namespace {

template <typename Input>
struct Arguments {
  const Input* input;
  const Input* residual;  // null, or added to `input`
  Input* summed;          // where that sum goes
  int64_t rows, n, input_stride, residual_stride;
  float eps;
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

template <typename Input, int Size>
__device__ __forceinline__ Vector<Input, Size> add(Vector<Input, Size> value, const Vector<Input, Size>& other) {
#pragma unroll
  for (int i = 0; i < Size; ++i) {
    value.values[i] = narrow<Input>(widen(value.values[i]) + widen(other.values[i]));
  }
  return value;
}

template <typename Input, int Size>
__device__ __forceinline__ float sum_of_squares(const Vector<Input, Size>& vector) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < Size; ++i) {
    const float value = widen(vector.values[i]);
    sum += value * value;
  }
  return sum;
}

template <typename Output, typename Input, typename Weight, int Size>
__device__ __forceinline__ Vector<Output, Size> scaled(const Vector<Input, Size>& value, float scale,
                                                       const Vector<Weight, Size>& weight) {
  Vector<Output, Size> result;
#pragma unroll
  for (int i = 0; i < Size; ++i) {
    result.values[i] =
        narrow<Output>(widen(narrow<Input>(widen(value.values[i]) * scale)) * widen(weight.values[i]));
  }
  return result;
}

// A row stays in the registers of the threads that share it: `Lanes` lanes of a warp, or (0) a whole block. Each holds up
// to `PerThread` vectors of `Size` values, so that the row is read from memory once.
template <typename Input, typename Weight, int Size, int PerThread, int Lanes, bool Add>
__global__ void __launch_bounds__(512)
    in_registers(const Arguments<Input> with, const Weight* __restrict__ weight, Weight* __restrict__ output) {
  const int threads = Lanes == 0 ? blockDim.x : Lanes;
  const int thread = threadIdx.x % threads, vectors = static_cast<int>(with.n / Size);
  const int64_t row = blockIdx.x * static_cast<int64_t>(blockDim.x / threads) + threadIdx.x / threads;
  const bool inside = row < with.rows;  // lanes past the end still take part in the shuffles
  const auto* from = reinterpret_cast<const Vector<Input, Size>*>(with.input + row * with.input_stride);
  const auto* scale_by = reinterpret_cast<const Vector<Weight, Size>*>(weight);
  auto* to = reinterpret_cast<Vector<Weight, Size>*>(output + row * with.n);

  Vector<Input, Size> held[PerThread];
#pragma unroll
  for (int each = 0; each < PerThread; ++each) {
    const int at = thread + each * threads;
    if (inside && at < vectors) {
      held[each] = from[at];
    }
  }
  if constexpr (Add) {
    const auto* other = reinterpret_cast<const Vector<Input, Size>*>(with.residual + row * with.residual_stride);
    auto* summed = reinterpret_cast<Vector<Input, Size>*>(with.summed + row * with.n);
    Vector<Input, Size> added[PerThread];
#pragma unroll
    for (int each = 0; each < PerThread; ++each) {
      const int at = thread + each * threads;
      if (inside && at < vectors) {
        added[each] = other[at];
      }
    }
#pragma unroll
    for (int each = 0; each < PerThread; ++each) {
      const int at = thread + each * threads;
      if (inside && at < vectors) {
        held[each] = add(held[each], added[each]);
        summed[at] = held[each];
      }
    }
  }
  float sum = 0.0f;
#pragma unroll
  for (int each = 0; each < PerThread; ++each) {
    if (inside && thread + each * threads < vectors) {
      sum += sum_of_squares(held[each]);
    }
  }
  if constexpr (Lanes == 0) {
    sum = sum_of_block(sum);
  } else {
    sum = sum_of_lanes<Lanes>(sum);
  }
  const float scale = rsqrtf(sum / static_cast<float>(with.n) + with.eps);
#pragma unroll
  for (int each = 0; each < PerThread; ++each) {
    const int at = thread + each * threads;
    if (inside && at < vectors) {
      to[at] = scaled<Weight>(held[each], scale, scale_by[at]);
    }
  }
}

// Any length: one block a row, which is read twice, the second time from a cache.
template <typename Input, typename Weight, int Size>
__global__ void __launch_bounds__(1024)
    in_two_passes(const Arguments<Input> with, const Weight* __restrict__ weight, Weight* __restrict__ output) {
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

template <typename Input, typename Weight, int Size, int PerThread, int Lanes, bool Add>
void launch_in_registers(const Arguments<Input>& with, const Weight* weight, Weight* output, cudaStream_t stream) {
  const int64_t vectors = with.n / Size;
  const int64_t threads_a_row = Lanes ? Lanes : (vectors + PerThread * 32 - 1) / (PerThread * 32) * 32;
  const int64_t threads = Lanes ? 128 : threads_a_row, rows_a_block = threads / threads_a_row;
  const auto blocks = static_cast<unsigned>((with.rows + rows_a_block - 1) / rows_a_block);
  in_registers<Input, Weight, Size, PerThread, Lanes, Add>
      <<<blocks, static_cast<unsigned>(threads), 0, stream>>>(with, weight, output);
}

template <typename Input, typename Weight, bool Add>
bool launch_whole(const Arguments<Input>& with, const Weight* weight, Weight* output, cudaStream_t stream) {
  constexpr int kSize = 16 / sizeof(Input);
  const int64_t vectors = with.n / kSize;
  if (vectors <= 16) {
    launch_in_registers<Input, Weight, kSize, 1, 16, Add>(with, weight, output, stream);
  } else if (vectors <= 64) {
    launch_in_registers<Input, Weight, kSize, 2, 32, Add>(with, weight, output, stream);
  } else if (vectors <= 128) {
    launch_in_registers<Input, Weight, kSize, 4, 32, Add>(with, weight, output, stream);
  } else if (vectors <= 2 * 512) {
    launch_in_registers<Input, Weight, kSize, 2, 0, Add>(with, weight, output, stream);
  } else if (vectors <= 4 * 512) {
    launch_in_registers<Input, Weight, kSize, 4, 0, Add>(with, weight, output, stream);
  } else if (vectors <= 8 * 512) {
    launch_in_registers<Input, Weight, kSize, 8, 0, Add>(with, weight, output, stream);
  } else {
    return false;
  }
  return true;
}

template <typename Input, typename Weight>
void launch(const Arguments<Input>& with, const Weight* weight, Weight* output, bool whole, cudaStream_t stream) {
  constexpr int kSize = 16 / sizeof(Input);
  const auto rows = static_cast<unsigned>(with.rows);
  if (!whole) {
    in_two_passes<Input, Weight, 1><<<rows, with.n > 8192 ? 1024 : 256, 0, stream>>>(with, weight, output);
  } else if (!(with.residual == nullptr ? launch_whole<Input, Weight, false>(with, weight, output, stream)
                                        : launch_whole<Input, Weight, true>(with, weight, output, stream))) {
    in_two_passes<Input, Weight, kSize><<<rows, 1024, 0, stream>>>(with, weight, output);
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

// `weight * input / sqrt(mean(input^2) + eps)` of `input`, or of its sum with `residual`, which goes into `summed`.
at::Tensor forward(const at::Tensor& input, const at::Tensor* residual, at::Tensor* summed, const at::Tensor& weight,
                   double eps) {
  const c10::cuda::CUDAGuard guard(input.device());
  auto output = at::empty(input.sizes(), input.options().dtype(weight.scalar_type()));
  if (output.numel() == 0) {
    return output;
  }
  const Rows rows(input), others(residual != nullptr ? *residual : input);
  TORCH_CHECK(rows.count <= INT32_MAX, "rms_norm: `input` has ", rows.count, " rows; allowed are 2^31 - 1.");
  const auto scale = weight.contiguous();
  const auto stream = c10::cuda::getCurrentCUDAStream();
  for_types(input, weight, [&](auto of_input, auto of_weight) {
    using Input = decltype(of_input);
    using Weight = decltype(of_weight);
    constexpr int kSize = 16 / sizeof(Input);
    const bool whole = rows.whole(kSize) && others.whole(kSize) && aligned(scale.const_data_ptr());
    launch<Input, Weight>({static_cast<const Input*>(rows.tensor.const_data_ptr()),
                           residual != nullptr ? static_cast<const Input*>(others.tensor.const_data_ptr()) : nullptr,
                           summed != nullptr ? static_cast<Input*>(summed->mutable_data_ptr()) : nullptr, rows.count,
                           rows.n, rows.stride, others.stride, static_cast<float>(eps)},
                          static_cast<const Weight*>(scale.const_data_ptr()),
                          static_cast<Weight*>(output.mutable_data_ptr()), whole, stream);
  });
  return output;
}

}  // namespace

void check(const at::Tensor& input, const at::Tensor& weight) {
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
}

}  // namespace rms_norm_cuda

at::Tensor rms_norm(const at::Tensor& input, const at::Tensor& weight, double eps) {
  rms_norm_cuda::check(input, weight);
  return rms_norm_cuda::forward(input, nullptr, nullptr, weight, eps);
}

std::tuple<at::Tensor, at::Tensor> fused_add_rms_norm(const at::Tensor& input, const at::Tensor& residual,
                                                      const at::Tensor& weight, double eps) {
  rms_norm_cuda::check(input, weight);
  TORCH_CHECK(residual.sizes() == input.sizes(), "fused_add_rms_norm: `residual` has the shape ", residual.sizes(),
              "; allowed is that of `input`, ", input.sizes(), ".");
  TORCH_CHECK(residual.scalar_type() == input.scalar_type(), "fused_add_rms_norm: `residual` is ",
              residual.scalar_type(), "; allowed is the type of `input`, ", input.scalar_type(), ".");
  TORCH_CHECK(residual.device() == input.device(), "fused_add_rms_norm: `residual` is on ", residual.device(),
              "; allowed is the device of `input`, ", input.device(), ".");
  const c10::cuda::CUDAGuard guard(input.device());
  auto summed = at::empty(input.sizes(), input.options());
  auto normed = rms_norm_cuda::forward(input, &residual, &summed, weight, eps);
  return {std::move(normed), std::move(summed)};
}
