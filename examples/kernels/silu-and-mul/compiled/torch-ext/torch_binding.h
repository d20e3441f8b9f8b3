#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

// silu(gate) * up, value by value, for two tensors of one shape and type, float32, bfloat16 (CUDA: float16
// too). Computed in float32.
at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up);

// The gradients of `silu_mul` in `gate` and `up`, given that of its result.
std::tuple<at::Tensor, at::Tensor> silu_mul_backward(const at::Tensor& grad, const at::Tensor& gate,
                                                     const at::Tensor& up);
