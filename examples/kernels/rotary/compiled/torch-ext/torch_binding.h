#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

// x * cos + rotate_half(x) * sin for x = q and x = k, both [B, H, S, D] or [B, S, H, D] with D even; cos and sin are
// [B or 1, S, D] and get the head dimension at `unsqueeze_dim`. Computed in float32; float32, bfloat16 (CUDA: float16 too)
// in and out.
// `inverse` applies the transposed rotation instead, which takes gradients of the result to gradients of q and k.
std::tuple<at::Tensor, at::Tensor> rotary(const at::Tensor& q, const at::Tensor& k, const at::Tensor& cos,
                                          const at::Tensor& sin, int64_t unsqueeze_dim, bool inverse);
