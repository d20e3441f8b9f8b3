"""The Triton kernels and their launches."""

from contextlib import nullcontext

import torch
import triton
import triton.language as tl

__all__ = ["backward", "forward"]

# Values that a program holds at once: enough to keep the memory busy, few enough to stay in registers.
_TILE = 4096
# Up to here a program of the backward pass has registers for the rows that it works on and the next ones; beyond, they
# would spill.
_LONGEST_AHEAD = 8192
# Programs of the backward pass for every multiprocessor: as many such tiles as fit its registers at once.
_PROGRAMS = 2


@triton.jit
def _forward_kernel(
    input_ptr, weight_ptr, output_ptr, rows, n, input_stride, eps, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < n)
    narrow = tl.load(input_ptr + row * input_stride + column, mask=inside, other=0.0)
    weight = tl.load(weight_ptr + column, mask=column < n, other=0.0).to(tl.float32)
    value = narrow.to(tl.float32)
    rstd = tl.rsqrt(tl.sum(value * value, axis=1, keep_dims=True) / n + eps)
    normed = (value * rstd).to(narrow.dtype).to(tl.float32)
    tl.store(output_ptr + row * n + column, (normed * weight).to(output_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _load_rows(ptr, first, rows, n, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = (first + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    return tl.load(ptr + row * stride + column, mask=(row < rows) & (column < n), other=0.0)


@triton.jit
def _backward_kernel(
    grad_ptr,
    input_ptr,
    weight_ptr,
    grad_input_ptr,
    partial_ptr,
    rows,
    n,
    grad_stride,
    input_stride,
    eps,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    AHEAD: tl.constexpr,
):
    # y = w * x * r with r = (mean(x^2) + eps)^(-1/2), so with g = w * dy:  dx = r * (g - x * r * mean(g * x * r)).
    # The programs share the rows; each adds up its part of the weight's gradient in registers.
    column = tl.arange(0, COLUMNS)[None, :]
    weight = tl.load(weight_ptr + column, mask=column < n, other=0.0).to(tl.float32)
    grad_weight = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    start = tl.program_id(0).to(tl.int64) * ROWS
    step = tl.num_programs(0) * ROWS
    if AHEAD:
        # The next rows are under way while these are summed: a program that waited for each of its loads would leave
        # the memory idle.
        next_input = _load_rows(input_ptr, start, rows, n, input_stride, ROWS, COLUMNS)
        next_grad = _load_rows(grad_ptr, start, rows, n, grad_stride, ROWS, COLUMNS)
    for first in range(start, rows, step):
        if AHEAD:
            narrow = next_input
            grad = next_grad.to(tl.float32)
            next_input = _load_rows(input_ptr, first + step, rows, n, input_stride, ROWS, COLUMNS)
            next_grad = _load_rows(grad_ptr, first + step, rows, n, grad_stride, ROWS, COLUMNS)
        else:
            narrow = _load_rows(input_ptr, first, rows, n, input_stride, ROWS, COLUMNS)
            grad = _load_rows(grad_ptr, first, rows, n, grad_stride, ROWS, COLUMNS).to(tl.float32)
        value = narrow.to(tl.float32)
        scaled = grad * weight
        rstd = tl.rsqrt(tl.sum(value * value, axis=1, keep_dims=True) / n + eps)
        mean = tl.sum(scaled * value, axis=1, keep_dims=True) * rstd / n
        normed = value * rstd
        row = (first + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        grad_input = (rstd * (scaled - normed * mean)).to(grad_input_ptr.dtype.element_ty)
        tl.store(grad_input_ptr + row * n + column, grad_input, mask=(row < rows) & (column < n))
        grad_weight += grad * normed.to(narrow.dtype).to(tl.float32)
    total = tl.sum(grad_weight, axis=0, keep_dims=True)
    tl.store(partial_ptr + tl.program_id(0) * n + column, total, mask=column < n)


def forward(input: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`weight * input / sqrt(mean(input^2) + eps)`, for `input` `[..., N]` and `weight` `[N]` on one device."""
    output = input.new_empty(input.shape, dtype=torch.promote_types(input.dtype, weight.dtype))
    if output.numel() == 0:
        return output
    values = _rows(input)
    rows, n = values.shape
    tile = _tile(n)
    with _on(input.device):
        _forward_kernel[(triton.cdiv(rows, tile["ROWS"]),)](
            values, weight.contiguous(), output, rows, n, values.stride(0), eps, **tile
        )
    return output


def backward(
    grad: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of `forward` in `input` and `weight`, given that of its result."""
    grad_input = input.new_empty(input.shape)
    if input.numel() == 0:
        return grad_input, torch.zeros_like(weight)
    values, grads = _rows(input), _rows(grad)
    rows, n = values.shape
    tile = _tile(n)
    programs = min(_PROGRAMS * _multiprocessors(input.device), triton.cdiv(rows, tile["ROWS"]))
    partial = torch.empty((programs, n), dtype=torch.float32, device=input.device)
    with _on(input.device):
        _backward_kernel[(programs,)](
            grads,
            values,
            weight.contiguous(),
            grad_input,
            partial,
            rows,
            n,
            grads.stride(0),
            values.stride(0),
            eps,
            AHEAD=tile["COLUMNS"] <= _LONGEST_AHEAD,
            **tile,
        )
    return grad_input, partial.sum(0).to(weight.dtype)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    rows = tensor.reshape(-1, tensor.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _tile(n: int) -> dict[str, int]:
    columns = triton.next_power_of_2(n)
    rows = max(1, _TILE // columns)
    return {"ROWS": rows, "COLUMNS": columns, "num_warps": min(16, max(4, rows * columns // 512))}


def _multiprocessors(device: torch.device) -> int:
    if device.type == "cpu":
        return 1
    properties = torch.get_device_module(device).get_device_properties(device)
    return getattr(properties, "multi_processor_count", 128)  # not every backend says it


def _on(device: torch.device):
    # Triton launches on the current device, which need not be the tensors'.
    return nullcontext() if device.type == "cpu" else torch.get_device_module(device).device(device)
