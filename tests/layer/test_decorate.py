"""Marks on classes, functions that are layers, and functions attached to modules."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from kernels.layer import (
    replace_kernel_forward_from_hub,
    use_kernel_forward_from_hub,
    use_kernel_func_from_hub,
    use_kernelized_func,
)
from kernels.layer.layer import function_layer


@use_kernel_forward_from_hub("triple")
def triple(x: torch.Tensor, times: int = 3, *, plus: float = 0.0) -> torch.Tensor:
    """Three times as much."""
    return x * times + plus


@use_kernelized_func(triple)
class Holder(nn.Module):
    def __init__(self, size: int = 2) -> None:
        """Hold weights."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return triple(x) * self.weight


def test_a_class_keeps_its_identity_and_gets_the_marks_that_others_read() -> None:
    class Norm(nn.Module):
        pass

    assert use_kernel_forward_from_hub("Norm")(Norm) is Norm
    assert Norm.kernel_layer_name == "Norm"  # type: ignore[attr-defined]
    assert Norm().kernel_condition(None) is True


def test_a_condition_is_called_with_the_module_not_bound_to_it() -> None:
    class Norm(nn.Module):
        pass

    replace_kernel_forward_from_hub(Norm, "Norm", condition=lambda module: module.training)
    module = Norm().eval()
    assert module.kernel_condition(module) is False


def test_a_subclass_inherits_the_mark_and_can_replace_it() -> None:
    class Norm(nn.Module):
        pass

    replace_kernel_forward_from_hub(Norm, "Norm", condition=lambda module: False)

    class Same(Norm):
        pass

    @use_kernel_forward_from_hub("Other")
    class Other(Norm):
        pass

    assert (Same.kernel_layer_name, Same().kernel_condition(None)) == ("Norm", False)
    assert (Other.kernel_layer_name, Other().kernel_condition(None)) == ("Other", True)


def test_a_wrapped_function_is_called_and_looks_like_the_function() -> None:
    assert isinstance(triple, nn.Module)
    assert triple(torch.ones(1), plus=1.0).item() == 4
    assert triple.__name__ == triple.__qualname__ == "triple"
    assert triple.__doc__ == "Three times as much."
    assert triple.__module__ == __name__
    assert list(inspect.signature(triple).parameters) == ["x", "times", "plus"]
    assert inspect.unwrap(triple) is triple.__wrapped__
    assert type(triple).kernel_layer_name == "triple"  # type: ignore[attr-defined]
    assert not list(triple.parameters())


def test_attributes_of_a_function_are_found_on_the_wrapped_one() -> None:
    def plain(x: int) -> int:
        return x

    plain.can_torch_compile = True  # type: ignore[attr-defined]
    plain.note = "kept"  # type: ignore[attr-defined]
    plain.training = "not a mode"  # type: ignore[attr-defined]
    wrapped = use_kernel_forward_from_hub("plain")(plain)
    assert (wrapped.note, wrapped.can_torch_compile, wrapped.training) == ("kept", True, True)


def test_a_copy_of_a_wrapped_function_is_itself() -> None:
    assert copy.copy(triple) is triple
    assert copy.deepcopy(triple) is triple
    assert copy.deepcopy({"f": [triple]})["f"][0] is triple


def test_a_wrapped_function_pickles_by_reference(sys_module: str) -> None:
    module = sys.modules[sys_module]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(module.wrapped, protocol)) is module.wrapped
    held = nn.ModuleList([module.wrapped])
    buffer = io.BytesIO()
    torch.save(held, buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=False)[0] is module.wrapped


@pytest.fixture
def sys_module(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that can be imported by name, with a wrapped function in it."""
    name = "module_with_a_wrapped_function"
    (tmp_path / f"{name}.py").write_text(
        "from kernels import use_kernel_forward_from_hub\n"
        "@use_kernel_forward_from_hub('wrapped')\n"
        "def wrapped(x):\n    return x\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__(name)
    yield name
    del sys.modules[name]


def test_a_local_function_cannot_be_pickled_as_ever() -> None:
    @use_kernel_forward_from_hub("local")
    def local(x: int) -> int:
        return x

    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(local)


def test_functions_are_attached_under_their_layer_name_and_are_no_submodules() -> None:
    holder = Holder(3)
    assert holder._kernel_funcs == {"triple": triple}
    assert [name for name, _ in holder.named_modules()] == [""]
    assert list(holder.state_dict()) == ["weight"]
    assert list(inspect.signature(Holder).parameters) == ["size"]
    assert Holder.__init__.__doc__ == "Hold weights."


def test_a_deep_copy_holds_the_same_function() -> None:
    assert copy.deepcopy(Holder())._kernel_funcs["triple"] is triple


def test_a_subclass_may_attach_more() -> None:
    @use_kernel_forward_from_hub("same")
    def same(x: torch.Tensor) -> torch.Tensor:
        return x

    @use_kernelized_func(same)
    class More(Holder):
        pass

    assert set(More()._kernel_funcs) == {"triple", "same"}
    assert set(Holder()._kernel_funcs) == {"triple"}


def test_a_wrapped_function_as_an_attribute_is_a_submodule() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = triple

    assert dict(Model().named_modules())["act"] is triple


def test_the_function_s_layer_compares_like_a_method_and_is_made_once() -> None:
    def scale(self: int, x: int, /, y: int) -> int:
        return self * x * y

    layer = function_layer(scale)
    assert function_layer(scale) is layer
    kinds = [parameter.kind.name for parameter in inspect.signature(layer.forward).parameters.values()]
    assert kinds == ["POSITIONAL_ONLY", "POSITIONAL_ONLY", "POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD"]
    assert layer()(2, 3, y=4) == 24


def test_the_old_name_for_functions_still_works_and_says_so() -> None:
    with pytest.warns(DeprecationWarning, match="use_kernel_forward_from_hub") as caught:
        decorator = use_kernel_func_from_hub("old")
    assert caught[0].filename == __file__

    @decorator
    def old(x: int) -> int:
        return x + 1

    assert old(1) == 2
    assert type(old).kernel_layer_name == "old"


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: use_kernel_forward_from_hub(nn.Linear), TypeError, "`layer_name`: expected a string"),
        (
            lambda: use_kernel_forward_from_hub("x", condition="never"),
            TypeError,
            "`condition`: expected a function or None",
        ),
        (lambda: use_kernel_forward_from_hub("x")(nn.Linear(1, 1)), TypeError, "a class or a function"),
        (
            lambda: replace_kernel_forward_from_hub("nn.Linear", "x"),
            TypeError,
            "`cls`: expected a class",
        ),
        (lambda: use_kernelized_func(len), ValueError, "'len' is not decorated"),
        (lambda: use_kernelized_func(triple)(triple), TypeError, "expected a class"),
    ],
)
def test_a_mark_in_the_wrong_place_is_refused(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()


def test_marking_a_class_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "from kernels import use_kernel_forward_from_hub, register_kernel_mapping, LayerRepository, Mode\n"
        "use_kernel_forward_from_hub('Norm')(type('Norm', (), {}))\n"
        "norm = LayerRepository('org/norm', layer_name='Norm', version=1)\n"
        "register_kernel_mapping({'Norm': {'cuda': {Mode.INFERENCE: norm}}})\n"
        "sys.exit('torch' in sys.modules or 'huggingface_hub' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
