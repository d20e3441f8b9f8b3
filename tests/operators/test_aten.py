"""A function's name, or an operator's, means one ATen operator."""

from __future__ import annotations

import pytest

from kernels.errors import RequestError
from kernels.operators.aten import Operator, check_dispatch_key, find_operator, operator_names

pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("text", "operator"),
    [
        ("silu", "aten::silu"),
        ("silu_", "aten::silu_"),
        ("aten::silu", "aten::silu"),
        ("add_Tensor", "aten::add.Tensor"),
        ("add.Tensor", "aten::add.Tensor"),
        ("aten::add.Tensor", "aten::add.Tensor"),
        ("add__Tensor", "aten::add_.Tensor"),
        ("_softmax", "aten::_softmax"),
        ("max_dim_max", "aten::max.dim_max"),
        ("pow_Tensor_Scalar", "aten::pow.Tensor_Scalar"),
        ("__and___Tensor", "aten::__and__.Tensor"),
        # As in FlagGems' folders
        ("add", "aten::add.Tensor"),
        ("add_", "aten::add_.Tensor"),
        ("eq_scalar", "aten::eq.Scalar"),
        ("fill_scalar", "aten::fill.Scalar"),
        ("fill_scalar_", "aten::fill_.Scalar"),
        ("fill_tensor_out", "aten::fill.Tensor_out"),
        ("pow_scalar", "aten::pow.Scalar"),
        ("pow_tensor_scalar", "aten::pow.Tensor_Scalar"),
        ("pow_tensor_scalar_", "aten::pow_.Scalar"),
        ("pow_tensor_tensor_", "aten::pow_.Tensor"),
        ("bitwise_and_scalar_tensor", "aten::bitwise_and.Scalar_Tensor"),
        ("where_scalar_other", "aten::where.ScalarOther"),
        ("normal_float_tensor", "aten::normal.float_Tensor"),
        ("repeat_interleave_self_tensor", "aten::repeat_interleave.self_Tensor"),
        ("sum_dim", "aten::sum.dim_IntList"),
        ("sum_dim_out", "aten::sum.IntList_out"),
        ("greater_out", "aten::greater.Tensor_out"),
        ("prod_dim", "aten::prod.dim_int"),
        ("div_mode", "aten::div.Tensor_mode"),
        ("floor_divide_", "aten::floor_divide_.Tensor"),
        ("isin", "aten::isin.Tensor_Tensor"),
        ("scatter", "aten::scatter.src"),
        ("softmax", "aten::_softmax"),
        ("softmax_backward", "aten::_softmax_backward_data"),
        ("to_copy", "aten::_to_copy"),
        ("vector_norm", "aten::linalg_vector_norm"),
        ("layer_norm_backward", "aten::native_layer_norm_backward"),
    ],
)
def test_a_name_means_an_operator(text: str, operator: str) -> None:
    found = find_operator(text, operator_names())
    assert str(found) == operator
    assert found.op().name() == operator


def test_every_operator_of_torch_has_a_name_that_means_no_other() -> None:
    names = operator_names()
    operators = [Operator(base, overload) for base in names for overload in names[base]]
    assert len(operators) > 1000
    assert [each for each in operators if find_operator(each.function_name, names) != each] == []
    assert [each for each in operators if find_operator(str(each), names) != each] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("siluu", "'siluu', which is not in Torch's ATen; similar names are silu"),
        ("add.Tensr", "aten::add has no overload 'Tensr'; it has aten::add.Scalar, .*aten::add.Tensor"),
        ("aten::div", r"no default overload; it has aten::div\.Scalar"),
        ("to", r"aten::to has no default overload; it has to_device, to_dtype, .*"),
        ("acme::silu", "'acme::silu', which is not in Torch's ATen"),
        ("", "is '', which"),
        ("aten::", "is 'aten::', which"),
        ("aten::.Tensor", "which is not in Torch's ATen"),
        ("x" * 1000, "x{200}', which is not in Torch's ATen.$"),
    ],
)
def test_a_name_that_means_none_is_refused_with_what_is_near(text: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        find_operator(text, operator_names())


def test_an_operator_that_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match="`operator`: expected a name such as 'aten::silu', got 7"):
        find_operator(7, {})  # type: ignore[arg-type]


def test_a_long_list_of_overloads_is_cut() -> None:
    with pytest.raises(RequestError, match=r"add_a0, .*, add_a11 and 8 more\.$"):
        find_operator("add", {"add": [f"a{index}" for index in range(20)]})


@pytest.mark.parametrize("key", ["CPU", "CUDA", "XPU", "MPS", "PrivateUse1"])
def test_a_backends_dispatch_key_is_one(key: str) -> None:
    check_dispatch_key(key, "backend 'acme'")
