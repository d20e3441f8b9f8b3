"""The example kernels: built once a test run, their references in float64, and checks that hold on every device."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

__all__ = [
    "CHECKS",
    "assert_near",
    "check_rms_norm",
    "check_rotary",
    "check_silu_mul",
    "example_builder",
    "example_hub",
    "load_example",
]

SOURCES = Path(__file__).parents[2] / "examples" / "kernels"


def example_builder() -> ModuleType:
    """The script `examples/kernels/build.py`, as a module."""
    name = "example_kernels_build"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, SOURCES / "build.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture(scope="session")
def example_hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of repositories with every example kernel that can be built here, made once for all test processes."""
    from filelock import FileLock

    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    hub = root / "example-hub"
    with FileLock(root / "example-hub.lock"):
        example_builder().build_examples(hub)
    return hub


def load_example(hub: Path, name: str, kind: str) -> ModuleType:
    """Load an example kernel's build.

    Args:
        hub: The folder of repositories.
        name: The kernel.
        kind: A backend for its noarch build, or "compiled-<accelerator>" for the compiled one.
    """
    from kernels.loader import load_variant
    from kernels.metadata import Metadata

    compiled, _, accelerator = kind.partition("-")
    pattern = f"torch[0-9]*-{accelerator}-*" if compiled == "compiled" else f"torch-{kind}"
    found = sorted((hub / "kernels-examples" / name / "v1" / "build").glob(pattern))
    if not found:
        pytest.skip(f"no {kind} build of {name} could be made here")
    return load_variant(found[0], Metadata.read_from_file(found[0] / "metadata.json"))


def assert_near(result: torch.Tensor, wanted: torch.Tensor, dtypes: list[torch.dtype]) -> None:
    """Check a result against its float64 reference, allowing for a few roundings to the narrowest of some types."""
    import torch

    relative = max(*(2 * torch.finfo(dtype).eps for dtype in dtypes), 1e-5)
    largest = float(wanted.detach().abs().max()) if wanted.numel() else 0.0
    absolute = relative * max(largest, 1.0)  # the inputs are of the order of 1
    torch.testing.assert_close(result.detach().cpu().double(), wanted.detach(), rtol=relative, atol=absolute)


