#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <optional>

#include "../torch-ext/backward_in_torch.h"
#include "../torch-ext/torch_binding.h"
#include "backward_kernels.cuh"
#include "rows.cuh"

namespace rms_norm_cuda {

namespace {

constexpr int kTeamThreads = 256;  // of a block that shares a row: several such fit a multiprocessor
constexpr int kUnderWay = 12288;   // bytes of `input` that the blocks of a multiprocessor fetch at once: more is slower
constexpr int kLongRow = 1024;     // values, from which on the parts of the weight's gradient are worth being few

struct Launch {
  int threads, parts;
};

template <typename Input, typename Weight, typename Shape, bool Add>
bool launch(Arguments<Input, Weight> with, const Weight* weight, Weight* grad_weight, const at::Tensor& like, Launch as,
            cudaStream_t stream) {
  const auto kernel = backward_kernel<Input, Weight, Shape, Add>;
  constexpr int Lanes = Shape::kLanes;
  const int threads = as.threads, rows_a_block = Lanes ? threads / Lanes : 1;
  const int in_a_stage = threads * Shape::kPerThread * Shape::kSize * static_cast<int>(sizeof(Input));
  const size_t a_value = (Add ? 2 : 1) * sizeof(Input) + sizeof(Weight);
  const size_t shared = std::max<size_t>(Shape::kStages * Shape::kPerThread * Shape::kSize * a_value * threads,
                                         Lanes ? threads / 32 * with.n * sizeof(float) : 0);
  int most_shared = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&most_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, like.get_device()));
  if (shared + 1024 > static_cast<size_t>(most_shared)) {
    return false;
  }
  if (shared > 32 * 1024) {  // more than 48 kB, with what the kernel declares, has to be asked for
    C10_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  }
  int at_once = 0, multiprocessors = 0;
  C10_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&at_once, kernel, threads, shared));
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, like.get_device()));
  const int64_t groups = (with.rows + rows_a_block - 1) / rows_a_block;
  if (as.parts == 1) {
    const bool few = with.n >= kLongRow && groups < 16 * multiprocessors;
    at_once = std::min(at_once, few ? 2 : (kUnderWay + in_a_stage - 1) / in_a_stage);
  }
  const int64_t teams = std::min<int64_t>(static_cast<int64_t>(at_once) * multiprocessors / as.parts, groups);
  if (teams == 0) {
    return false;
  }
  auto partial = at::empty({teams, with.n}, like.options().dtype(at::kFloat));
  with.partial = static_cast<float*>(partial.mutable_data_ptr());
  with.parts = as.parts;
  at::Tensor words;
  if (as.parts > 1) {
    words = at::empty({with.rows, as.parts}, like.options().dtype(at::kLong));
    with.words = static_cast<long long*>(words.mutable_data_ptr());
    C10_CUDA_CHECK(cudaMemsetAsync(with.words, 0xFF, words.nbytes(), stream));
  }
  cudaLaunchAttribute cooperative{};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(teams * as.parts));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &cooperative;
  config.numAttrs = as.parts > 1 ? 1 : 0;
  C10_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, with, weight));
  sum_rows<Weight><<<static_cast<unsigned>((with.n + 31) / 32), dim3(32, 32), 0, stream>>>(
      with.partial, grad_weight, static_cast<int>(teams), with.n);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return true;
}

int up_to_warps(int64_t threads) { return static_cast<int>((threads + 31) / 32 * 32); }

