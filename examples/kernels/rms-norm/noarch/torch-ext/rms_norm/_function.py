"""The function, its operator for accelerators, and its derivative."""

import torch

from ._ops import add_op_namespace_prefix, ops

__all__ = ["rms_norm"]

# Longer rows do not fit a program's registers.
_LONGEST_ROW = 32768


def rms_norm(input: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Scale each row to a root mean square of one, then by `weight`.

    The mean and the quotient are computed in float32; the quotient is rounded to the input's type before it is scaled,
    as `LlamaRMSNorm` does.

    Args:
        input: `[..., N]`, float32, float16 or bfloat16, any strides.
        weight: `[N]`, floating point.
        eps: Added to the mean square.

    Returns:
        `[..., N]`, of the type that `input` and `weight` promote to. Differentiable in both.

    Raises:
        ValueError: `weight` has another shape than the rows of `input`.
        TypeError: `input` or `weight` is of another type.
    """
    _check(input, weight)
    if input.device.type == "cpu" or input.shape[-1] > _LONGEST_ROW:
        return _in_torch(input, weight, eps)
    return ops.rms_norm(input, weight, eps)


def _in_torch(input: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = input.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * normed.to(input.dtype)


def _check(input: torch.Tensor, weight: torch.Tensor) -> None:
    if input.dim() == 0 or weight.shape != input.shape[-1:]:
        raise ValueError(
            f"`weight` has the shape {tuple(weight.shape)}; allowed is the last dimension of `input`, "
            f"{tuple(input.shape)}."
        )
    for name, tensor in (("input", input), ("weight", weight)):
        if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise TypeError(f"`{name}` is {tensor.dtype}; allowed are float32, float16 and bfloat16.")


@torch.library.custom_op(add_op_namespace_prefix("rms_norm"), mutates_args=())
def _forward(input: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    from ._triton import forward

    return forward(input, weight, eps)


@_forward.register_fake
def _(input: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return input.new_empty(input.shape, dtype=torch.promote_types(input.dtype, weight.dtype))


@torch.library.custom_op(add_op_namespace_prefix("rms_norm_backward"), mutates_args=())
def _backward(
    grad: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    from ._triton import backward

    return backward(grad, input, weight, eps)


@_backward.register_fake
def _(grad: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    return input.new_empty(input.shape), torch.empty_like(weight)


def _save(ctx, inputs, output) -> None:
    input, weight, ctx.eps = inputs
    ctx.save_for_backward(input, weight)


def _differentiate(ctx, grad):
    grad_input, grad_weight = ops.rms_norm_backward(grad, *ctx.saved_tensors, ctx.eps)
    return grad_input, grad_weight, None


_forward.register_autograd(_differentiate, setup_context=_save)
