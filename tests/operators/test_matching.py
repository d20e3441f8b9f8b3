"""Where a function's name may mean several operators, its parameters decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kernels.errors import RequestError
from kernels.operators.aten import operator_names
from kernels.operators.matching import operators_of

torch = pytest.importorskip("torch")


def tupled(input: Any, p: Any, train: Any = True) -> Any:
    return input, p


def single(input: Any, p: Any, train: Any = True) -> Any:
    return input


def layer_norm(input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5) -> Any:
    mean = rstd = input
    return input, mean, rstd


def functional_layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5
) -> Any:
    return input


@pytest.mark.parametrize(
    ("name", "function", "operators"),
    [
        ("add", lambda A, B, *, alpha=1: A, "add.Tensor"),
        ("add", lambda input, other, *, alpha=1: input, "add.Tensor"),
        ("eq", lambda self, other: self, "eq.Tensor"),
        ("add_Scalar", lambda self, other, alpha=1: self, "add.Scalar"),
        ("masked_fill", lambda inp, mask, value: inp, "masked_fill.Scalar masked_fill.Tensor"),
        ("masked_fill_", lambda inp, mask, value: inp, "masked_fill_.Scalar masked_fill_.Tensor"),
        ("remainder", lambda a, b: a, "remainder.Scalar remainder.Scalar_Tensor remainder.Tensor"),
        ("isin", lambda a, b, *, assume_unique=False, invert=False: a,
         "isin.Scalar_Tensor isin.Tensor_Scalar isin.Tensor_Tensor"),
        ("true_divide", lambda A, B: A, "div.Scalar div.Tensor"),
        ("true_divide_out", lambda A, B, out: A, "div.out"),
        ("div_mode", lambda A, B, rounding_mode=None: A, "div.Scalar_mode div.Tensor_mode"),
        ("scatter", lambda inp, dim, index, src, reduce=None: inp, "scatter.reduce scatter.src"),
        ("scatter", lambda inp, dim, index, src: inp, "scatter.src"),
        ("where", lambda condition, self, other: self, "where.self"),
        ("where", lambda cond, a, b: a, "where.self"),
        ("arange_start", lambda start, end, step=1, *, dtype=None, layout=None, device=None, pin_memory=None: 0,
         "arange.start arange.start_step"),
        ("bernoulli_", lambda x, p=0.5, *, generator=None: x, "bernoulli_.float"),
        ("std", lambda x, dim=None, *, correction=None, keepdim=False: x, "std.correction"),
        ("std", lambda x, unbiased=True: x, "std"),
        ("var_mean", lambda x, dim=None, *, correction=None, keepdim=False: (x, x), "var_mean.correction"),
        ("group_norm", lambda input, weight, bias, N, C, HxW, group, eps=1e-5: (input, N, C), "native_group_norm"),
        ("group_norm", lambda input, num_groups, weight=None, bias=None, eps=1e-5, cudnn_enabled=True: input,
         "group_norm"),
        ("layer_norm", layer_norm, "native_layer_norm"),
        ("layer_norm", functional_layer_norm, "layer_norm"),
        ("dropout", tupled, "native_dropout"),
        ("dropout", single, "dropout"),
        ("softmax", lambda self, dim, half_to_float=False: self, "_softmax"),
        ("log_softmax", lambda input, dim, dtype=None: input, "log_softmax.int"),
        ("log_softmax", lambda input, dim, half_to_float: input, "_log_softmax"),
        ("batch_norm_backward", lambda grad_out, input, weight=None, running_mean=None, running_var=None,
         save_mean=None, save_invstd=None, train=False, eps=1e-05, output_mask=None: (input, weight, input),
         "native_batch_norm_backward"),
        ("scatter_reduce", lambda inp, dim, index, src, reduce, *, include_self=True: inp, "scatter_reduce.two"),
        ("scatter_reduce_out", lambda inp, dim, index, src, reduce, *, include_self=True, out: inp,
         "scatter_reduce.two_out"),
        ("softmax_out", lambda self, dim, half_to_float, *, out: self, "_softmax.out"),
        ("fmod_scalar_", lambda A, B: A, "fmod_.Scalar"),
        ("round", lambda input, decimals=0: input, "round round.decimals"),
    ],
)  # fmt: skip
def test_a_functions_parameters_tell_which_operators_it_is_for(
    name: str, function: Callable[..., Any], operators: str
) -> None:
    found = operators_of(name, function, operator_names())
    assert sorted(each.qualified for each in found) == operators.split()


@pytest.mark.parametrize("name", ["hadamard_transform", "silu_and_mul", "matmul_int8", "flash_attn_varlen_func", ""])
def test_a_name_of_no_operator_is_none_whatever_the_parameters(name: str) -> None:
    with pytest.raises(RequestError, match="which is not in Torch's ATen"):
        operators_of(name, lambda *args, **options: args, operator_names())


#: Operators whose functions FlagGems' folders name otherwise than Torch, and a call of each.
CALLS: dict[str, Callable[[], Any]] = {
    "add": lambda: X + Y,
    "add_": lambda: X.clone().add_(Y),
    "mul": lambda: X * 2,
    "true_divide": lambda: X / Y,
    "div_mode": lambda: torch.div(X, Y, rounding_mode="floor"),
    "floor_divide": lambda: X // Y,
    "remainder": lambda: X % 2,
    "eq_scalar": lambda: X == 2,
    "ge": lambda: X >= Y,
    "pow_tensor_scalar": lambda: X**2,
    "pow_scalar": lambda: 2**X,
    "pow_tensor_tensor": lambda: X**Y,
    "pow_tensor_scalar_": lambda: X.clone().pow_(2),
    "fill_scalar_": lambda: X.clone().fill_(3),
    "masked_fill": lambda: X.masked_fill(X > 0, 3.0),
    "where_self": lambda: torch.where(X > 0, X, Y),
    "clamp_tensor": lambda: torch.clamp(X, Y, Y + 1),
    "index": lambda: X[torch.tensor([0, 1])],
    "isin": lambda: torch.isin(X, Y),
    "scatter": lambda: X.scatter(0, torch.tensor([[0, 1, 0]]), Y),
    "sum_dim": lambda: X.sum(1),
    "prod_dim": lambda: X.prod(1),
    "mean_dim": lambda: X.mean(1),
    "std": lambda: X.std(1),
    "softmax": lambda: torch.softmax(X, 1),
    "log_softmax": lambda: torch.log_softmax(X, 1),
    "layer_norm": lambda: torch.nn.functional.layer_norm(X, (3,)),
    "group_norm": lambda: torch.nn.functional.group_norm(X[None].transpose(1, 2), 3),
    "vector_norm": lambda: torch.linalg.vector_norm(X),
    "repeat_interleave_self_int": lambda: X.repeat_interleave(2),
    "sort_stable": lambda: X.sort(stable=True),
    "to_copy": lambda: X.to(torch.float64),
}
X = torch.tensor([[1.0, -2.0, 0.5], [3.0, 2.0, -1.0]])
Y = torch.tensor([[2.0, 1.0, 0.5], [3.0, 5.0, 2.0]])


@pytest.mark.parametrize("name", CALLS)
def test_a_function_under_a_vendors_name_runs_for_the_call_that_it_is_for(
    name: str, vendor: Callable[..., str]
) -> None:
    """Each calls the operator before it, so that the result shows whether it got that one's arguments."""
    from kernels.operators import use_vendor_ops
    from kernels.operators.aten import find_operator

    wanted = CALLS[name]()
    operator = find_operator(name, operator_names())
    if name in ("layer_norm", "group_norm"):
        operator = find_operator(f"native_{name}", operator_names())
    elif name == "std":
        operator = find_operator("std_correction", operator_names())
    schema = operator.op()._schema
    takes, gives, keywords = [], [], False
    for each in schema.arguments:
        if each.kwarg_only and not keywords:
            takes.append("*")
            keywords = True
        takes.append(each.name + (f"={each.default_value!r}" if each.has_default_value() else ""))
        gives.append(f"{each.name}={each.name}" if each.kwarg_only else each.name)
    results = [f"result[{index}]" for index in range(len(schema.returns))] if len(schema.returns) > 1 else ["result"]
    ops = f"""
        import torch
        __all__ = [{name!r}]
        called = []
        def {name}({", ".join(takes)}):
            called.append({name!r})
            result = torch.ops.aten.{operator.base}({", ".join(gives)})
            return {", ".join(results)}
    """
    with torch.no_grad(), use_vendor_ops(vendor(ops)) as enabled:
        found = CALLS[name]()
        assert enabled.unused == ()
    from kernels.backends import get_backend
    from kernels.backends.plugins.vendor_folder import vendor_module

    assert vendor_module(get_backend("acme"), "ops").called[0] == name  # type: ignore[union-attr]
    torch.testing.assert_close(found, wanted)
