"""A function is refused where Torch's dispatcher could not call it as it calls the operator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from kernels.errors import RequestError
from kernels.operators.aten import find_operator, operator_names
from kernels.operators.schema import check_function

torch = pytest.importorskip("torch")


def check(operator: str, function: Any) -> None:
    check_function(find_operator(operator, operator_names()), function, "`it`")


class Kernel:
    def __call__(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize(
    ("operator", "function"),
    [
        ("silu", lambda self: self),
        ("silu", lambda x, /: x),
        ("silu", lambda *args: args[0]),
        ("silu", lambda x, block=64: x),
        ("silu", Kernel()),
        ("silu", functools.partial(lambda block, x: x, 64)),
        ("add.Tensor", lambda a, b, *, alpha=1: a),
        ("add.Tensor", lambda a, b, alpha=1.0: a),
        ("add.Tensor", lambda a, b, **options: a),
        ("add.Tensor", lambda *args, **options: args[0]),
        ("mean.dim", lambda x, dim, keepdim=False, *, dtype=None: x),
        ("gelu", lambda x, *, approximate="none": x),
        ("zeros", lambda size, dtype=None, layout=None, device=None, pin_memory=None: size),
        ("avg_pool2d", lambda x, kernel, stride=(), padding=0, ceil_mode=False, pad=True, divisor=None: x),
        ("max_pool2d_with_indices", lambda x, kernel, stride=(), padding=[0, 0], dilation=(1, 1), ceil_mode=False: x),
        ("_softmax", lambda x, dim, half_to_float=False: x),
        ("clamp", lambda x, min=None, max=None: x),
        ("full", lambda size, fill_value, *, dtype=torch.float32, layout=None, device=None, pin_memory=None: size),
        ("nll_loss_forward", lambda x, target, weight, reduction, ignore: x),
        ("cumsum", lambda x, dim, *, dtype=None: x),
        ("silu", torch.ops.aten.relu),
        ("add.Tensor", torch.ops.aten.sub.Tensor),
        ("normal_functional", torch.ops.aten.normal_),
    ],
)
def test_a_function_that_takes_the_operators_arguments_is_accepted(operator: str, function: Callable[..., Any]) -> None:
    check(operator, function)


@pytest.mark.parametrize("operator", ["detach", "transpose.int", "split.Tensor", "view", "expand", "lift_fresh"])
def test_an_operator_that_returns_views_of_its_arguments_is_refused(operator: str) -> None:
    with pytest.raises(RequestError, match=f"cannot override aten::{operator}, which returns views .*\n  operator: "):
        check(operator, lambda *args, **options: args[0])


@pytest.mark.parametrize("operator", ["silu_", "silu.out", "_foreach_add_.Scalar", "clone"])
def test_an_operator_that_returns_what_it_changed_is_accepted(operator: str) -> None:
    check(operator, lambda *args, **options: args[0])


def no_dtype(x: Any, dim: Any, keepdim: bool = False) -> None: ...


@pytest.mark.parametrize(
    ("operator", "function", "why"),
    [
        ("silu", lambda: None, "too many positional arguments"),
        ("silu", lambda x, y: x, "missing a required argument: 'y'"),
        ("silu", lambda *, x: x, "too many positional arguments"),
        ("add.Tensor", lambda a, b: a, "got an unexpected keyword argument 'alpha'"),
        ("add.Tensor", lambda a, b, alpha: a, "missing a required argument: 'alpha'"),
        ("add.Tensor", lambda a, alpha=1: a, "multiple values for argument 'alpha'"),
        (
            "add.Tensor",
            lambda a, b, *, alpha=2: a,
            "`alpha` has the default 2, the operator's is 1, which Torch leaves",
        ),
        ("mean.dim", lambda x, dim, keepdim, *, dtype=None: x, "missing a required argument: 'keepdim'"),
        ("mean.dim", lambda x, dim, keepdim=True, *, dtype=None: x, "`keepdim` has the default True"),
        ("mean.dim", no_dtype, "unexpected keyword argument 'dtype'"),
        ("silu", torch.ops.aten.mm, "missing a required argument"),
        ("mul.Tensor", torch.ops.aten.pow.Scalar_out, "missing a required argument: 'out'"),
        ("gelu", lambda x, *, approximate="tanh": x, "`approximate` has the default 'tanh'"),
        ("gelu", lambda x, *, approximate=None: x, "`approximate` has the default None"),
        ("clamp", lambda x, min=0, max=None: x, "`min` has the default 0, the operator's is None"),
        ("max_pool2d_with_indices", lambda a, b, c=(), d=1, e=1, f=False: a, r"`d` has the default 1, .* is \[0, 0\]"),
        ("max_pool2d_with_indices", lambda a, b, c=3, d=0, e=1, f=False: a, r"`c` has the default 3, .* is \[\]"),
    ],
)
def test_a_function_that_does_not_is_refused_with_both_signatures(
    operator: str, function: Callable[..., Any], why: str
) -> None:
    with pytest.raises(RequestError, match=rf"^`it` cannot take the arguments of aten::{operator}: .*{why}") as refused:
        check(operator, function)
    said = str(refused.value).splitlines()
    assert said[1].startswith(f"  operator: aten::{operator}(")
    assert said[2].startswith("  function: (")


class Hostile:
    __signature__ = "none"

    def __call__(self) -> None: ...


class Raising:
    @property
    def __signature__(self) -> None:
        raise OSError("no")

    def __call__(self) -> None: ...


@pytest.mark.parametrize("function", [Hostile(), Raising(), max])
def test_a_function_whose_signature_cannot_be_read_is_refused(function: Any) -> None:
    with pytest.raises(RequestError, match=r"`it` (has no signature that could be compared|cannot take)"):
        check("silu", function)
