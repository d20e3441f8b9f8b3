"""The function, and what Torch has to know of its operator."""

import torch

from ._ops import add_op_namespace_prefix, ops

__all__ = ["apply_rotary_pos_emb"]


def apply_rotary_pos_emb(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn queries and keys by the angles of their positions: `x * cos + rotate_half(x) * sin`.

    Computed in float32 and rounded once.

    Args:
        q: `[B, H, S, D]`, or `[B, S, H, D]` with `unsqueeze_dim=2`; D even; float32, float16 or bfloat16;
            any strides.
        k: The same with its own number of heads.
        cos: `[B, S, D]` or `[1, S, D]`, of one of these types.
        sin: As `cos`.
        unsqueeze_dim: Where `cos` and `sin` get the dimension of the heads.

    Returns:
        `q` and `k` turned, each of its shape and of the type that it and `cos` promote to. Differentiable in all four
        tensors.

    Raises:
        TypeError: A tensor is of another type.
        ValueError: A shape or `unsqueeze_dim` is not one of those above, or `sin` is of another type than `cos`.
        RuntimeError: The tensors are on several devices.
    """
    if cos.requires_grad or sin.requires_grad:  # learned angles: rare enough for plain Torch
        return _in_torch(q, cos, sin, unsqueeze_dim), _in_torch(k, cos, sin, unsqueeze_dim)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad):
        return ops.rotary(q, k, cos, sin, unsqueeze_dim, False)
    return ops.rotary_inference(q, k, cos, sin, unsqueeze_dim, False)


def _in_torch(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int) -> torch.Tensor:
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    rotated = x.float() * cos.float() + torch.cat((-second, first), dim=-1) * sin.float()
    return rotated.to(torch.promote_types(x.dtype, cos.dtype))


@torch.library.register_fake(add_op_namespace_prefix("rotary_inference"))
@torch.library.register_fake(add_op_namespace_prefix("rotary"))
def _(q, k, cos, sin, unsqueeze_dim, inverse):
    def like(x):
        x = x.to(torch.promote_types(x.dtype, cos.dtype))
        return torch.empty_like(x if x.stride(-1) == 1 else x.contiguous())

    return like(q), like(k)


def _save(ctx, inputs, output) -> None:
    q, k, cos, sin, ctx.unsqueeze_dim, ctx.inverse = inputs
    ctx.types = q.dtype, k.dtype
    ctx.save_for_backward(cos, sin)


def _differentiate(ctx, grad_q, grad_k):
    grads = ops.rotary(grad_q, grad_k, *ctx.saved_tensors, ctx.unsqueeze_dim, not ctx.inverse)
    return *(grad.to(dtype) for grad, dtype in zip(grads, ctx.types, strict=True)), None, None, None, None


torch.library.register_autograd(add_op_namespace_prefix("rotary"), _differentiate, setup_context=_save)
