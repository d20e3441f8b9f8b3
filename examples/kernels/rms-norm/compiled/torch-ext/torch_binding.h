#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

// input [..., N] in float32, bfloat16 (CUDA: float16 too); weight [N] of the same type or float32.
// Returns weight * (input / sqrt(mean(input^2) + eps)), the sum and the quotient in float32, the quotient rounded to the
// input's type before it is scaled. The result has the wider of the two types.
at::Tensor rms_norm(const at::Tensor& input, const at::Tensor& weight, double eps);

// The same of input + residual, which is rounded to their type, and that sum.
std::tuple<at::Tensor, at::Tensor> fused_add_rms_norm(const at::Tensor& input, const at::Tensor& residual,
                                                      const at::Tensor& weight, double eps);

// The gradients of `rms_norm` in `input` and `weight`, given that of its result. `added` is added to the first.
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad, const at::Tensor& input,
                                                     const at::Tensor& weight, double eps,
                                                     const std::optional<at::Tensor>& added);
