"""The example kernels on an NVIDIA GPU: Triton forward and backward, CUDA C++ compiled here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from example_kernels import (
    check_fused_add_rms_norm,
    check_rms_norm,
    check_rotary,
    check_silu_mul,
    example_hub,
    load_example,
)

__all__ = ["example_hub"]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

COMPILED = "compiled-cu*"
KINDS = pytest.mark.parametrize("kind", [pytest.param(COMPILED, marks=pytest.mark.compiler), "cuda"])
FLOATS = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture
def load(example_hub: Path) -> Callable[[str, str], ModuleType]:
    return lambda name, kind: load_example(example_hub, name, kind)


@KINDS
def test_rms_norm_matches_its_float64_reference_forward_and_backward(
    load: Callable[..., ModuleType], kind: str
) -> None:
    check_rms_norm(load("rms-norm", kind).rms_norm, "cuda", FLOATS)


@KINDS
def test_fused_add_rms_norm_matches_its_float64_reference_forward_and_backward(
    load: Callable[..., ModuleType], kind: str
) -> None:
    check_fused_add_rms_norm(load("rms-norm", kind).fused_add_rms_norm, "cuda", FLOATS)


@KINDS
def test_silu_mul_matches_its_float64_reference_forward_and_backward(
    load: Callable[..., ModuleType], kind: str
) -> None:
    check_silu_mul(load("silu-and-mul", kind).silu_mul, "cuda", FLOATS)


@KINDS
def test_rotary_matches_its_float64_reference_forward_and_backward(load: Callable[..., ModuleType], kind: str) -> None:
    check_rotary(load("rotary", kind).apply_rotary_pos_emb, "cuda", FLOATS)


@KINDS
@pytest.mark.parametrize("columns", [4096, 20000, 32768, 65536])
def test_a_value_that_is_not_aligned_changes_nothing(load: Callable[..., ModuleType], kind: str, columns: int) -> None:
    """Rows that begin at any address, in vectors or one value at a time, forward and backward."""
    norm, silu = load("rms-norm", kind).rms_norm, load("silu-and-mul", kind).silu_mul
    aligned = torch.randn(7, columns, device="cuda", dtype=torch.bfloat16)
    shifted = torch.empty(aligned.numel() + 1, device="cuda", dtype=torch.bfloat16)[1:].view_as(aligned).copy_(aligned)
    weight, grad = torch.randn(columns, device="cuda", dtype=torch.bfloat16), torch.randn_like(aligned)
    results = []
    for x in (aligned, shifted):
        x.requires_grad_()
        outputs = norm(x, weight), silu(x, x)
        results.append((*outputs, *torch.autograd.grad(outputs, x, (grad, grad))))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


@KINDS
def test_more_values_than_an_int_counts(load: Callable[..., ModuleType], kind: str) -> None:
    if torch.cuda.mem_get_info()[0] < 30 * 2**30:
        pytest.skip("needs 30 GB of the GPU's memory")
    rows, n = 2**31 // 4096 + 3, 4096
    x = torch.zeros(rows, n, device="cuda", dtype=torch.bfloat16)
    x[-1] = torch.randn(n, device="cuda")
    weight = torch.randn(n, device="cuda", dtype=torch.bfloat16)
    last = load("rms-norm", kind).rms_norm(x, weight)[-1].clone()
    torch.testing.assert_close(last, load("rms-norm", kind).rms_norm(x[-1:], weight)[0])
    last = load("silu-and-mul", kind).silu_mul(x, x)[-1].clone()
    torch.testing.assert_close(last, load("silu-and-mul", kind).silu_mul(x[-1:], x[-1:])[0])


@KINDS
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "shape",
    [
        *[(2048, 4096), (1000, 8192), (33, 16384), (9, 32768), (5, 40000)],
        *[(7, 65536), (3, 131072), (3, 262144), (300, 512), (700, 2048), (4096, 128), (17, 576)],
    ],
)
def test_rms_norm_of_a_models_sizes(
    load: Callable[..., ModuleType], kind: str, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(shape, generator=generator, device="cuda", dtype=dtype)
    weight = torch.randn(shape[-1], generator=generator, device="cuda", dtype=dtype)
    wide = x.double()
    expected = weight.double() * wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    bound = 4 * torch.finfo(dtype).eps
    leaves = [x.requires_grad_(), weight.requires_grad_()]
    result = load("rms-norm", kind).rms_norm(*leaves)
    torch.testing.assert_close(result.double(), expected, rtol=bound, atol=bound)

    # Backward, with many rows to a program, against the float64 formula; sums over rows grow with their number.
    wanted = torch.randn(shape, generator=generator, device="cuda", dtype=dtype)
    precise = [leaf.detach().double().requires_grad_() for leaf in leaves]
    variance = precise[0].square().mean(-1, keepdim=True)
    reference = torch.autograd.grad(precise[1] * precise[0] * (variance + 1e-6).rsqrt(), precise, wanted.double())
    for found, right in zip(torch.autograd.grad(result, leaves, wanted), reference, strict=True):
        assert (found.double() - right).norm() <= 8 * torch.finfo(dtype).eps * right.norm()


@pytest.mark.compiler
def test_compiled_rms_norm_names_a_wrong_argument(load: Callable[..., ModuleType]) -> None:
    kernel, x = load("rms-norm", COMPILED), torch.ones(2, 8, device="cuda")
    for wrong, error, says in [
        ({"weight": torch.ones(7, device="cuda")}, ValueError, "`weight` has the shape"),
        ({"weight": torch.ones(8)}, RuntimeError, "`weight` is on cpu"),
        ({"weight": torch.ones(8, device="cuda", dtype=torch.float64)}, TypeError, "`weight` is Double"),
        ({"input": x.long()}, TypeError, "`input` is Long"),
    ]:
        with pytest.raises(error, match=says):
            kernel.rms_norm(**{"input": x, "weight": torch.ones(8, device="cuda"), **wrong})


@pytest.mark.compiler
def test_the_compiled_operator_keeps_torchs_contract(load: Callable[..., ModuleType]) -> None:
    ops = load("rms-norm", COMPILED)._ops.ops
    x, weight = torch.randn(3, 8, device="cuda", requires_grad=True), torch.ones(8, device="cuda")
    torch.library.opcheck(ops.rms_norm.default, (x, weight, 1e-6))


@pytest.mark.parametrize(
    ("name", "function", "arguments"),
    [
        ("rms-norm", "rms_norm", lambda: (torch.randn(4, 64), torch.randn(64))),
        ("silu-and-mul", "silu_and_mul", lambda: (torch.randn(4, 64),)),
        (
            "rotary",
            "apply_rotary_pos_emb",
            lambda: (torch.randn(1, 2, 3, 8), torch.randn(1, 1, 3, 8), torch.randn(1, 3, 8), torch.randn(1, 3, 8)),
        ),
    ],
)
def test_triton_kernels_compile_without_a_graph_break_and_differentiate(
    load: Callable[..., ModuleType], name: str, function: str, arguments: Callable[[], tuple[torch.Tensor, ...]]
) -> None:
    call = getattr(load(name, "cuda"), function)
    inputs = [tensor.cuda() for tensor in arguments()]
    inputs[0].requires_grad_()

    def total(run: Callable[..., Any]) -> torch.Tensor:
        results = run(*inputs)
        return sum(
            (each.sin().sum() for each in (results if isinstance(results, tuple) else (results,))),
            torch.zeros(()).cuda(),
        )

    torch.compiler.reset()
    compiled, eager = total(torch.compile(call, fullgraph=True)), total(call)
    torch.testing.assert_close(compiled, eager)
    torch.testing.assert_close(torch.autograd.grad(compiled, inputs[0]), torch.autograd.grad(eager, inputs[0]))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@KINDS
def test_a_tensor_of_another_than_the_current_device_stays_there(load: Callable[..., ModuleType], kind: str) -> None:
    x, weight = torch.randn(4, 64, device="cuda:1"), torch.ones(64, device="cuda:1")
    result = load("rms-norm", kind).rms_norm(x, weight)
    assert result.device == x.device
    torch.testing.assert_close(result, torch.nn.functional.rms_norm(x, (64,), weight, 1e-6))
