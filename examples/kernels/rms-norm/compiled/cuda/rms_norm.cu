#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_runtime.h>

#include <utility>

#include "../torch-ext/torch_binding.h"
#include "forward_kernels.cuh"
#include "rows.cuh"

namespace rms_norm_cuda {

namespace {

constexpr int kMostThreads = 512;

// `Lanes` lanes of a warp, a block, or `blocks` of them have a row, of which a thread holds up to `PerThread` vectors.
template <typename Input, typename Weight, int Size, int PerThread, int Lanes, bool Add>
void launch_in_registers(ForwardArguments<Input> with, const Weight* weight, Weight* output, cudaStream_t stream,
                         int blocks = 1) {
  const int64_t a_warp = 32 * PerThread * blocks, vectors = with.n / Size;
  const int64_t threads = Lanes > 0 ? 128 : (vectors + a_warp - 1) / a_warp * 32;
  const int64_t rows_a_block = Lanes > 0 ? threads / Lanes : 1;
  with.blocks = blocks;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>((with.rows + rows_a_block - 1) / rows_a_block * blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = blocks > 1 ? 1 : 0;
  C10_CUDA_CHECK(
      cudaLaunchKernelEx(&config, in_registers<Input, Weight, Size, PerThread, Lanes, Add>, with, weight, output));
}

// Whether a kernel was compiled for processors with clusters: then it runs on no other.
template <typename Kernel>
bool has_clusters(Kernel kernel) {
  cudaFuncAttributes attributes{};
  C10_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  return attributes.ptxVersion >= 90;
}

template <typename Input, typename Weight, bool Add>
bool launch_whole(const ForwardArguments<Input>& with, const Weight* weight, Weight* output, cudaStream_t stream) {
  constexpr int kSize = 16 / sizeof(Input);
  constexpr int kLong = Add ? 4 : 8;  // vectors of a thread, as measured
  const int64_t vectors = with.n / kSize, blocks = (vectors + kLong * kMostThreads - 1) / (kLong * kMostThreads);
  if (vectors <= 16) {
    launch_in_registers<Input, Weight, kSize, 1, 16, Add>(with, weight, output, stream);
  } else if (vectors <= 64) {
    launch_in_registers<Input, Weight, kSize, 2, 32, Add>(with, weight, output, stream);
  } else if (vectors <= 128) {
    launch_in_registers<Input, Weight, kSize, 4, 32, Add>(with, weight, output, stream);
  } else if (vectors <= 2 * 256) {
    launch_in_registers<Input, Weight, kSize, 2, kBlock, Add>(with, weight, output, stream);
  } else if (vectors <= 4 * kMostThreads) {
    launch_in_registers<Input, Weight, kSize, 4, kBlock, Add>(with, weight, output, stream);
  } else if (vectors <= 8 * kMostThreads) {
    launch_in_registers<Input, Weight, kSize, 8, kBlock, Add>(with, weight, output, stream);
  } else if (blocks <= kMostBlocks && with.rows <= INT32_MAX / kMostBlocks &&
             has_clusters(in_registers<Input, Weight, kSize, kLong, kCluster, Add>)) {
    launch_in_registers<Input, Weight, kSize, kLong, kCluster, Add>(with, weight, output, stream,
                                                                    static_cast<int>(blocks));
  } else {
    return false;
  }
  return true;
}

template <typename Input, typename Weight>
void launch(const ForwardArguments<Input>& with, const Weight* weight, Weight* output, bool whole, cudaStream_t stream) {
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
                           rows.n, rows.stride, others.stride, static_cast<float>(eps), 1},
                          static_cast<const Weight*>(scale.const_data_ptr()),
                          static_cast<Weight*>(output.mutable_data_ptr()), whole, stream);
  });
  return output;
}

}  // namespace

void check(const at::Tensor& input, const at::Tensor& weight) {
  const auto type = input.scalar_type();
  TORCH_CHECK_VALUE(input.dim() >= 1, "rms_norm: `input` has no dimension; allowed is [..., N].");
  TORCH_CHECK_VALUE(weight.dim() == 1 && weight.size(0) == input.size(-1), "rms_norm: `weight` has the shape ",
                    weight.sizes(), "; allowed is [", input.size(-1), "], the last dimension of `input` ", input.sizes(), ".");
  TORCH_CHECK_TYPE(type == at::kFloat || type == at::kHalf || type == at::kBFloat16, "rms_norm: `input` is ", type,
                   "; allowed are float32, float16 and bfloat16.");
  TORCH_CHECK_TYPE(weight.scalar_type() == type || weight.scalar_type() == at::kFloat, "rms_norm: `weight` is ",
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
  TORCH_CHECK_VALUE(residual.sizes() == input.sizes(), "fused_add_rms_norm: `residual` has the shape ", residual.sizes(),
                    "; allowed is that of `input`, ", input.sizes(), ".");
  TORCH_CHECK_TYPE(residual.scalar_type() == input.scalar_type(), "fused_add_rms_norm: `residual` is ",
                   residual.scalar_type(), "; allowed is the type of `input`, ", input.scalar_type(), ".");
  TORCH_CHECK(residual.device() == input.device(), "fused_add_rms_norm: `residual` is on ", residual.device(),
              "; allowed is the device of `input`, ", input.device(), ".");
  const c10::cuda::CUDAGuard guard(input.device());
  auto summed = at::empty(input.sizes(), input.options());
  auto normed = rms_norm_cuda::forward(input, &residual, &summed, weight, eps);
  return {std::move(normed), std::move(summed)};
}
