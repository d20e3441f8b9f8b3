"""The function, its operator for accelerators, and its derivative."""

import torch

from ._ops import add_op_namespace_prefix, ops

__all__ = ["apply_rotary_pos_emb"]

_TYPES = (torch.float32, torch.float16, torch.bfloat16)


def apply_rotary_pos_emb(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn queries and keys by the angles of their positions: `x * cos + rotate_half(x) * sin`.

    On accelerators computed in float32 and rounded once, on CPU in the tensors' own type.

    Args:
        q: `[B, H, S, D]`, or `[B, S, H, D]` with `unsqueeze_dim=2`; D even; float32, float16 or bfloat16; any strides.
        k: The same with its own number of heads.
        cos: `[B, S, D]` or `[1, S, D]`, of one of these types.
        sin: As `cos`.
        unsqueeze_dim: Where `cos` and `sin` get the dimension of the heads: 1 or 2.

    Returns:
        `q` and `k` turned, each of its shape and of the type that it and `cos` promote to. Differentiable in all four
        tensors.

    Raises:
        TypeError: A tensor is of another type.
        ValueError: A shape or `unsqueeze_dim` is not one of those above.
    """
    _check(q, k, cos, sin, unsqueeze_dim)
    # Learned angles are rare enough for plain Torch.
    if q.device.type == "cpu" or cos.requires_grad or sin.requires_grad:
        return _in_torch(q, cos, sin, unsqueeze_dim), _in_torch(k, cos, sin, unsqueeze_dim)
    return ops.rotary(q, k, cos, sin, unsqueeze_dim, False)


def _check(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int) -> None:
    for name, tensor in (("q", q), ("k", k), ("cos", cos), ("sin", sin)):
        if tensor.dtype not in _TYPES:
            raise TypeError(f"`{name}` is {tensor.dtype}; allowed are float32, float16 and bfloat16.")
    if unsqueeze_dim not in (1, 2):
        raise ValueError(f"`unsqueeze_dim` is {unsqueeze_dim!r}; allowed are 1 and 2.")
    if cos.dim() != 3 or sin.shape != cos.shape:
        raise ValueError(
            f"`cos` and `sin` have the shapes {tuple(cos.shape)} and {tuple(sin.shape)}; allowed is one, of 3 "
            "dimensions."
        )
    for name, tensor in (("q", q), ("k", k)):
        tokens = tensor.shape[3 - unsqueeze_dim] if tensor.dim() == 4 else -1
        fits = cos.shape[0] in (1, tensor.shape[0]) and cos.shape[1:] == (tokens, tensor.shape[-1])
        if not fits or cos.shape[-1] % 2:
            raise ValueError(
                f"`{name}` has the shape {tuple(tensor.shape)}, `cos` {tuple(cos.shape)}; with `unsqueeze_dim` "
                f"{unsqueeze_dim} allowed are the same tokens and the same even last dimension."
            )


def _in_torch(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos.unsqueeze(unsqueeze_dim) + torch.cat((-second, first), dim=-1) * sin.unsqueeze(unsqueeze_dim)


@torch.library.custom_op(add_op_namespace_prefix("rotary"), mutates_args=())
def _rotary(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int, inverse: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    from ._triton import rotate

    return rotate(q, k, cos, sin, unsqueeze_dim, inverse)


@_rotary.register_fake
def _(q, k, cos, sin, unsqueeze_dim, inverse):
    def like(x):
        return torch.empty_like(x, dtype=torch.promote_types(x.dtype, cos.dtype))

    return like(q), like(k)


def _save(ctx, inputs, output) -> None:
    q, k, cos, sin, ctx.unsqueeze_dim, ctx.inverse = inputs
    ctx.types = q.dtype, k.dtype
    ctx.save_for_backward(cos, sin)


def _differentiate(ctx, grad_q, grad_k):
    grads = ops.rotary(grad_q, grad_k, *ctx.saved_tensors, ctx.unsqueeze_dim, not ctx.inverse)
    return *(grad.to(dtype) for grad, dtype in zip(grads, ctx.types, strict=True)), None, None, None, None


_rotary.register_autograd(_differentiate, setup_context=_save)
