"""The Triton kernels and their launches."""

from contextlib import nullcontext

import torch
import triton
import triton.language as tl

__all__ = ["add_forward", "backward", "forward"]

# Values that a program holds at once: enough to keep the memory busy, few enough to stay in registers.
_TILE = 4096
# Up to here a program of the backward pass has registers for the rows that it works on and the next ones; beyond, they
# would spill.
_LONGEST_ALONE = 8192
# Programs of the backward pass for every multiprocessor: as many such tiles as fit its registers at once.
_PROGRAMS = 2
# Longer rows do not fit a program's registers; it takes so many columns at once.
_LONGEST_ROW, _COLUMNS = 32768, 8192
# Columns of a longer row that each program of a team takes; one such program fits a multiprocessor.
_SHARE = 8192


@triton.jit
def _forward_kernel(
    input_ptr,
    residual_ptr,
    weight_ptr,
    output_ptr,
    summed_ptr,
    rows,
    n,
    input_stride,
    residual_stride,
    eps,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < n)
    narrow = tl.load(input_ptr + row * input_stride + column, mask=inside, other=0.0)
    if ADD:
        residual = tl.load(residual_ptr + row * residual_stride + column, mask=inside, other=0.0)
        narrow = (narrow.to(tl.float32) + residual.to(tl.float32)).to(narrow.dtype)
        tl.store(summed_ptr + row * n + column, narrow, mask=inside)
    weight = tl.load(weight_ptr + column, mask=column < n, other=0.0).to(tl.float32)
    value = narrow.to(tl.float32)
    rstd = tl.rsqrt(tl.sum(value * value, axis=1, keep_dims=True) / n + eps)
    normed = (value * rstd).to(narrow.dtype).to(tl.float32)
    tl.store(output_ptr + row * n + column, (normed * weight).to(output_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _long_forward_kernel(
    input_ptr,
    residual_ptr,
    weight_ptr,
    output_ptr,
    summed_ptr,
    n,
    input_stride,
    residual_stride,
    eps,
    ADD: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    # A row of any length, which is read twice, the second time from a cache.
    row = tl.program_id(0).to(tl.int64)
    squares = tl.zeros((COLUMNS,), dtype=tl.float32)
    for first in range(0, n, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        narrow = tl.load(input_ptr + row * input_stride + column, mask=column < n, other=0.0)
        if ADD:
            residual = tl.load(residual_ptr + row * residual_stride + column, mask=column < n, other=0.0)
            narrow = (narrow.to(tl.float32) + residual.to(tl.float32)).to(narrow.dtype)
            tl.store(summed_ptr + row * n + column, narrow, mask=column < n)
        value = narrow.to(tl.float32)
        squares += value * value
    rstd = tl.rsqrt(tl.sum(squares, axis=0) / n + eps)
    if ADD:
        tl.debug_barrier()  # another thread may have written what this one reads
    for first in range(0, n, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        if ADD:
            narrow = tl.load(summed_ptr + row * n + column, mask=column < n, other=0.0)
        else:
            narrow = tl.load(input_ptr + row * input_stride + column, mask=column < n, other=0.0)
        weight = tl.load(weight_ptr + column, mask=column < n, other=0.0).to(tl.float32)
        normed = (narrow.to(tl.float32) * rstd).to(narrow.dtype).to(tl.float32)
        tl.store(output_ptr + row * n + column, (normed * weight).to(output_ptr.dtype.element_ty), mask=column < n)


# The backward pass: y = w * x * r with r = (mean(x^2) + eps)^(-1/2), so with g = w * dy:
# dx = r * (g - x * r * mean(g * x * r)). The programs share the rows; each adds up its part of the weight's gradient in
# registers.


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
    added_ptr,
    grad_input_ptr,
    partial_ptr,
    rows,
    n,
    grad_stride,
    input_stride,
    added_stride,
    eps,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    AHEAD: tl.constexpr,
):
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
        if ADD:
            added = _load_rows(added_ptr, first, rows, n, added_stride, ROWS, COLUMNS)
        value = narrow.to(tl.float32)
        scaled = grad * weight
        rstd = tl.rsqrt(tl.sum(value * value, axis=1, keep_dims=True) / n + eps)
        mean = tl.sum(scaled * value, axis=1, keep_dims=True) * rstd / n
        normed = value * rstd
        row = (first + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        grad_input = (rstd * (scaled - normed * mean)).to(grad_input_ptr.dtype.element_ty)
        if ADD:
            grad_input = (grad_input.to(tl.float32) + added.to(tl.float32)).to(grad_input_ptr.dtype.element_ty)
        tl.store(grad_input_ptr + row * n + column, grad_input, mask=(row < rows) & (column < n))
        grad_weight += grad * normed.to(narrow.dtype).to(tl.float32)
    total = tl.sum(grad_weight, axis=0, keep_dims=True)
    tl.store(partial_ptr + tl.program_id(0) * n + column, total, mask=column < n)


@triton.jit
def _add_pairs(first, second, other_first, other_second):
    return first + other_first, second + other_second


@triton.jit
def _load_part(input_ptr, grad_ptr, row, rows, n, input_stride, grad_stride, column):
    inside = (column < n) & (row < rows)
    value = tl.load(input_ptr + row * input_stride + column, mask=inside, other=0.0)
    return value, tl.load(grad_ptr + row * grad_stride + column, mask=inside, other=0.0)


@triton.jit
def _word(narrow, grad, weight):
    value = narrow.to(tl.float32)
    scaled = grad.to(tl.float32) * weight.to(tl.float32)
    squares, products = tl.reduce((value * value, scaled * value), 0, _add_pairs)
    # A sum of squares is positive, or NaN: its sign says nothing and is free.
    high = (squares.to(tl.int32, bitcast=True) & 0x7FFFFFFF).to(tl.int64) << 32
    return high | (products.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF)


@triton.jit
def _team_backward_kernel(
    grad_ptr,
    input_ptr,
    weight_ptr,
    added_ptr,
    grad_input_ptr,
    partial_ptr,
    words_ptr,
    rows,
    n,
    parts,
    grad_stride,
    input_stride,
    added_stride,
    eps,
    ADD: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
):
    # A row is divided between the programs of a team. Each tells the others its two sums in one word of memory, which
    # says by its sign whether it was written. It adds up its next row before it waits for the words of this one, which
    # by then are there. All programs run at once (a cooperative launch).
    part = tl.program_id(0) % parts
    team = tl.program_id(0) // parts
    teams = tl.num_programs(0) // parts
    column = part * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < n
    each = tl.arange(0, PARTS)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0)
    grad_weight = tl.zeros((COLUMNS,), dtype=tl.float32)
    start = team.to(tl.int64)
    this_input, this_grad = _load_part(input_ptr, grad_ptr, start, rows, n, input_stride, grad_stride, column)
    next_input, next_grad = _load_part(input_ptr, grad_ptr, start + teams, rows, n, input_stride, grad_stride, column)
    tl.atomic_xchg(words_ptr + start * parts + part, _word(this_input, this_grad, weight), sem="relaxed")
    for number in range(team, rows, teams):
        row = number.to(tl.int64)
        words_at = words_ptr + row * parts + each
        words = tl.load(words_at, mask=each < parts, other=0, volatile=True)
        after_input, after_grad = _load_part(
            input_ptr, grad_ptr, row + 2 * teams, rows, n, input_stride, grad_stride, column
        )
        if ADD:
            added = tl.load(added_ptr + row * added_stride + column, mask=inside, other=0.0)
        word = _word(next_input, next_grad, weight)
        tl.atomic_xchg(words_ptr + (row + teams) * parts + part, word, mask=row + teams < rows, sem="relaxed")
        while tl.min(words, axis=0) < 0:
            words = tl.load(words_at, mask=each < parts, other=0, volatile=True)
        squares = tl.sum((words >> 32).to(tl.int32).to(tl.float32, bitcast=True), axis=0)
        products = tl.sum(words.to(tl.int32).to(tl.float32, bitcast=True), axis=0)
        rstd = tl.rsqrt(squares / n + eps)
        mean = products * rstd / n
        grad = this_grad.to(tl.float32)
        normed = this_input.to(tl.float32) * rstd
        grad_input = (rstd * (grad * weight.to(tl.float32) - normed * mean)).to(grad_input_ptr.dtype.element_ty)
        if ADD:
            grad_input = (grad_input.to(tl.float32) + added.to(tl.float32)).to(grad_input_ptr.dtype.element_ty)
        tl.store(grad_input_ptr + row * n + column, grad_input, mask=inside)
        grad_weight += grad * normed.to(this_input.dtype).to(tl.float32)
        this_input, this_grad = next_input, next_grad
        next_input, next_grad = after_input, after_grad
    tl.store(partial_ptr + start * n + column, grad_weight, mask=inside)


@triton.jit
def _sum_kernel(partial_ptr, output_ptr, count, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, count, ROWS):
        row = (first + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        total += tl.load(partial_ptr + row * n + column, mask=(row < count) & (column < n), other=0.0)
    result = tl.sum(total, axis=0, keep_dims=True).to(output_ptr.dtype.element_ty)
    tl.store(output_ptr + column, result, mask=column < n)


def forward(input: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`weight * input / sqrt(mean(input^2) + eps)`, for `input` `[..., N]` and `weight` `[N]` on one device."""
    return _launch_forward(input, None, weight, eps)[0]


def add_forward(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`forward` of `input + residual`, and that sum."""
    return _launch_forward(input, residual, weight, eps)


def _launch_forward(
    input: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    output = input.new_empty(input.shape, dtype=torch.promote_types(input.dtype, weight.dtype))
    summed = input if residual is None else input.new_empty(input.shape)
    if output.numel():
        values = _rows(input)
        others = values if residual is None else _rows(residual)
        rows, n = values.shape
        tensors = values, others, weight.contiguous(), output, summed
        strides = values.stride(0), others.stride(0)
        add = residual is not None
        with _on(input.device):
            if n > _LONGEST_ROW:
                _long_forward_kernel[(rows,)](*tensors, n, *strides, eps, ADD=add, COLUMNS=_COLUMNS, num_warps=16)
            else:
                tile = _tile(n)
                programs = triton.cdiv(rows, tile["ROWS"])
                _forward_kernel[(programs,)](*tensors, rows, n, *strides, eps, ADD=add, **tile)
    return output, summed


def backward(
    grad: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, eps: float, added: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of `forward` in `input`, to which `added` is added, and `weight`, given that of its result."""
    grad_input, grad_weight = input.new_empty(input.shape), weight.new_empty(weight.shape)
    if input.numel() == 0:
        return grad_input, grad_weight.zero_()
    if input.shape[-1] > _LONGEST_ROW and not _in_teams(input):
        return _backward_in_torch(grad, input, weight, eps, added)
    values, grads = _rows(input), _rows(grad)
    others = values if added is None else _rows(added)
    tensors = grads, values, weight.contiguous(), others, grad_input
    with _on(input.device):
        launch = _launch_teams if _in_teams(input) else _launch_backward
        partial = launch(tensors, eps, added is not None)
        count, n = partial.shape
        _sum_kernel[(triton.cdiv(n, 32),)](partial, grad_weight, count, n, ROWS=64, COLUMNS=32, num_warps=8)
    return grad_input, grad_weight


def _launch_backward(tensors: tuple[torch.Tensor, ...], eps: float, add: bool) -> torch.Tensor:
    grads, values, _, others, _ = tensors
    rows, n = values.shape
    tile = _tile(n)
    programs = min(_PROGRAMS * _multiprocessors(values.device), triton.cdiv(rows, tile["ROWS"]))
    partial = torch.empty((programs, n), dtype=torch.float32, device=values.device)
    strides = grads.stride(0), values.stride(0), others.stride(0)
    ahead = tile["COLUMNS"] <= _LONGEST_ALONE
    _backward_kernel[(programs,)](*tensors, partial, rows, n, *strides, eps, ADD=add, AHEAD=ahead, **tile)
    return partial


def _in_teams(input: torch.Tensor) -> bool:
    # Elsewhere nothing says how many programs run at once.
    if input.shape[-1] <= _LONGEST_ALONE or input.device.type != "cuda" or torch.version.hip is not None:
        return False
    return triton.cdiv(input.shape[-1], _SHARE) <= _multiprocessors(input.device)


def _backward_in_torch(
    grad: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, eps: float, added: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    value, scaled = input.float(), grad.float() * weight.float()
    rstd = torch.rsqrt(value.square().mean(-1, keepdim=True) + eps)
    normed = value * rstd
    grad_input = (rstd * (scaled - normed * (scaled * normed).mean(-1, keepdim=True))).to(input.dtype)
    grad_weight = (grad.float() * normed.to(input.dtype)).reshape(-1, weight.shape[0]).sum(0).to(weight.dtype)
    return (grad_input if added is None else grad_input + added).contiguous(), grad_weight


def _launch_teams(tensors: tuple[torch.Tensor, ...], eps: float, add: bool) -> torch.Tensor:
    grads, values, _, others, _ = tensors
    rows, n = values.shape
    parts = triton.cdiv(n, _SHARE)
    teams = min(_multiprocessors(values.device) // parts, rows)
    partial = torch.empty((teams, n), dtype=torch.float32, device=values.device)
    words = torch.full((rows, parts), -1, dtype=torch.int64, device=values.device)
    _team_backward_kernel[(teams * parts,)](
        *tensors,
        partial,
        words,
        rows,
        n,
        parts,
        grads.stride(0),
        values.stride(0),
        others.stride(0),
        eps,
        ADD=add,
        COLUMNS=_SHARE,
        PARTS=triton.next_power_of_2(parts),
        num_warps=16,
        maxnreg=128,  # so that all programs fit
        launch_cooperative_grid=True,
    )
    return partial


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