def reference_rms_norm(input: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return weight * input * (input.square().mean(-1, keepdim=True) + eps).rsqrt()


def reference_silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return gate * gate.sigmoid() * up


def reference_rotary(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, dim: int
) -> tuple[torch.Tensor, ...]:
    import torch

    def turn(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cos.unsqueeze(dim) + torch.cat((-second, first), dim=-1) * sin.unsqueeze(dim)

    return turn(q), turn(k)


def _compare(
    function: Callable[..., Any], reference: Callable[..., Any], tensors: list[torch.Tensor], others: tuple[Any, ...]
) -> None:
    """Compare a function's results, and its derivatives where tensors require one, with those of its reference."""
    import torch

    dtypes = [tensor.dtype for tensor in tensors]
    wide = [tensor.detach().cpu().double().requires_grad_(tensor.requires_grad) for tensor in tensors]
    results, expected = function(*tensors, *others), reference(*wide, *others)
    if isinstance(results, torch.Tensor):
        results, expected = (results,), (expected,)
    for result, wanted in zip(results, expected, strict=True):
        assert_near(result, wanted, dtypes)
    if not any(tensor.requires_grad for tensor in tensors):
        return
    generator = torch.Generator().manual_seed(1)
    upstream = [torch.randn(wanted.shape, generator=generator) for wanted in expected]
    narrow_in = [tensor for tensor in tensors if tensor.requires_grad]
    wide_in = [tensor for tensor in wide if tensor.requires_grad]
    given = [grad.to(result) for grad, result in zip(upstream, results, strict=True)]
    grads = torch.autograd.grad(results, narrow_in, given)
    wanted_grads = torch.autograd.grad(expected, wide_in, [grad.detach().cpu().double() for grad in given])
    for grad, wanted, tensor in zip(grads, wanted_grads, narrow_in, strict=True):
        assert grad.dtype == tensor.dtype
        assert_near(grad, wanted, dtypes)


def _tensors(shapes: list[tuple[int, ...]], dtypes: list[torch.dtype], device: str) -> list[torch.Tensor]:
    import torch

    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(shape, generator=generator).to(device=device, dtype=dtype).requires_grad_()
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]


def check_rms_norm(function: Callable[..., Any], device: str, dtypes: list[torch.dtype]) -> None:
    """Check an RMSNorm against its reference: odd sizes, strides, empty input, a weight of another type."""
    import torch

    for dtype in dtypes:
        for shape in [(1, 1), (5, 77), (2, 3, 128), (7, 1024), (9, 4100), (64,), (0, 8)]:
            tensors = _tensors([shape, shape[-1:]], [dtype, dtype], device)
            _compare(function, reference_rms_norm, tensors, (1e-5,))
        rows, weight = _tensors([(6, 96), (48,)], [dtype, torch.float32], device)
        result = function(rows[:, :48], weight, 1e-5)
        assert result.dtype == torch.float32
        _compare(
            lambda x, w, eps: function(x[:, :48], w, eps),
            lambda x, w, eps: reference_rms_norm(x[:, :48], w, eps),
            [rows, weight],
            (1e-5,),
        )
        _compare(
            lambda x, w, eps: function(x.mT, w, eps),
            lambda x, w, eps: reference_rms_norm(x.mT, w, eps),
            _tensors([(3, 48, 5), (48,)], [dtype, dtype], device),
            (1e-6,),
        )


def check_silu_mul(function: Callable[..., Any], device: str, dtypes: list[torch.dtype]) -> None:
    """Check `silu(gate) * up` against its reference: odd sizes, halves of one tensor, transposed, empty, a scalar."""
    for dtype in dtypes:
        for shape in [(1,), (5, 77), (2, 3, 2048), (3, 4100), (), (0, 8)]:
            _compare(function, reference_silu_mul, _tensors([shape, shape], [dtype, dtype], device), ())
        halves = _tensors([(5, 154)], [dtype], device)
        _compare(lambda x: function(*x.chunk(2, -1)), lambda x: reference_silu_mul(*x.chunk(2, -1)), halves, ())
        transposed = _tensors([(33, 5), (33, 5)], [dtype, dtype], device)
        _compare(lambda a, b: function(a.T, b.T), lambda a, b: reference_silu_mul(a.T, b.T), transposed, ())


def check_rotary(function: Callable[..., Any], device: str, dtypes: list[torch.dtype]) -> None:
    """Check a rotary embedding against its reference: both layouts, grouped keys, shared angles, mixed types."""
    import torch

    for dtype in dtypes:
        for batch, heads, key_heads, tokens, size, angles in [
            (2, 4, 2, 7, 64, 2),
            (2, 3, 3, 5, 6, 1),
            (1, 32, 8, 3, 128, 1),
            (1, 1, 1, 1, 2, 1),
            (2, 2, 1, 0, 8, 2),
        ]:
            for dim in (1, 2):

                def shaped(
                    count: int, dim: int = dim, b: int = batch, t: int = tokens, d: int = size
                ) -> tuple[int, ...]:
                    return (b, count, t, d) if dim == 1 else (b, t, count, d)

                tensors = _tensors(
                    [shaped(heads), shaped(key_heads), (angles, tokens, size), (angles, tokens, size)],
                    [dtype, dtype, dtype, dtype],
                    device,
                )
                tensors[2:] = [tensor.detach() for tensor in tensors[2:]]
                _compare(function, reference_rotary, tensors, (dim,))
        q, k, cos, sin = _tensors(
            [(2, 5, 4, 16), (2, 5, 2, 16), (1, 5, 16), (1, 5, 16)], [dtype, dtype, torch.float32, torch.float32], device
        )
        tensors = [q, k, cos.detach(), sin.detach()]
        assert [x.dtype for x in _transposed(function)(*tensors, 1)] == [torch.float32] * 2
        _compare(_transposed(function), _transposed(reference_rotary), tensors, (1,))


def _transposed(rotary: Callable[..., Any]) -> Callable[..., Any]:
    return lambda q, k, cos, sin, dim: rotary(q.transpose(1, 2), k.transpose(1, 2), cos, sin, dim)


#: For each example kernel: its check, and its function as an operator, without the choice by device.
CHECKS: dict[str, tuple[Callable[..., None], Callable[[ModuleType], Callable[..., Any]]]] = {
    "rms-norm": (check_rms_norm, lambda kernel: kernel.ops.rms_norm),
    "silu-and-mul": (check_silu_mul, lambda kernel: kernel.ops.silu_mul),
    "rotary": (check_rotary, lambda kernel: lambda *arguments: kernel.ops.rotary(*arguments, False)),
}
