"""The Triton kernel and its launch."""

from contextlib import nullcontext

import torch
import triton
import triton.language as tl

__all__ = ["rotate"]

# Values of one half of the queries that a program turns: with eight warps 8 a thread, one load of 16 bytes in a type of
# two.
_TILE = 2048


@triton.jit
def _load_halves(at, distance, inside):
    return tl.load(at, mask=inside).to(tl.float32), tl.load(at + distance, mask=inside).to(tl.float32)


@triton.jit
def _store_turned(to, distance, inside, first, second, cos_of_first, cos_of_second, sin_of_first, sin_of_second):
    kind = to.dtype.element_ty
    tl.store(to, (first * cos_of_first - second * sin_of_first).to(kind), mask=inside)
    tl.store(to + distance, (second * cos_of_second + first * sin_of_second).to(kind), mask=inside)


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
    Q_HEADS: tl.constexpr,
    K_HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    # A program turns the query heads and the key heads of one token, or its share of them where they are many: the
    # angles are read once for both, and no program is left with the few key heads alone.
    batch = (tl.program_id(0) // tokens).to(tl.int64)
    token = (tl.program_id(0) % tokens).to(tl.int64)
    column = tl.arange(0, HALF)[None, :]
    q_head = (tl.program_id(1) * Q_HEADS + tl.arange(0, Q_HEADS)).to(tl.int64)[:, None]
    k_head = (tl.program_id(1) * K_HEADS + tl.arange(0, K_HEADS)).to(tl.int64)[:, None]
    q_inside = (q_head < q_heads) & (column < half)
    k_inside = (k_head < k_heads) & (column < half)
    q_at = q_ptr + batch * q_batch_stride + token * q_token_stride + q_head * q_head_stride + column * q_stride
    k_at = k_ptr + batch * k_batch_stride + token * k_token_stride + k_head * k_head_stride + column * k_stride
    q_first, q_second = _load_halves(q_at, half * q_stride, q_inside)
    k_first, k_second = _load_halves(k_at, half * k_stride, k_inside)
    angle = batch * angle_batch_stride + token * half * 2 + column
    cos_of_first, cos_of_second = _load_halves(cos_ptr + angle, half, column < half)
    sin_of_first, sin_of_second = _load_halves(sin_ptr + angle, half, column < half)
    if INVERSE:  # the transposed rotation: the signs change and each half takes the other's sine
        swapped = -sin_of_first
        sin_of_first = -sin_of_second
        sin_of_second = swapped
    q_to = q_output_ptr + batch * q_output_batch_stride + token * q_output_token_stride
    q_to += q_head * q_output_head_stride + column * q_output_stride
    k_to = k_output_ptr + batch * k_output_batch_stride + token * k_output_token_stride
    k_to += k_head * k_output_head_stride + column * k_output_stride
    _store_turned(
        q_to,
        half * q_output_stride,
        q_inside,
        q_first,
        q_second,
        cos_of_first,
        cos_of_second,
        sin_of_first,
        sin_of_second,
    )
    _store_turned(
        k_to,
        half * k_output_stride,
        k_inside,
        k_first,
        k_second,
        cos_of_first,
        cos_of_second,
        sin_of_first,
        sin_of_second,
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
    q_heads, k_heads = q.shape[heads], k.shape[heads]
    blocks = triton.cdiv(max(q_heads, k_heads), max(1, _TILE // columns))
    if blocks:
        q_block, k_block = (triton.next_power_of_2(max(1, triton.cdiv(each, blocks))) for each in (q_heads, k_heads))
        strides = [x.stride(dim) for x in (q, k, *outputs) for dim in (0, token, heads, 3)]
        with _on(q.device):
            _kernel[(batches * tokens, blocks)](
                q,
                k,
                cos,
                sin,
                *outputs,
                tokens,
                q_heads,
                k_heads,
                half,
                *strides,
                cos.stride(0) if cos.shape[0] > 1 else 0,
                INVERSE=inverse,
                Q_HEADS=q_block,
                K_HEADS=k_block,
                HALF=columns,
                num_warps=min(8, max(1, max(q_block, k_block) * columns // 256)),
            )
    return outputs


def _on(device: torch.device):
    # Triton launches on the current device, which need not be the tensors'.
    return nullcontext() if device.type == "cpu" else torch.get_device_module(device).device(device)
