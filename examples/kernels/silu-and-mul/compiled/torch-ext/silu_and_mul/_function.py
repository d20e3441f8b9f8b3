"""The functions, and what Torch has to know of their operators."""

import torch

from ._ops import add_op_namespace_prefix, ops

__all__ = ["silu_and_mul", "silu_mul"]


def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up`, value by value, computed in float32 and rounded once.

    Args:
        gate: Any shape, float32, float16 or bfloat16; any strides.
        up: Of the same shape and type.

    Returns:
        A contiguous tensor of that shape and type. Differentiable in both.

    Raises:
        TypeError: `gate` is of another type, or `up` of another than `gate`.
        ValueError: `up` has another shape than `gate`.
        RuntimeError: They are on two devices.
    """
    if torch.is_grad_enabled() and (gate.requires_grad or up.requires_grad):
        return ops.silu_mul(gate, up)
    return ops.silu_mul_inference(gate, up)


def silu_and_mul(input: torch.Tensor) -> torch.Tensor:
    """`silu` of the first half of the last dimension times the second half.

    Args:
        input: `[..., 2 * N]`, float32, float16 or bfloat16; any strides.

    Returns:
        `[..., N]`, contiguous, of the same type. Differentiable.

    Raises:
        ValueError: The last dimension is odd, or there is none.
        TypeError: The type is another.
    """
    if input.dim() == 0 or input.shape[-1] % 2:
        raise ValueError(f"`input` has the shape {tuple(input.shape)}; allowed is an even last dimension.")
    return silu_mul(*input.chunk(2, dim=-1))


@torch.library.register_fake(add_op_namespace_prefix("silu_mul_inference"))
@torch.library.register_fake(add_op_namespace_prefix("silu_mul"))
def _(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return gate.new_empty(gate.shape)


@torch.library.register_fake(add_op_namespace_prefix("silu_mul_backward"))
def _(grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return gate.new_empty(gate.shape), gate.new_empty(gate.shape)


def _save(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx, grad):
    return ops.silu_mul_backward(grad, *ctx.saved_tensors)


torch.library.register_autograd(add_op_namespace_prefix("silu_mul"), _differentiate, setup_context=_save)
