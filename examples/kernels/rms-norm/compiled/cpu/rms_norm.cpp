#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "../torch-ext/backward_in_torch.h"
#include "../torch-ext/torch_binding.h"
#include "rows.h"

namespace {

// Below this many values a second thread costs more than it saves.
constexpr int64_t kGrain = 16384;

template <typename Input, typename Weight, typename Output>
void run(const at::Tensor& input, const at::Tensor& weight, at::Tensor& output, double eps) {
  const auto* from = static_cast<const Input*>(input.const_data_ptr());
  const auto* scale = static_cast<const Weight*>(weight.const_data_ptr());
  auto* to = static_cast<Output*>(output.mutable_data_ptr());
  const int64_t rows = input.size(0), n = input.size(1), stride = input.stride(0);
  at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / n), [&](int64_t begin, int64_t end) {
    rms_norm_cpu::rows(from + begin * stride, scale, to + begin * n, end - begin, n, stride,
                       static_cast<float>(eps));
  });
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& input, const at::Tensor& weight, double eps) {
  const auto known = [](const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16;
  };
  TORCH_CHECK(input.dim() >= 1, "rms_norm: `input` has no dimension; allowed is [..., N].");
  TORCH_CHECK(weight.dim() == 1 && weight.size(0) == input.size(-1), "rms_norm: `weight` has the shape ",
              weight.sizes(), "; allowed is [", input.size(-1), "], the last dimension of `input` ", input.sizes(), ".");
  TORCH_CHECK(known(input), "rms_norm: `input` is ", input.scalar_type(), "; allowed are float32 and bfloat16.");
  TORCH_CHECK(known(weight), "rms_norm: `weight` is ", weight.scalar_type(), "; allowed are float32 and bfloat16.");
  TORCH_CHECK(weight.is_cpu(), "rms_norm: `weight` is on ", weight.device(), "; allowed is the device of `input`, cpu.");

  const bool narrow_input = input.scalar_type() == at::kBFloat16;
  const bool narrow_weight = weight.scalar_type() == at::kBFloat16;
  auto output = at::empty(input.sizes(), input.options().dtype(narrow_input && narrow_weight ? at::kBFloat16 : at::kFloat));
  if (output.numel() == 0) {
    return output;
  }

  auto rows = input.reshape({-1, input.size(-1)});
  if (rows.size(1) > 1 && rows.stride(1) != 1) {
    rows = rows.contiguous();
  }
  const auto scale = weight.contiguous();
  auto to = output.view({-1, input.size(-1)});
  if (narrow_input && narrow_weight) {
    run<uint16_t, uint16_t, uint16_t>(rows, scale, to, eps);
  } else if (narrow_input) {
    run<uint16_t, float, float>(rows, scale, to, eps);
  } else if (narrow_weight) {
    run<float, uint16_t, float>(rows, scale, to, eps);
  } else {
    run<float, float, float>(rows, scale, to, eps);
  }
  return output;
}

std::tuple<at::Tensor, at::Tensor> fused_add_rms_norm(const at::Tensor& input, const at::Tensor& residual,
                                                      const at::Tensor& weight, double eps) {
  TORCH_CHECK(residual.sizes() == input.sizes(), "fused_add_rms_norm: `residual` has the shape ", residual.sizes(),
              "; allowed is that of `input`, ", input.sizes(), ".");
  TORCH_CHECK(residual.scalar_type() == input.scalar_type(), "fused_add_rms_norm: `residual` is ",
              residual.scalar_type(), "; allowed is the type of `input`, ", input.scalar_type(), ".");
  TORCH_CHECK(residual.device() == input.device(), "fused_add_rms_norm: `residual` is on ", residual.device(),
              "; allowed is the device of `input`, ", input.device(), ".");
  auto summed = input.add(residual).contiguous();
  auto normed = rms_norm(summed, weight, eps);
  return {std::move(normed), std::move(summed)};
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad, const at::Tensor& input,
                                                     const at::Tensor& weight, double eps,
                                                     const std::optional<at::Tensor>& added) {
  return backward_in_torch(grad, input, weight, eps, added);
}
