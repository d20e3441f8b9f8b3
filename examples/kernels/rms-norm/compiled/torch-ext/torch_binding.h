#pragma once

#include <ATen/core/Tensor.h>

// input [..., N] in float32, bfloat16 (CUDA: float16 too); weight [N] of the same type or float32.
// Returns weight * (input / sqrt(mean(input^2) + eps)), the sum and the quotient in float32, the quotient rounded to the
// input's type before it is scaled. The result has the wider of the two types.
at::Tensor rms_norm(const at::Tensor& input, const at::Tensor& weight, double eps);
