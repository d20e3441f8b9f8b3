"""Root-mean-square normalisation, compiled: C++ for CPU, CUDA C++ for NVIDIA GPUs."""

import torch

from . import layers
from ._ops import add_op_namespace_prefix, ops

__all__ = ["layers", "rms_norm"]


def rms_norm(input: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Scale each row to a root mean square of one, then by `weight`.

    The mean and the quotient are computed in float32; the quotient is rounded to the input's type before it is scaled,
    as `LlamaRMSNorm` does.

    Args:
        input: `[..., N]`, float32 or bfloat16, on CUDA also float16; any strides.
        weight: `[N]`, of the input's type or float32.
        eps: Added to the mean square.

    Returns:
        `[..., N]`, contiguous, of the type that `input` and `weight` promote to. Differentiable in both.

    Raises:
        RuntimeError: A shape, type or device is not one of those above.
    """
    return ops.rms_norm(input, weight, eps)


@torch.library.register_fake(add_op_namespace_prefix("rms_norm"))
def _rms_norm_fake(input: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return input.new_empty(input.shape, dtype=torch.promote_types(input.dtype, weight.dtype))


def _save_for_backward(ctx, inputs, output) -> None:
    input, weight, ctx.eps = inputs
    ctx.save_for_backward(input, weight)


def _backward(ctx, grad):
    # y = w * x * r with r = (mean(x^2) + eps)^(-1/2), so with g = w * dy:  dx = r * g - x * r^3 * mean(g * x).
    input, weight = ctx.saved_tensors
    wide = input.float()
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + ctx.eps)
    normed = wide * rstd
    grad = grad.float()
    grad_input = grad_weight = None
    if ctx.needs_input_grad[0]:
        scaled = grad * weight.float()
        grad_input = (rstd * (scaled - normed * (scaled * normed).mean(-1, keepdim=True))).to(input.dtype)
    if ctx.needs_input_grad[1]:
        grad_weight = (grad * normed.to(input.dtype)).reshape(-1, weight.shape[0]).sum(0).to(weight.dtype)
    return grad_input, grad_weight, None


torch.library.register_autograd(add_op_namespace_prefix("rms_norm"), _backward, setup_context=_save_for_backward)