template <typename Input, typename Weight, bool Add>
bool choose(const Arguments<Input, Weight>& with, const Weight* weight, Weight* grad_weight, const at::Tensor& like,
            bool whole, cudaStream_t stream) {
  constexpr int kSize = 16 / sizeof(Input), kByValue = 8;
  const auto run = [&](auto shape, Launch as) {
    return launch<Input, Weight, decltype(shape), Add>(with, weight, grad_weight, like, as, stream);
  };
  const int64_t vectors = whole ? with.n / kSize : with.n;
  const auto block = [&](int64_t a_thread, int64_t parts) {
    return Launch{up_to_warps((vectors + parts * a_thread - 1) / (parts * a_thread)), static_cast<int>(parts)};
  };
  const auto parts = [&](int64_t a_thread) {
    return (vectors + a_thread * kTeamThreads - 1) / (a_thread * kTeamThreads);
  };
  constexpr int kTeamsAtOnce = sizeof(Input) == 2 ? 3 : 2;
  if (!whole) {
    if (vectors <= kByValue * kMostThreads) {
      return run(Shape<kMostThreads, 1, 1, kByValue, 0, 3, 0>(), block(kByValue, 1));
    }
    return parts(kByValue) <= INT16_MAX &&
           run(Shape<kTeamThreads, kTeamsAtOnce, 1, kByValue, 0, 4, 2>(), block(kByValue, parts(kByValue)));
  }
  if (vectors <= 16) {
    return run(Shape<256, 1, kSize, 1, 16, 2, 0>(), {256, 1});
  }
  if (vectors <= 64) {
    return run(Shape<256, 1, kSize, 2, 32, 2, 0>(), {256, 1});
  }
  if (vectors <= 2 * kMostThreads) {
    return run(Shape<kMostThreads, 1, kSize, 2, 0, 2, 0>(), block(2, 1));
  }
  if constexpr (sizeof(Weight) == 2) {  // two such rows fit the shared memory of some processors
    if (vectors <= 4 * kMostThreads && run(Shape<kMostThreads, 1, kSize, 4, 0, 2, 0>(), block(4, 1))) {
      return true;
    }
  }
  return parts(2) <= INT16_MAX && run(Shape<kTeamThreads, kTeamsAtOnce, kSize, 2, 0, 4, 2>(), block(2, parts(2)));
}

}  // namespace

}  // namespace rms_norm_cuda

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad, const at::Tensor& input,
                                                     const at::Tensor& weight, double eps,
                                                     const std::optional<at::Tensor>& added) {
  using namespace rms_norm_cuda;
  check(input, weight);
  TORCH_CHECK(grad.sizes() == input.sizes() && grad.scalar_type() == weight.scalar_type(),
              "rms_norm_backward: `grad` is ", grad.scalar_type(), " ", grad.sizes(), "; allowed is ",
              weight.scalar_type(), " ", input.sizes(), ".");
  TORCH_CHECK(!added.has_value() || (added->sizes() == input.sizes() && added->scalar_type() == input.scalar_type()),
              "rms_norm_backward: `added` is not like `input`.");
  const c10::cuda::CUDAGuard guard(input.device());
  if (input.numel() == 0) {
    return {at::empty(input.sizes(), input.options()), at::zeros(weight.sizes(), weight.options())};
  }
  auto grad_input = at::empty(input.sizes(), input.options());
  auto grad_weight = at::empty(weight.sizes(), weight.options());
  const Rows rows(input), grads(grad), others(added.has_value() ? *added : input);
  const auto scale = weight.contiguous();
  const auto stream = c10::cuda::getCurrentCUDAStream();
  bool done = false;
  for_types(input, weight, [&](auto of_input, auto of_weight) {
    using Input = decltype(of_input);
    using Weight = decltype(of_weight);
    constexpr int kSize = 16 / sizeof(Input);
    const bool whole = rows.whole(kSize) && grads.whole(kSize) && others.whole(kSize) && aligned(scale.const_data_ptr());
    const auto* other = added.has_value() ? static_cast<const Input*>(others.tensor.const_data_ptr()) : nullptr;
    const Arguments<Input, Weight> with{static_cast<const Weight*>(grads.tensor.const_data_ptr()),
                                        static_cast<const Input*>(rows.tensor.const_data_ptr()),
                                        other,
                                        static_cast<Input*>(grad_input.mutable_data_ptr()),
                                        nullptr,
                                        nullptr,
                                        rows.count,
                                        rows.n,
                                        grads.stride,
                                        rows.stride,
                                        others.stride,
                                        1,
                                        static_cast<float>(eps),
                                        1.0f / static_cast<float>(rows.n)};
    const auto* by = static_cast<const Weight*>(scale.const_data_ptr());
    auto* to = static_cast<Weight*>(grad_weight.mutable_data_ptr());
    done = other == nullptr ? choose<Input, Weight, false>(with, by, to, input, whole, stream)
                            : choose<Input, Weight, true>(with, by, to, input, whole, stream);
  });
  return done ? std::tuple(grad_input, grad_weight) : backward_in_torch(grad, input, weight, eps, added);
}
