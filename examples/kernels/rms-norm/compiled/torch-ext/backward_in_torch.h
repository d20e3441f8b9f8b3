#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

// y = w * x * r with r = (mean(x^2) + eps)^(-1/2), so with g = w * dy:  dx = r * (g - x * r * mean(g * x * r)).
inline std::tuple<at::Tensor, at::Tensor> backward_in_torch(const at::Tensor& grad, const at::Tensor& input,
                                                            const at::Tensor& weight, double eps,
                                                            const std::optional<at::Tensor>& added) {
  const auto wide = input.to(at::kFloat), wide_grad = grad.to(at::kFloat);
  const auto rstd = wide.square().mean(-1, true).add(eps).rsqrt();
  const auto normed = wide.mul(rstd), scaled = wide_grad.mul(weight.to(at::kFloat));
  const auto mean = scaled.mul(normed).mean(-1, true);
  auto grad_input = scaled.sub(normed.mul(mean)).mul(rstd).to(input.scalar_type());
  if (added.has_value()) {
    grad_input = grad_input.add(*added);
  }
  const auto by_value = wide_grad.mul(normed.to(input.scalar_type()));
  return {grad_input.contiguous(), by_value.reshape({-1, weight.size(0)}).sum(0).to(weight.scalar_type())};
}
