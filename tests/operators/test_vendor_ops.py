"""A vendor's functions stand in for ATen operators, and leave no trace when they go."""

from __future__ import annotations

import gc
import re
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from logged import warned
from vendor_folders import FolderBackend, write_folder

from kernels.backends import register_backend, unregister_backend
from kernels.errors import RequestError
from kernels.operators import ActiveOp, EnabledOps, active_ops, dispatch, enable, enable_vendor_ops, use_vendor_ops

torch = pytest.importorskip("torch")

Vendor = Callable[..., str]

SILU = """
    import torch
    __all__ = ["silu"]
    def silu(self):
        return torch.full_like(self, {value})
"""


def silu(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x)


def first(x: torch.Tensor) -> float:
    return silu(x)[0].item()


X = torch.tensor([1.0, -2.0, 0.5])
REFERENCE = X * torch.sigmoid(X)


def is_as_before() -> bool:
    return active_ops() == [] and torch.allclose(silu(X), REFERENCE)


def test_a_function_runs_in_place_of_its_operator_until_the_block_ends(vendor: Vendor) -> None:
    with use_vendor_ops(vendor(SILU.format(value=7.0))) as enabled:
        assert first(X) == 7
        assert enabled.operators == ("aten::silu",)
        assert torch.nn.SiLU()(X)[0] == 7
    assert is_as_before()


def test_what_is_active_is_listed_with_where_it_comes_from(vendor: Vendor, tmp_path: Path) -> None:
    with use_vendor_ops(vendor(SILU.format(value=7.0), vendor="Acme Corporation")):
        assert active_ops() == [ActiveOp("aten::silu", "CPU", "silu", f"vendor Acme Corporation ({tmp_path / 'acme'})")]


@pytest.mark.parametrize("name", ["acme", "Acme Corporation", "ac"], ids=["own", "vendor", "token"])
def test_a_backend_is_found_by_its_names_and_by_its_vendor(vendor: Vendor, name: str) -> None:
    vendor(SILU.format(value=7.0), vendor="Acme Corporation", token="ac")
    with use_vendor_ops(name):
        assert first(X) == 7


def test_an_error_in_the_block_restores_everything(vendor: Vendor) -> None:
    with pytest.raises(ZeroDivisionError), use_vendor_ops(vendor(SILU.format(value=7.0))):
        1 / 0  # noqa: B018
    assert is_as_before()


def test_enabled_functions_stay_until_they_are_disabled(vendor: Vendor) -> None:
    enabled = enable_vendor_ops(vendor(SILU.format(value=7.0)))
    assert first(X) == 7
    enabled.disable()
    enabled.disable()
    assert is_as_before()
    assert repr(enabled) == "EnabledOps(aten::silu)"


def test_the_inner_of_two_vendors_wins_and_the_outer_returns(vendor: Vendor) -> None:
    vendor(SILU.format(value=1.0), "outer")
    vendor(SILU.format(value=2.0), "inner")
    with use_vendor_ops("outer"):
        with use_vendor_ops("inner"):
            assert first(X) == 2
            assert [op.origin.split(" ")[1] for op in active_ops()] == ["outer", "inner"]
        assert first(X) == 1
    assert is_as_before()


def test_one_vendor_twice_is_there_until_the_last_one_goes(vendor: Vendor) -> None:
    vendor(SILU.format(value=1.0))
    with use_vendor_ops("acme"):
        with use_vendor_ops("acme"):
            pass
        assert first(X) == 1
    assert is_as_before()


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_functions_may_be_disabled_in_any_order(vendor: Vendor, order: tuple[int, ...]) -> None:
    enabled: dict[int, EnabledOps] = {}
    for index in range(3):
        enabled[index] = enable_vendor_ops(vendor(SILU.format(value=float(index + 1)), f"vendor_{'abc'[index]}"))
    for index in order:
        enabled.pop(index).disable()
        if enabled:
            assert first(X) == max(enabled) + 1
    assert is_as_before()


def test_torchs_warning_about_overridden_kernels_is_not_shown(vendor: Vendor) -> None:
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with use_vendor_ops(vendor(SILU.format(value=7.0))):
                assert first(X) == 7
    finally:
        torch.set_warn_always(False)


