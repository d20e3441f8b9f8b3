"""The functions, their operators for accelerators, and their derivatives."""

import torch

from ._ops import add_op_namespace_prefix, ops

__all__ = ["fused_add_rms_norm", "rms_norm"]


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
    if input.device.type == "cpu":
        return _in_torch(input, weight, eps)
    return ops.rms_norm(input, weight, eps)


def fused_add_rms_norm(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add `residual` to `input`, and normalise the sum as `rms_norm` does.

    Args:
        input: `[..., N]`, as in `rms_norm`.
        residual: Of the shape and type of `input`; any strides.
        weight: `[N]`, floating point.
        eps: Added to the mean square.

    Returns:
        The normalised sum, of the type that `input` and `weight` promote to, and the sum itself, which is the next
        residual. Differentiable in all three tensors.

    Raises:
        ValueError: `residual` has another shape than `input`, or `weight` than its rows.
        TypeError: A tensor is of another type, or `residual` of another than `input`.
    """
    _check(input, weight)
    if residual.shape != input.shape:
        raise ValueError(
            f"`residual` has the shape {tuple(residual.shape)}; allowed is that of `input`, {tuple(input.shape)}."
        )
    if residual.dtype != input.dtype:
        raise TypeError(f"`residual` is {residual.dtype}; allowed is the type of `input`, {input.dtype}.")
    if input.device.type == "cpu":
        summed = input + residual
        return _in_torch(summed, weight, eps), summed
    return ops.fused_add_rms_norm(input, residual, weight, eps)


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


@torch.library.custom_op(add_op_namespace_prefix("fused_add_rms_norm"), mutates_args=())
def _add_forward(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    from ._triton import add_forward

    return add_forward(input, residual, weight, eps)


@torch.library.custom_op(add_op_namespace_prefix("rms_norm_backward"), mutates_args=())
def _backward(
    grad: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, eps: float, added: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    from ._triton import backward

    return backward(grad, input, weight, eps, added)


def _normed_like(input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return input.new_empty(input.shape, dtype=torch.promote_types(input.dtype, weight.dtype))


@_forward.register_fake
def _(input: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _normed_like(input, weight)


@_add_forward.register_fake
def _(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return _normed_like(input, weight), input.new_empty(input.shape)


@_backward.register_fake
def _(
    grad: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, eps: float, added: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    return input.new_empty(input.shape), weight.new_empty(weight.shape)


def _save(ctx, inputs, output) -> None:
    input, weight, ctx.eps = inputs
    ctx.save_for_backward(input, weight)


def _differentiate(ctx, grad):
    return *ops.rms_norm_backward(grad, *ctx.saved_tensors, ctx.eps, None), None


_forward.register_autograd(_differentiate, setup_context=_save)


def _save_sum(ctx, inputs, output) -> None:
    _, _, weight, ctx.eps = inputs
    ctx.save_for_backward(output[1], weight)


def _differentiate_sum(ctx, grad_normed, grad_summed):
    grad, grad_weight = ops.rms_norm_backward(grad_normed, *ctx.saved_tensors, ctx.eps, grad_summed)
    return grad, grad, grad_weight, None  # of a sum, both sides have the same gradient


_add_forward.register_autograd(_differentiate_sum, setup_context=_save_sum)
