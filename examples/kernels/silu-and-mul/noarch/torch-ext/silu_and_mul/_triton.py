"""The Triton kernels and their launches."""

from contextlib import nullcontext

import torch
import triton
import triton.language as tl

__all__ = ["backward", "forward"]

# Values a program works on: with four warps, two or four 16-byte loads a thread from each tensor.
_BLOCK = 2048


@triton.jit
def _position(n, blocks, BLOCK: tl.constexpr):
    # Programs are numbered along one axis, the only one that can be long: row by row, and within a row block by block.
    program = tl.program_id(0)
    column = (program % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return (program // blocks).to(tl.int64), column, column < n


@triton.jit
def _forward_kernel(gate_ptr, up_ptr, output_ptr, n, blocks, gate_stride, up_stride, BLOCK: tl.constexpr):
    row, column, inside = _position(n, blocks, BLOCK)
    gate = tl.load(gate_ptr + row * gate_stride + column, mask=inside).to(tl.float32)
    up = tl.load(up_ptr + row * up_stride + column, mask=inside).to(tl.float32)
    result = gate * tl.sigmoid(gate) * up
    tl.store(output_ptr + row * n + column, result.to(output_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _backward_kernel(
    grad_ptr,
    gate_ptr,
    up_ptr,
    grad_gate_ptr,
    grad_up_ptr,
    n,
    blocks,
    grad_stride,
    gate_stride,
    up_stride,
    BLOCK: tl.constexpr,
):
    row, column, inside = _position(n, blocks, BLOCK)
    grad = tl.load(grad_ptr + row * grad_stride + column, mask=inside).to(tl.float32)
    gate = tl.load(gate_ptr + row * gate_stride + column, mask=inside).to(tl.float32)
    up = tl.load(up_ptr + row * up_stride + column, mask=inside).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    grad_gate = grad * up * sigmoid * (1.0 + gate * (1.0 - sigmoid))
    grad_up = grad * gate * sigmoid
    tl.store(grad_gate_ptr + row * n + column, grad_gate.to(grad_gate_ptr.dtype.element_ty), mask=inside)
    tl.store(grad_up_ptr + row * n + column, grad_up.to(grad_up_ptr.dtype.element_ty), mask=inside)


def forward(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` for two tensors of one shape, type and device."""
    output = gate.new_empty(gate.shape)
    if output.numel():
        _launch(_forward_kernel, (gate, up), (output,))
    return output


def backward(grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of `forward` in `gate` and `up`, given that of its result."""
    grad_gate, grad_up = gate.new_empty(gate.shape), gate.new_empty(gate.shape)
    if gate.numel():
        _launch(_backward_kernel, (grad, gate, up), (grad_gate, grad_up))
    return grad_gate, grad_up


def _launch(kernel, inputs: tuple[torch.Tensor, ...], outputs: tuple[torch.Tensor, ...]) -> None:
    # Contiguous tensors are one long row. The halves of a larger tensor's last dimension are rows as they are.
    if all(tensor.is_contiguous() for tensor in inputs):
        rows = [tensor.view(1, -1) for tensor in inputs]
    else:
        rows = [_side_by_side(tensor.reshape(-1, tensor.shape[-1])) for tensor in inputs]
    count, n = rows[0].shape
    blocks = triton.cdiv(n, _BLOCK)
    with _on(inputs[0].device):
        kernel[(count * blocks,)](
            *rows, *outputs, n, blocks, *(tensor.stride(0) for tensor in rows), BLOCK=_BLOCK, num_warps=4
        )


def _side_by_side(rows: torch.Tensor) -> torch.Tensor:
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _on(device: torch.device):
    # Triton launches on the current device, which need not be the tensors'.
    return nullcontext() if device.type == "cpu" else torch.get_device_module(device).device(device)