def test_another_dispatch_keys_function_leaves_cpu_tensors_alone(vendor: Vendor) -> None:
    with use_vendor_ops(vendor(SILU.format(value=7.0), dispatch_key="PrivateUse1")):
        assert torch.allclose(silu(X), REFERENCE)
        assert active_ops()[0].dispatch_key == "PrivateUse1"
    assert is_as_before()


def test_functions_hold_on_every_thread(vendor: Vendor) -> None:
    found: list[float] = []
    with use_vendor_ops(vendor(SILU.format(value=7.0))):
        thread = threading.Thread(target=lambda: found.append(first(X)))
        thread.start()
        thread.join()
    assert found == [7]


def test_threads_that_enable_and_disable_at_once_leave_nothing_behind(vendor: Vendor) -> None:
    names = [vendor(SILU.format(value=float(index)), f"vendor_{'abcd'[index]}") for index in range(4)]
    start, errors = threading.Barrier(len(names)), []

    def work(name: str) -> None:
        start.wait()
        try:
            for _ in range(20):
                with use_vendor_ops(name):
                    silu(X)
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert is_as_before()


def test_a_kernel_that_left_stays_in_memory_for_calls_that_are_on_their_way_to_it(
    vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "_retired", deque(maxlen=1))
    vendor(SILU.format(value=1.0))

    def toggled() -> weakref.ref[object]:
        with use_vendor_ops("acme"):
            return weakref.ref(*dispatch._slots.values())

    one = toggled()
    gc.collect()
    assert (one() is not None) is hasattr(torch.library, "get_kernel")
    toggled()
    gc.collect()
    assert one() is None
    assert is_as_before()


def test_operators_leave_with_their_backend(tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder = write_folder(tmp_path / name, ops=SILU.format(value=len(name)))
        register_backend(FolderBackend(folder, name=name, device_type=name))
    enabled = enable_vendor_ops("one")
    enable_vendor_ops("two")
    unregister_backend("one")
    assert [op.origin for op in active_ops()] == [f"vendor two ({tmp_path / 'two'})"]
    unregister_backend("two")
    assert is_as_before()
    enabled.disable()
    assert is_as_before()


def test_a_backend_that_leaves_while_its_operators_are_enabled_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_backend(FolderBackend(write_folder(tmp_path / "acme", ops=SILU.format(value=1.0))))

    def insert(overrides: list[dispatch.Override]) -> None:
        unregister_backend("acme")
        dispatch.insert(overrides)

    monkeypatch.setattr(enable, "insert", insert)
    with pytest.raises(RequestError, match="backend 'acme' was unregistered while its operators were enabled"):
        enable_vendor_ops("acme")
    assert is_as_before()


@pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="this Torch cannot call the kernel beneath")
def test_a_registration_beneath_that_is_taken_back_is_passed_over(vendor: Vendor) -> None:
    name = vendor("""
        import torch
        __all__ = ["silu"]
        def silu(self):
            return torch.nn.functional.silu(self) + 1
    """)
    library = torch.library.Library("aten", "IMPL")
    library.impl("silu", lambda x: x * 0 + 7, "CPU")
    with use_vendor_ops(name):
        assert first(X) == 8
        library._destroy()
        for _ in range(2):
            torch.testing.assert_close(silu(X), REFERENCE + 1)
    assert is_as_before()


def test_another_error_of_the_operator_beneath_is_its_own(vendor: Vendor) -> None:
    with use_vendor_ops(vendor(AGAIN)), pytest.raises(RuntimeError, match="size of tensor a"):
        torch.mul(torch.ones(2), torch.ones(3))


OPERATORS = """
    import torch
    __all__ = ["silu", "silu_", "add_Tensor", "add__Tensor", "mm", "mean_dim", "zeros"]
    called = []
    def silu(self):
        called.append("silu")
        return self * torch.sigmoid(self)
    def silu_(self):
        called.append("silu_")
        return self.mul_(torch.sigmoid(self))
    def add_Tensor(self, other, *, alpha=1):
        called.append("add")
        return torch.sub(self, other, alpha=-alpha)
    def add__Tensor(self, other, *, alpha=1):
        called.append("add_")
        return self.sub_(other, alpha=-alpha)
    def mm(A, B):
        called.append("mm")
        return (A.unsqueeze(-1) * B).sum(1)
    def mean_dim(inp, dim, keepdim=False, *, dtype=None):
        called.append("mean")
        return inp.sum(dim, keepdim) / inp.shape[dim[0]]
    def zeros(size, *, dtype=None, layout=None, device=None, pin_memory=None):
        called.append("zeros")
        return torch.ones(size, dtype=dtype, device=device).mul(0)
"""


