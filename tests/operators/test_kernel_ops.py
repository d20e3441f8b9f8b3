"""Functions of kernels stand in for ATen operators by the same door."""

from __future__ import annotations

from typing import Any

import pytest
from hub import TestHub

from kernels.errors import NoSuitableBuild, RepositoryNotFound, RequestError
from kernels.operators import ActiveOp, FuncSpec, active_ops, enable_kernel_ops, use_kernel_ops

torch = pytest.importorskip("torch")

X = torch.tensor([1.0, -2.0, 0.5])
REFERENCE = X * torch.sigmoid(X)

CODE = """
import torch

def silu(self):
    return torch.full_like(self, {value})

def add(self, other, *, alpha=1):
    return torch.full_like(self, {value} + 1)

def broken(): ...
"""


def silu(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x)


@pytest.fixture
def kernel(hub: TestHub, request: pytest.FixtureRequest) -> str:
    """A kernel on the Hub whose `silu` gives 7, under an id of the test's own."""
    name = f"acme/{request.node.originalname.replace('_', '-')}"[:60].rstrip("-")
    hub.make_repo(name, variants={"torch-cpu": {"__init__.py": CODE.format(value=7.0)}})
    return name


@pytest.mark.parametrize("key", ["aten::silu", "silu"])
def test_a_kernels_function_runs_in_place_of_an_operator(kernel: str, key: str) -> None:
    with use_kernel_ops({key: FuncSpec(kernel, "silu", version=1)}) as enabled:
        assert silu(X)[0] == 7
        assert enabled.operators == ("aten::silu",)
        assert active_ops() == [ActiveOp("aten::silu", "CPU", "silu", f"kernel {kernel}, version 1")]
    torch.testing.assert_close(silu(X), REFERENCE)


def test_several_operators_and_overloads_are_taken_at_once(kernel: str) -> None:
    functions = {
        "aten::silu": FuncSpec(kernel, "silu", version=1),
        "add.Tensor": FuncSpec(kernel, "add", revision="v1"),
    }
    enabled = enable_kernel_ops(functions, backend="cpu")
    try:
        assert ((X + X)[0].item(), silu(X)[0].item()) == (8, 7)
        assert [op.origin for op in active_ops()] == [f"kernel {kernel}, version 1", f"kernel {kernel} at v1"]
    finally:
        enabled.disable()
    assert active_ops() == []
    torch.testing.assert_close(X + X, 2 * X)


@pytest.mark.parametrize(
    ("functions", "kind", "message"),
    [
        ({"aten::siluu": ("silu",)}, RequestError, "'aten::siluu', which .* similar names are silu"),
        (
            {"aten::silu": ("nothing",)},
            RequestError,
            r"`functions\['aten::silu'\]` is nothing of kernel .* no such func",
        ),
        ({"aten::silu": ("broken",)}, RequestError, "`broken` of kernel .* cannot take the arguments of aten::silu"),
        ({"linear": ("silu",)}, RequestError, "`silu` of kernel .* cannot take the arguments of aten::linear"),
        ({"silu": ("silu",), "aten::silu": ("silu",)}, RequestError, "has aten::silu twice, once as 'aten::silu'"),
    ],
)
def test_what_cannot_stand_in_is_refused_and_nothing_changes(
    kernel: str, functions: dict[str, tuple[str]], kind: type[Exception], message: str
) -> None:
    good = {"aten::mul.Tensor": FuncSpec(kernel, "silu", version=1)} if "aten::siluu" not in functions else {}
    given = {key: FuncSpec(kernel, name, version=1) for key, (name,) in functions.items()}
    with pytest.raises(kind, match=message):
        enable_kernel_ops({**given, **good})
    assert active_ops() == []
    torch.testing.assert_close(silu(X), REFERENCE)


def test_all_kernels_are_had_before_the_first_operator_changes(kernel: str, hub: TestHub) -> None:
    hub.make_repo("acme/elsewhere", variants=["torch-cuda"])
    for other, kind in [("acme/none", RepositoryNotFound), ("acme/elsewhere", NoSuitableBuild)]:
        with pytest.raises(kind):
            enable_kernel_ops(
                {"silu": FuncSpec(kernel, "silu", version=1), "mm": FuncSpec(other, "mm", version=1)}, backend="cpu"
            )
        assert active_ops() == []


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ([], r"`functions`: expected a mapping .*, got \[\]"),
        ({"silu": "org/repo"}, r"`functions\['silu'\]`: expected a FuncSpec, got 'org/repo'"),
    ],
)
def test_arguments_of_another_type_are_refused(functions: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        enable_kernel_ops(functions)


def test_a_backend_that_is_none_is_refused(kernel: str) -> None:
    with pytest.raises(RequestError, match="'nobody'"):
        enable_kernel_ops({"silu": FuncSpec(kernel, "silu", version=1)}, backend="nobody")


@pytest.mark.parametrize("name", ["", "a.b", 7])
def test_a_functions_name_must_be_one(name: Any) -> None:
    with pytest.raises(RequestError, match="`func_name`: expected the name of a function"):
        FuncSpec("org/repo", name)


def test_no_operator_at_all_is_no_error() -> None:
    with use_kernel_ops({}) as enabled:
        assert enabled.operators == ()
