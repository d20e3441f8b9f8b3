"""The functions, their operator for accelerators, and its derivative."""

import torch

from ._ops import add_op_namespace_prefix, ops

__all__ = ["silu_and_mul", "silu_mul"]


def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up`, value by value; on accelerators computed in float32 and rounded once.

    Args:
        gate: Any shape, float32, float16 or bfloat16, any strides.
        up: Of the same shape and type.

    Returns:
        A tensor of that shape and type. Differentiable in both.

    Raises:
        TypeError: `gate` is of another type, or `up` of another than `gate`.
        ValueError: `up` has another shape than `gate`.
    """
    if gate.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise TypeError(f"`gate` is {gate.dtype}; allowed are float32, float16 and bfloat16.")
    if up.dtype != gate.dtype:
        raise TypeError(f"`up` is {up.dtype}; allowed is the type of `gate`, {gate.dtype}.")
    if up.shape != gate.shape:
        raise ValueError(f"`up` has the shape {tuple(up.shape)}; allowed is that of `gate`, {tuple(gate.shape)}.")
    if gate.device.type == "cpu":
        return torch.nn.functional.silu(gate) * up
    return ops.silu_mul(gate, up)


def silu_and_mul(input: torch.Tensor) -> torch.Tensor:
    """`silu` of the first half of the last dimension times the second half.

    Args:
        input: `[..., 2 * N]`, float32, float16 or bfloat16, any strides.

    Returns:
        `[..., N]`, of the same type. Differentiable.

    Raises:
        ValueError: The last dimension is odd, or there is none.
        TypeError: The type is another.
    """
    if input.dim() == 0 or input.shape[-1] % 2:
        raise ValueError(f"`input` has the shape {tuple(input.shape)}; allowed is an even last dimension.")
    return silu_mul(*input.chunk(2, dim=-1))


@torch.library.custom_op(add_op_namespace_prefix("silu_mul"), mutates_args=())
def _forward(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    from ._triton import forward

    return forward(gate, up)


@_forward.register_fake
def _(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return gate.new_empty(gate.shape)


@torch.library.custom_op(add_op_namespace_prefix("silu_mul_backward"), mutates_args=())
def _backward(grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    from ._triton import backward

    return backward(grad, gate, up)


@_backward.register_fake
def _(grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return gate.new_empty(gate.shape), gate.new_empty(gate.shape)


def _save(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx, grad):
    return ops.silu_mul_backward(grad, *ctx.saved_tensors)


_forward.register_autograd(_differentiate, setup_context=_save)