def run(function: Callable[..., torch.Tensor], *sizes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    inputs = [torch.randn(size, requires_grad=True) for size in sizes]
    result = function(*inputs)
    if result.requires_grad:
        result.square().sum().backward()
    return [result.detach(), *(each.grad for each in inputs if each.grad is not None)]


@pytest.mark.parametrize(
    ("function", "sizes", "called"),
    [
        (silu, [(3, 4)], "silu"),
        (lambda x: torch.nn.functional.silu(x * 1, inplace=True), [(3, 4)], "silu_"),
        (torch.mm, [(3, 4), (4, 5)], "mm"),
        (lambda x, y: x + y, [(3, 4), (3, 4)], "add"),
        (lambda x, y: torch.add(x, y, alpha=3), [(3, 4), (4,)], "add"),
        (lambda x, y: (x * 1).add_(y), [(3, 4), (3, 4)], "add_"),
        (lambda x: x.mean(1), [(3, 4)], "mean"),
        (lambda x: x.mean(1, keepdim=True), [(3, 4)], "mean"),
        (lambda: torch.zeros(2, 3, dtype=torch.float64), [], "zeros"),
    ],
)
def test_results_and_gradients_are_those_of_the_operator(
    vendor: Vendor, function: Callable[..., torch.Tensor], sizes: list[tuple[int, ...]], called: str
) -> None:
    wanted = run(function, *sizes)
    with use_vendor_ops(vendor(OPERATORS)):
        found = run(function, *sizes)
        with torch.inference_mode():
            function(*(torch.randn(size) for size in sizes))
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
    calls = called_by("acme")
    assert called in calls
    assert is_as_before()


def called_by(name: str) -> list[str]:
    from kernels.backends import get_backend
    from kernels.backends.plugins.vendor_folder import vendor_module

    module = vendor_module(get_backend(name), "ops")
    assert module is not None
    called: list[str] = module.called
    return called


def test_an_operator_called_within_its_own_function_is_the_one_before(vendor: Vendor) -> None:
    again = """
        import torch
        __all__ = ["silu"]
        def silu(self):
            return torch.nn.functional.silu(self) + {value}
    """
    vendor(again.format(value=1), "outer")
    vendor(again.format(value=10), "inner")
    with use_vendor_ops("outer"):
        torch.testing.assert_close(silu(X), REFERENCE + 1)
        with use_vendor_ops("inner"):
            torch.testing.assert_close(silu(X), REFERENCE + 11)
            x = X.clone().requires_grad_()
            silu(x).sum().backward()
            assert x.grad is not None
    assert is_as_before()


AGAIN = """
    import torch
    __all__ = ["mul_Tensor", "add_Tensor", "div_Tensor", "pow_Tensor_Tensor", "eq_Tensor", "mul__Tensor"]
    def mul_Tensor(self, other): return torch.mul(self, other)
    def mul__Tensor(self, other): return self.mul_(other)
    def add_Tensor(self, other, *, alpha=1): return torch.add(self, other, alpha=alpha)
    def div_Tensor(self, other): return torch.div(self, other)
    def pow_Tensor_Tensor(self, exponent): return torch.pow(self, exponent)
    def eq_Tensor(self, other): return torch.eq(self, other)
"""


@pytest.mark.parametrize("number", [3, 0.1, True, 0.1 + 2j])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.bool])
@pytest.mark.parametrize("shape", [(), (5,)])
def test_a_number_in_place_of_a_tensor_means_the_same_within_a_function(
    vendor: Vendor, number: complex, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    x = torch.full(shape, 1.7).to(dtype)
    functions = [lambda: x * number, lambda: number * x, lambda: x + number, lambda: x / number, lambda: x == number]
    if not (dtype == torch.bool and number is True):
        functions.append(lambda: torch.add(x, number, alpha=2))
    wanted = [function() for function in functions]
    with use_vendor_ops(vendor(AGAIN)):
        found = [function() for function in functions]
    # The nearest value of a narrow type, not one beside it.
    exact = {"rtol": 0, "atol": 0} if shape or dtype != torch.bfloat16 else {"rtol": 0.01, "atol": 0}
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, check_dtype=True, **exact)


