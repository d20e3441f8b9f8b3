"""The Triton kernel and its launch."""

from contextlib import nullcontext

import torch
import triton
import triton.language as tl

__all__ = ["rotate"]

# Values of one half that a program turns: with four warps, 16 a thread.
_TILE = 2048


@triton.jit
def _rotate_heads(
    x_ptr,
    output_ptr,
    first_head,
    heads,
    x_head_stride,
    x_stride,
    output_head_stride,
    output_stride,
    cos_of_first,
    cos_of_second,
    sin_of_first,
    sin_of_second,
    half,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    head = (first_head + tl.arange(0, HEADS)).to(tl.int64)[:, None]
    column = tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (column < half)
    at = x_ptr + head * x_head_stride + column * x_stride
    first = tl.load(at, mask=inside).to(tl.float32)
    second = tl.load(at + half * x_stride, mask=inside).to(tl.float32)
    to = output_ptr + head * output_head_stride + column * output_stride
    kind = output_ptr.dtype.element_ty
    tl.store(to, (first * cos_of_first - second * sin_of_first).to(kind), mask=inside)
    tl.store(to + half * output_stride, (second * cos_of_second + first * sin_of_second).to(kind), mask=inside)


@triton.jit
def _kernel(
    q_ptr,
    k_ptr,
    cos_ptr,
    sin_ptr,
    q_output_ptr,
    k_output_ptr,
    tokens,
    q_heads,
    k_heads,
    half,
    q_batch_stride,
    q_token_stride,
    q_head_stride,
    q_stride,
    k_batch_stride,
    k_token_stride,
    k_head_stride,
    k_stride,
    q_output_batch_stride,
    q_output_token_stride,
    q_output_head_stride,
    q_output_stride,
    k_output_batch_stride,
    k_output_token_stride,
    k_output_head_stride,
    k_output_stride,
    angle_batch_stride,
    INVERSE: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    # One token a program; along the second axis the blocks of the query heads, then those of the key heads.
    batch = (tl.program_id(0) // tokens).to(tl.int64)
    token = (tl.program_id(0) % tokens).to(tl.int64)
    column = tl.arange(0, HALF)[None, :]
    inside = column < half
    angle = batch * angle_batch_stride + token * half * 2 + column
    cos_of_first = tl.load(cos_ptr + angle, mask=inside).to(tl.float32)
    cos_of_second = tl.load(cos_ptr + angle + half, mask=inside).to(tl.float32)
    sin_of_first = tl.load(sin_ptr + angle, mask=inside).to(tl.float32)
    sin_of_second = tl.load(sin_ptr + angle + half, mask=inside).to(tl.float32)
    if INVERSE:  # the transposed rotation: the signs change and each half takes the other's sine
        swapped = -sin_of_first
        sin_of_first = -sin_of_second
        sin_of_second = swapped
    q_blocks = tl.cdiv(q_heads, HEADS)
    block = tl.program_id(1)
    if block < q_blocks:
        _rotate_heads(
            q_ptr + batch * q_batch_stride + token * q_token_stride,
            q_output_ptr + batch * q_output_batch_stride + token * q_output_token_stride,
            block * HEADS,
            q_heads,
            q_head_stride,
            q_stride,
            q_output_head_stride,
            q_output_stride,
            cos_of_first,
            cos_of_second,
            sin_of_first,
            sin_of_second,
            half,
            HEADS,
            HALF,
        )
    else:
        _rotate_heads(
            k_ptr + batch * k_batch_stride + token * k_token_stride,
            k_output_ptr + batch * k_output_batch_stride + token * k_output_token_stride,
            (block - q_blocks) * HEADS,
            k_heads,
            k_head_stride,
            k_stride,
            k_output_head_stride,
            k_output_stride,
            cos_of_first,
            cos_of_second,
            sin_of_first,
            sin_of_second,
            half,
            HEADS,
            HALF,
        )


def rotate(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int, inverse: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """`x * cos + rotate_half(x) * sin` for `q` and `k`, or the transposed rotation, for tensors of one device."""
    outputs = tuple(torch.empty_like(x, dtype=torch.promote_types(x.dtype, cos.dtype)) for x in (q, k))
    heads, token = unsqueeze_dim, 3 - unsqueeze_dim
    batches, tokens, half = q.shape[0], q.shape[token], q.shape[3] // 2
    if batches * tokens * half == 0:
        return outputs
    cos, sin = cos.contiguous(), sin.contiguous()
    columns = triton.next_power_of_2(half)
    block = max(1, min(_TILE // columns, triton.next_power_of_2(max(q.shape[heads], k.shape[heads]))))
    blocks = triton.cdiv(q.shape[heads], block) + triton.cdiv(k.shape[heads], block)
    if blocks:
        strides = [x.stride(dim) for x in (q, k, *outputs) for dim in (0, token, heads, 3)]
        with _on(q.device):
            _kernel[(batches * tokens, blocks)](
                q,
                k,
                cos,
                sin,
                *outputs,
                tokens,
                q.shape[heads],
                k.shape[heads],
                half,
                *strides,
                cos.stride(0) if cos.shape[0] > 1 else 0,
                INVERSE=inverse,
                HEADS=block,
                HALF=columns,
                num_warps=4,
            )
    return outputs


def _on(device: torch.device):
    # Triton launches on the current device, which need not be the tensors'.
    return nullcontext() if device.type == "cpu" else torch.get_device_module(device).device(device)
