"""The error of a kernel's forward says which module and which kernel it is."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from layer_models import Block, Gives, KernelAct, KernelNorm, KernelScale, Model, Norm, X, registered
from torch import nn
from torch._dynamo.utils import counters

from kernels.layer import LayerRepository, Mode, kernelize, unkernelize, use_kernel_forward_from_hub

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes before Python 3.11")

INFERENCE = Mode.INFERENCE
THREE = torch.ones(3)


class Picky(nn.Module):
    can_torch_compile = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 3:
            raise Three
        return x * self.weight + 100


class OtherNames(nn.Module):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden * self.weight


class Three(ValueError):
    def __init__(self) -> None:
        super().__init__("three")
        RAISED.append(self)


RAISED: list[Three] = []


def notes(call: Any, x: torch.Tensor = THREE) -> list[str]:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call(x)
    return getattr(caught.value, "__notes__", [])


@pytest.fixture
def model() -> Any:
    registered(Norm=Gives(Picky), Act=Gives(KernelAct), scale=Gives(KernelScale))
    return kernelize(Model().eval())


def test_an_error_is_the_kernel_s_own_with_a_note(model: Any) -> None:
    with pytest.raises(ValueError, match="three") as caught:
        model(THREE)
    assert caught.value is RAISED[-1]
    assert caught.value.__notes__ == [
        "kernels: module 'blocks.0.norm' (Norm) runs the forward of the kernel Gives. "
        "`kernels.unkernelize(model)` gives every layer its own forward back."
    ]
    unkernelize(model)
    assert torch.equal(model(THREE), Model()(THREE))
    assert model.__dict__.keys() == Model().__dict__.keys()


def test_the_note_names_the_build(write_kernel: Any, hub_folder: Any) -> None:
    code = "class Norm(nn.Module):\n    def forward(self, x):\n        return torch.ops.no.such(x * self.weight)\n"
    write_kernel("norm", layers=code, repository=hub_folder / "org" / "norm" / "v1")
    registered(Norm=LayerRepository("org/norm", layer_name="Norm", version=1))
    [note] = notes(kernelize(Norm().eval()))
    assert note.startswith(
        "kernels: the model (Norm) runs the forward of the kernel org/norm (commit v1, variant torch-cpu)."
    )


def test_it_is_told_however_the_model_is_called(model: Any) -> None:
    where = "kernels: module 'blocks.0.norm'"
    parameters = dict(model.named_parameters())
    hooked = copy.deepcopy(model)
    hooked.register_forward_hook(lambda *arguments: None)
    hooked.blocks[0].norm.register_forward_pre_hook(lambda *arguments: None)
    calls = {
        "deepcopy": copy.deepcopy(model),
        "hooks": hooked,
        "DataParallel": nn.DataParallel(model),
        "functional_call": lambda x: torch.func.functional_call(model, parameters, (x,)),
    }
    assert {name: [note[: len(where)] for note in notes(call)] for name, call in calls.items()} == {
        name: [where] for name in calls
    }


def test_a_model_in_a_model_is_named_by_the_outermost(model: Any) -> None:
    outer = kernelize(nn.Sequential(nn.Identity(), model).eval())
    [note] = notes(outer)
    assert "module '1.blocks.0.norm'" in note
    [note] = notes(nn.Sequential(model))
    assert "module 'blocks.0.norm'" in note


def test_a_call_that_the_kernel_does_not_take_is_named_too() -> None:
    class Caller(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = Norm()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x=x)

    registered(Norm=Gives(OtherNames))
    model = kernelize(Caller().eval())
    assert "module 'norm'" in notes(model)[0]
    model.norm.register_forward_hook(lambda *arguments: None)
    assert "module 'norm'" in notes(model)[0]


def test_a_function_is_named_with_the_module_that_calls_it() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor, by: float = 3.0) -> torch.Tensor:
            raise Three

    registered(scale=Gives(Broken))
    assert "module 'scale' (scale)" in notes(kernelize(Block().eval()))[0]


@use_kernel_forward_from_hub("Norm")
class Raises(Norm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise Three


def test_errors_of_others_have_no_note(model: Any) -> None:
    def hook(*arguments: Any) -> None:
        raise Three

    assert notes(nn.Sequential(model, Raises()), X) == []
    model.blocks[1].norm.register_forward_pre_hook(hook)
    assert notes(model, X) == []
    registered(Norm=Gives(KernelNorm))
    mixed = kernelize(nn.Sequential(Norm(), Raises()).eval(), by_class={Norm: "Norm", Raises: "None"})
    assert notes(mixed, X) == []


def test_the_model_keeps_its_signature_and_what_libraries_do_with_models(model: Any) -> None:
    assert inspect.signature(model.forward) == inspect.signature(Model().forward)
    assert "forward" not in model.__dict__
    expected = model(X)
    assert torch.equal(torch.jit.trace(model, (X,))(X), expected)
    assert torch.equal(torch.export.export(model, (X,)).module()(X), expected)
    restored = pickle.loads(pickle.dumps(model))
    assert torch.equal(restored(X), Model()(X))
    assert restored.__dict__.keys() == Model().__dict__.keys()


class Handmade(Model):
    """Copies itself, with all it has."""

    def __deepcopy__(self, memo: Any) -> Any:
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied


def test_a_model_that_copies_itself_is_not_called_through_the_original() -> None:
    registered(Norm=Gives(KernelNorm))
    model = kernelize(Handmade().eval())
    copied = copy.deepcopy(model)
    copied.blocks = nn.ModuleList()
    assert torch.equal(copied(X), X)


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("fullgraph", [True, False])
def test_many_compiled_models_share_no_limit_of_recompilations(fullgraph: bool) -> None:
    registered(Norm=Gives(Picky))
    for number in range(10):
        names: dict[str, Any] = {}
        exec(f"def forward(self, x):\n    return self.norm(x) + {number}", names)
        model: Any = type(f"Model{number}", (nn.Module,), {"forward": names["forward"]})()
        model.norm = Norm()
        kernelize(model.eval(), mode=INFERENCE | Mode.TORCH_COMPILE)
        if number % 2:
            model.compile(fullgraph=fullgraph, backend="eager")
            assert float(model(X)) == 102 + number
        else:
            assert float(torch.compile(model, fullgraph=fullgraph, backend="eager")(X)) == 102 + number
    assert counters["stats"]["unique_graphs"] == 10


class NoNotes(ValueError):
    add_note = None  # type: ignore[assignment]


@pytest.mark.parametrize("notes", [None, "text", ("text",), 5])
@pytest.mark.parametrize("kind", [ValueError, NoNotes])
def test_an_error_with_other_notes_is_raised_as_it_is(kind: type[ValueError], notes: Any) -> None:
    error = kind("mine")
    error.__notes__ = notes

    class Raises(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise error

    registered(Norm=Gives(Raises))
    model = kernelize(nn.Sequential(Norm()), mode=INFERENCE)
    try:
        model(X)
    except ValueError as raised:  # not pytest.raises: it reads the notes
        assert raised is error  # noqa: PT017
    else:
        raise AssertionError