def test_a_number_changes_a_tensor_in_place_and_is_derived(vendor: Vendor) -> None:
    with use_vendor_ops(vendor(AGAIN)):
        x = torch.ones(3, requires_grad=True)
        (x * 2.5).mul_(2).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [5, 5, 5]


def test_without_torchs_get_kernel_an_operator_within_its_own_function_is_a_clear_error(
    vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.library, "get_kernel", raising=False)
    name = vendor("""
        import torch
        __all__ = ["silu"]
        def silu(self):
            return torch.nn.functional.silu(self)
    """)
    with (
        use_vendor_ops(name),
        pytest.raises(RecursionError, match="aten::silu is called by the function that overrides"),
    ):
        silu(X)
    assert is_as_before()


def test_an_operator_without_any_kernel_beneath_says_so(vendor: Vendor) -> None:
    from kernels.operators.aten import Operator
    from kernels.operators.dispatch import _previous

    # No backend of this Torch has it: `linear_backward` is for MPS and nested tensors.
    with pytest.raises(NotImplementedError, match="aten::linear_backward has no kernel under CPU"):
        _previous(Operator("linear_backward"), "CPU", False)(None)


def test_a_functions_own_error_comes_through_and_the_next_call_works(vendor: Vendor) -> None:
    name = vendor("""
        import torch
        __all__ = ["silu"]
        def silu(self):
            if self.shape[0] == 1:
                raise ArithmeticError("too small")
            return torch.full_like(self, 7.0)
    """)
    with use_vendor_ops(name):
        with pytest.raises(ArithmeticError, match="too small"):
            silu(X[:1])
        assert first(X) == 7


# include and exclude

THREE = """
    import torch
    __all__ = ["silu", "add_Tensor", "mm"]
    def silu(self): return self
    def add_Tensor(self, other, *, alpha=1): return self
    def mm(self, mat2): return self
"""


@pytest.mark.parametrize(
    ("arguments", "operators"),
    [
        ({}, ["aten::silu", "aten::add.Tensor", "aten::mm"]),
        ({"include": ["mm", "silu"]}, ["aten::silu", "aten::mm"]),
        ({"include": ("aten::add.Tensor",)}, ["aten::add.Tensor"]),
        ({"exclude": {"add_Tensor"}}, ["aten::silu", "aten::mm"]),
        ({"include": iter(["mm", "silu"]), "exclude": iter(["aten::mm"])}, ["aten::silu"]),
        ({"include": []}, []),
    ],
)
def test_functions_are_chosen_by_their_names_or_their_operators(
    vendor: Vendor, arguments: dict[str, list[str]], operators: list[str]
) -> None:
    with use_vendor_ops(vendor(THREE), **arguments) as enabled:
        assert list(enabled.operators) == operators


def test_a_function_left_out_is_not_looked_at(vendor: Vendor) -> None:
    name = vendor("""
        __all__ = ["silu", "frobnicate"]
        def silu(self): return self
        def frobnicate(): ...
    """)
    with use_vendor_ops(name, exclude=["frobnicate"]) as enabled:
        assert enabled.operators == ("aten::silu",)


