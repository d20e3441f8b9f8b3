"""The functions, and what Torch has to know of their operators."""

import torch

from ._ops import add_op_namespace_prefix, ops

__all__ = ["fused_add_rms_norm", "rms_norm"]


def rms_norm(input: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Scale each row to a root mean square of one, then by `weight`.

    The mean and the quotient are computed in float32; the quotient is rounded to the input's type before it is scaled,
    as `LlamaRMSNorm` does.

    Args:
        input: `[..., N]`, float32, float16 or bfloat16; any strides.
        weight: `[N]`, of the input's type or float32; on CPU any of these types.
        eps: Added to the mean square.

    Returns:
        `[..., N]`, contiguous, of the type that `input` and `weight` promote to. Differentiable in both.

    Raises:
        ValueError: A shape is not one of those above.
        TypeError: A type is not.
        RuntimeError: The tensors are on several devices.
    """
    if torch.is_grad_enabled() and (input.requires_grad or weight.requires_grad):
        return ops.rms_norm(input, weight, eps)
    return ops.rms_norm_inference(input, weight, eps)


def fused_add_rms_norm(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add `residual` to `input`, and normalise the sum as `rms_norm` does.

    Args:
        input: `[..., N]`, as in `rms_norm`.
        residual: Of the shape and type of `input`; any strides.
        weight: `[N]`, of the input's type or float32; on CPU any of these types.
        eps: Added to the mean square.

    Returns:
        The normalised sum, of the type that `input` and `weight` promote to, and the sum itself, which is the next
        residual; both contiguous. Differentiable in all three tensors.

    Raises:
        ValueError: A shape is not one of those above.
        TypeError: A type is not.
        RuntimeError: The tensors are on several devices.
    """
    if torch.is_grad_enabled() and (input.requires_grad or residual.requires_grad or weight.requires_grad):
        return ops.fused_add_rms_norm(input, residual, weight, eps)
    return ops.fused_add_rms_norm_inference(input, residual, weight, eps)


def _normed_like(input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return input.new_empty(input.shape, dtype=torch.promote_types(input.dtype, weight.dtype))


@torch.library.register_fake(add_op_namespace_prefix("rms_norm_inference"))
@torch.library.register_fake(add_op_namespace_prefix("rms_norm"))
def _(input: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _normed_like(input, weight)


@torch.library.register_fake(add_op_namespace_prefix("fused_add_rms_norm_inference"))
@torch.library.register_fake(add_op_namespace_prefix("fused_add_rms_norm"))
def _(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    return _normed_like(input, weight), input.new_empty(input.shape)


@torch.library.register_fake(add_op_namespace_prefix("rms_norm_backward"))
def _(
    grad: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, eps: float, added: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    return input.new_empty(input.shape), weight.new_empty(weight.shape)


def _save(ctx, inputs, output) -> None:
    input, weight, ctx.eps = inputs
    ctx.save_for_backward(input, weight)


def _differentiate(ctx, grad):
    return *ops.rms_norm_backward(grad, *ctx.saved_tensors, ctx.eps, None), None


torch.library.register_autograd(add_op_namespace_prefix("rms_norm"), _differentiate, setup_context=_save)


def _save_sum(ctx, inputs, output) -> None:
    _, _, weight, ctx.eps = inputs
    ctx.save_for_backward(output[1], weight)


def _differentiate_sum(ctx, grad_normed, grad_summed):
    grad, grad_weight = ops.rms_norm_backward(grad_normed, *ctx.saved_tensors, ctx.eps, grad_summed)
    return grad, grad, grad_weight, None  # of a sum, both sides have the same gradient


torch.library.register_autograd(
    add_op_namespace_prefix("fused_add_rms_norm"), _differentiate_sum, setup_context=_save_sum
)
