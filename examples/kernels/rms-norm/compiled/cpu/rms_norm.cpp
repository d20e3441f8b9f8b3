#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <type_traits>
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

template <typename Call>
void for_type(const at::Tensor& tensor, const Call& call) {
  if (tensor.scalar_type() == at::kFloat) {
    call(float());
  } else if (tensor.scalar_type() == at::kHalf) {
    call(rms_norm_cpu::Half());
  } else {
    call(uint16_t());
  }
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& input, const at::Tensor& weight, double eps) {
  const auto known = [](const at::Tensor& tensor) {
    const auto type = tensor.scalar_type();
    return type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
  };
  TORCH_CHECK_VALUE(input.dim() >= 1, "rms_norm: `input` has no dimension; allowed is [..., N].");
  TORCH_CHECK_VALUE(weight.dim() == 1 && weight.size(0) == input.size(-1), "rms_norm: `weight` has the shape ",
                    weight.sizes(), "; allowed is [", input.size(-1), "], the last dimension of `input` ", input.sizes(), ".");
  TORCH_CHECK_TYPE(known(input), "rms_norm: `input` is ", input.scalar_type(),
                   "; allowed are float32, float16 and bfloat16.");
  TORCH_CHECK_TYPE(known(weight), "rms_norm: `weight` is ", weight.scalar_type(),
                   "; allowed are float32, float16 and bfloat16.");
  TORCH_CHECK(weight.is_cpu(), "rms_norm: `weight` is on ", weight.device(), "; allowed is the device of `input`, cpu.");

  const auto type = c10::promoteTypes(input.scalar_type(), weight.scalar_type());
  auto output = at::empty(input.sizes(), input.options().dtype(type));
  if (output.numel() == 0) {
    return output;
  }

  auto rows = input.reshape({-1, input.size(-1)});
  if (rows.size(1) > 1 && rows.stride(1) != 1) {
    rows = rows.contiguous();
  }
  const auto scale = weight.contiguous();
  auto to = output.view({-1, input.size(-1)});
  for_type(rows, [&](auto value) {
    for_type(scale, [&](auto factor) {
      using Input = decltype(value);
      using Weight = decltype(factor);
      run<Input, Weight, std::conditional_t<std::is_same_v<Input, Weight>, Input, float>>(rows, scale, to, eps);
    });
  });
  return output;
}

std::tuple<at::Tensor, at::Tensor> fused_add_rms_norm(const at::Tensor& input, const at::Tensor& residual,
                                                      const at::Tensor& weight, double eps) {
  TORCH_CHECK_VALUE(residual.sizes() == input.sizes(), "fused_add_rms_norm: `residual` has the shape ", residual.sizes(),
                    "; allowed is that of `input`, ", input.sizes(), ".");
  TORCH_CHECK_TYPE(residual.scalar_type() == input.scalar_type(), "fused_add_rms_norm: `residual` is ",
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