def test_an_operator_that_a_functions_parameters_tell_is_chosen_by_its_name(vendor: Vendor) -> None:
    name = vendor("""
        __all__ = ["masked_fill", "layer_norm", "silu"]
        def masked_fill(inp, mask, value): return inp
        def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5): return input, input, input
        def silu(self): return self
    """)
    with use_vendor_ops(name, include=["aten::native_layer_norm", "aten::masked_fill.Scalar"]) as enabled:
        assert enabled.operators == (
            "aten::masked_fill.Tensor", "aten::masked_fill.Scalar", "aten::native_layer_norm",
        )  # fmt: skip
    with use_vendor_ops(name, exclude=["layer_norm", "aten::masked_fill.Tensor"]) as enabled:
        assert enabled.operators == ("aten::silu",)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (
            {"include": ["gelu"]},
            RequestError,
            r"`include` has 'gelu', which vendor acme .* it offers silu, add",
        ),
        ({"exclude": ["aten::gelu"]}, RequestError, "`exclude` has 'aten::gelu'"),
        ({"include": ["nonsense"]}, RequestError, "`include` has 'nonsense'"),
        ({"include": "silu"}, TypeError, "`include`: expected a list .*, got 'silu'"),
        ({"exclude": [7]}, TypeError, r"`exclude`: expected a list .*, got \[7\]"),
        ({"exclude": 7}, TypeError, "`exclude`: expected a list .*, got 7"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(
    vendor: Vendor, arguments: dict[str, list[str]], kind: type[Exception], message: str
) -> None:
    vendor(THREE)
    with pytest.raises(kind, match=message):
        enable_vendor_ops("acme", **arguments)
    assert is_as_before()


# What cannot be


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ("", r"`ops` of vendor acme .* has no `__all__`: a list of the functions' names, such as __all__ = .\"silu\""),
        ("__all__ = 'silu'", "is 'silu'; expected a list"),
        ("__all__ = [1]", r"is \[1.*\]; expected a list"),
        ("1 / 0", "/acme: its `ops` cannot be imported: ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(3)", "its `ops` cannot be imported: SystemExit: 3"),
        ("from . import nothing", "its `ops` cannot be imported: ImportError"),
    ],
)  # fmt: skip
def test_operators_that_cannot_be_read_are_refused_and_nothing_changes(vendor: Vendor, ops: str, message: str) -> None:
    vendor(ops)
    with pytest.raises(RequestError, match=message):
        enable_vendor_ops("acme")
    assert is_as_before()


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ("__all__ = ['silu']", "names 'silu', which does not exist"),
        ("__all__ = ['silu']\ndef __getattr__(name): raise OSError('no')", "names 'silu', which fails: no"),
        ("__all__ = ['silu']\ndef __getattr__(name): raise SystemExit('no')", "names 'silu', which fails: no"),
        (
            "__all__ = ['add_Tensor', 'add.Tensor']\ndef add_Tensor(a, b, *, alpha=1): ...\n"
            "globals()['add.Tensor'] = add_Tensor",
            r"`add_Tensor` and `add.Tensor` .* are both aten::add.Tensor",
        ),
        ("__all__ = ['siluu']\ndef siluu(self): ...", r"`siluu` in `ops` of .*'siluu', which .* similar names are"),
        ("__all__ = ['detach']\ndef detach(self): ...", "cannot override aten::detach, which returns views"),
        ("__all__ = ['gelu']\ndef gelu(x, *, approximate='tanh'): ...", "`approximate` has the default 'tanh'"),
        ("__all__ = ['addmm']\ndef addmm(mat1, mat2, self): ...", "the parameters of aten::addmm in another order"),
        ("__all__ = ['silu']\nsilu = 7", r"`silu` of vendor .* is 7; expected a function"),
        ("__all__ = ['silu']\nclass silu: ...", "expected a function, or a subclass of torch.autograd"),
        ("__all__ = ['silu']\ndef silu(): ...", "too many positional arguments.\n  operator: aten::silu\\(Tensor self"),
    ],
)  # fmt: skip
def test_a_function_that_replaces_no_operator_is_left_out_with_the_reason(
    vendor: Vendor, ops: str, message: str
) -> None:
    name = vendor(f"{ops}\ndef mm(self, mat2): return self\n__all__ = ['mm', *__all__]")
    with warned("replace no operator: "), use_vendor_ops(name) as enabled:
        assert "aten::mm" in enabled.operators
        [unused] = enabled.unused
        assert re.search(message, unused.reason)
        assert unused.function not in [op.function for op in active_ops()]
    with pytest.raises(RequestError, match=message):
        enable_vendor_ops(name, include=[unused.function])
    vendor(f"{ops}\n__all__ = [{unused.function!r}]", "alone")
    if "add.Tensor" not in ops:
        with pytest.raises(RequestError, match=message):
            enable_vendor_ops("alone")
    assert is_as_before()


def test_a_function_that_is_listed_twice_is_one(vendor: Vendor) -> None:
    with use_vendor_ops(vendor("__all__ = ['silu', 'silu']\ndef silu(self): ...")) as enabled:
        assert enabled.operators == ("aten::silu",)
        assert enabled.unused == ()


def test_without_a_list_all_functions_are_meant(vendor: Vendor) -> None:
    ops = "from math import floor\ndef silu(self): ...\ndef mm(a, b): ...\ndef _helper(): ...\nX = 7"
    with use_vendor_ops(vendor(ops)) as enabled:
        assert enabled.operators == ("aten::silu", "aten::mm")


def test_a_folder_says_itself_which_of_its_functions_are_not_used(vendor: Vendor, tmp_path: Path) -> None:
    name = vendor(THREE)
    (tmp_path / name / "__init__.py").write_text("CUSTOMIZED_UNUSED_OPS = ('silu', 'sort')\n")
    with use_vendor_ops(name) as enabled:
        assert enabled.operators == ("aten::add.Tensor", "aten::mm")
        assert [each.function for each in enabled.unused] == ["silu"]
        assert "CUSTOMIZED_UNUSED_OPS" in enabled.unused[0].reason
    with use_vendor_ops(name, include=["silu"]) as enabled:
        assert enabled.operators == ("aten::silu",)


def test_a_call_that_a_function_does_not_take_goes_to_the_kernel_before(vendor: Vendor) -> None:
    x, y = torch.ones(2), torch.ones(2)
    with use_vendor_ops(vendor("__all__ = ['add']\ndef add(x, y): return x * 0 + 7")) as enabled:
        assert enabled.operators == ("aten::add.Tensor",)
        assert (x + y).tolist() == [7, 7]
        assert torch.add(x, y, alpha=3).tolist() == [4, 4]
    assert is_as_before()


def test_a_backend_without_operators_says_where_they_would_be(tmp_path: Path) -> None:
    register_backend(FolderBackend(write_folder(tmp_path / "empty")))
    try:
        with pytest.raises(RequestError, match=r"backend 'acme' has no operators: .*empty has no `ops`"):
            enable_vendor_ops("acme")
    finally:
        unregister_backend("acme")


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("xpu", RequestError, "backend 'xpu' has no vendor folder"),
        ("nobody", RequestError, "expected one of .*, got 'nobody'"),
        (7, TypeError, "`name`: expected the name of a backend or vendor, got 7"),
    ],
)
def test_a_vendor_that_is_none_is_refused(name: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        enable_vendor_ops(name)


def test_a_vendor_with_two_folders_must_be_told_apart(vendor: Vendor) -> None:
    vendor(SILU.format(value=1.0), "one", vendor="Acme Corporation")
    vendor(SILU.format(value=2.0), "two", vendor="Acme Corporation")
    with pytest.raises(RequestError, match="the vendor of one, two; name one of these"):
        enable_vendor_ops("Acme Corporation")


@pytest.mark.parametrize("key", ["Nonsense", "AutogradCPU", "CompositeImplicitAutograd"])
def test_a_dispatch_key_that_is_no_backends_is_refused(vendor: Vendor, key: str) -> None:
    vendor(SILU.format(value=1.0), dispatch_key=key)
    with pytest.raises(
        RequestError, match=f"`dispatch_key` of backend 'acme': expected one of CPU, .*CUDA.*, got '{key}'"
    ):
        enable_vendor_ops("acme")


def test_what_torch_refuses_leaves_the_operators_before_it_as_they_were(
    vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    impl = torch.library.Library.impl

    def refuse(self: object, name: str, *args: object, **kwargs: object) -> None:
        if name == "mm":
            raise RuntimeError("not this one")
        impl(self, name, *args, **kwargs)

    monkeypatch.setattr(torch.library.Library, "impl", refuse)
    vendor(THREE)
    with pytest.raises(RequestError, match=r"does not let mm of vendor acme .* override aten::mm .*: not this one"):
        enable_vendor_ops("acme")
    assert is_as_before()


def test_an_experimental_backends_operators_say_so(vendor: Vendor) -> None:
    name = vendor(SILU.format(value=1.0), "acme_for_tests", experimental=True)
    with warned("Backend 'acme_for_tests' .* is experimental"), use_vendor_ops(name):
        pass


def test_where_a_backend_has_a_kernel_a_function_may_stand_in_for_a_decomposed_operator_too(vendor: Vendor) -> None:
    library = torch.library.Library("aten", "IMPL")
    library.impl("softmax.int", lambda x, dim, dtype=None: torch._softmax(x, dim, False), "CPU")
    try:
        ops = "__all__ = ['softmax_int']\ndef softmax_int(x, dim, dtype=None): return x * 0"
        with use_vendor_ops(vendor(ops)):
            assert torch.softmax(X, 0).tolist() == [0, 0, 0]
        assert torch.softmax(X, 0).sum() == pytest.approx(1)
    finally:
        library._destroy()


def test_several_leave_together(vendor: Vendor) -> None:
    with ExitStack() as stack:
        for index in range(3):
            stack.enter_context(use_vendor_ops(vendor(SILU.format(value=1.0), f"vendor_{'abc'[index]}")))
        assert len(active_ops()) == 3
    assert is_as_before()
