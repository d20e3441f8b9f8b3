"""Layers without a mark get their kernels by class, in one model and for one call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from layer_models import ForwardOnly, Gives, KernelNorm, Norm, OtherNorm, norm_of, registered
from torch import nn

from kernels.errors import LayerError, RequestError
from kernels.layer import (
    Mode,
    kernelize,
    kernelize_report,
    replace_kernel_forward_from_hub,
    unkernelize,
    use_kernel_mapping,
)


class Plain(nn.Module):
    """A norm that nobody has marked."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0]), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Inherits(Plain):
    pass


def adds(model: nn.Module) -> list[float]:
    return [norm_of(module) for module in model]


def plain_twice() -> type[nn.Module]:
    """Another class with the name `Plain`."""
    return type("Plain", (Plain,), {"__module__": "elsewhere"})


INFERENCE = Mode.INFERENCE
TO_NORM = {"Norm": {"cpu": Gives(KernelNorm)}}


@pytest.mark.parametrize("key", ["Plain", Plain, f"{Plain.__module__}.Plain"], ids=["name", "class", "dotted name"])
def test_a_class_is_given_as_itself_by_its_name_or_its_dotted_name(key: Any) -> None:
    model = nn.Sequential(Plain(), nn.Identity(), Plain())
    report = kernelize(model, TO_NORM, mode=INFERENCE, by_class={key: "Norm"}, report=True)
    assert adds(model) == [100, 0, 100]
    assert [(row.module, row.layer, row.kernel) for row in report] == [("0", "Norm", "Gives"), ("2", "Norm", "Gives")]
    assert kernelize_report(model) == report


def test_a_dotted_name_may_be_the_one_that_a_class_is_imported_by() -> None:
    class Kernel(nn.Module):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return input

    model = nn.Sequential(nn.Linear(1, 1), nn.SiLU())
    mapping = {"SiLU": {"cpu": Gives(Kernel)}}
    assert len(kernelize(model, mapping, mode=INFERENCE, by_class={"torch.nn.SiLU": "SiLU"}, report=True).kernelized)


def test_nothing_outside_of_the_model_changes() -> None:
    registered(Norm=Gives(KernelNorm))
    kernelize(nn.Sequential(Plain()), mode=INFERENCE, by_class={"Plain": "Norm"})
    other = nn.Sequential(Plain())
    assert not hasattr(Plain, "kernel_layer_name")
    assert len(kernelize(other, mode=INFERENCE, report=True)) == 0
    assert adds(other) == [0]


def test_the_next_call_does_not_remember_it_and_unkernelize_restores() -> None:
    registered(Norm=Gives(KernelNorm))
    model = nn.Sequential(Plain(), Norm())
    untouched = dict(model[0].__dict__)
    seen = []
    for by_class in ({"Plain": "Norm"}, None, {"Plain": "Norm"}, {}):
        kernelize(model, mode=INFERENCE, by_class=by_class)
        seen.append(adds(model))
    assert seen == [[100, 100], [0, 100]] * 2
    assert model[0].__dict__ == untouched
    kernelize(model, mode=INFERENCE, by_class={"Plain": "Norm"})
    assert adds(unkernelize(model)) == [0, 0]
    assert model[0].__dict__ == untouched


def test_a_call_that_fails_forgets_nothing() -> None:
    registered(Norm=Gives(KernelNorm))
    model = nn.Sequential(Plain(), Norm())
    kernelize(model, mode=INFERENCE, by_class={"Plain": "Norm"})
    with pytest.raises(FileNotFoundError):
        kernelize(model, {"Norm": {"cpu": Gives(FileNotFoundError("gone"))}}, mode=INFERENCE)
    assert adds(model) == [100, 100]


def test_it_comes_before_a_mark() -> None:
    registered(Norm=Gives(KernelNorm), Other=Gives(OtherNorm))
    model = nn.Sequential(Norm(), Plain())
    kernelize(model, mode=INFERENCE, by_class={Norm: "Other"})
    assert adds(model) == [200, 0]
    kernelize(model, mode=INFERENCE)
    assert adds(model) == [100, 0]


def test_a_mark_s_condition_still_decides() -> None:
    class Choosy(Norm):
        pass

    replace_kernel_forward_from_hub(Choosy, "Norm", condition=lambda module: module.fast)
    model = nn.Sequential(Choosy(), Choosy())
    model[0].fast, model[1].fast = True, False
    kernelize(model, {"Other": {"cpu": Gives(OtherNorm)}}, mode=INFERENCE, by_class={Choosy: "Other"})
    assert adds(model) == [200, 0]


def test_a_subclass_needs_a_key_of_its_own() -> None:
    model = nn.Sequential(Plain(), Inherits())
    kernelize(model, TO_NORM, mode=INFERENCE, by_class={"Plain": "Norm"})
    assert adds(model) == [100, 0]
    kernelize(model, TO_NORM, mode=INFERENCE, by_class={"Plain": "Norm", "Inherits": "Norm"})
    assert adds(model) == [100, 100]


@pytest.mark.parametrize(
    ("by_class", "error", "says"),
    [
        ({"Plane": "Norm"}, RequestError, "no layer of the model is a 'Plane'. Did you mean 'Plain'?"),
        ({"somewhere.Plain": "Norm"}, RequestError, "no layer of the model is a 'somewhere.Plain'. Did you mean"),
        ({"xyz": "Norm"}, RequestError, "'xyz'. Its classes are Inherits, Plain, Sequential."),
        ({nn.Linear: "Norm"}, RequestError, "no layer of the model is a 'torch.nn.modules.linear.Linear'"),
        ({"Module": "Norm"}, RequestError, "has subclasses of it, which need keys of their own: .*Plain, .*Inherits"),
        ({nn.Module: "Norm"}, RequestError, "has subclasses of it"),
        ({Plain: "Norm", "Plain": "Other"}, RequestError, "two keys name the class .*Plain, with the layers 'Norm' an"),
        ({Plain(): "Norm"}, TypeError, "expected classes or their names as keys, got Plain"),
        ({"Plain": KernelNorm}, TypeError, r"`by_class\['Plain'\]`: expected the name of a layer in the mapping"),
        (["Plain"], TypeError, "expected a dictionary class -> layer name"),
    ],
)
def test_a_mistake_is_an_error_that_changes_nothing(by_class: Any, error: type[Exception], says: str) -> None:
    model = nn.Sequential(Plain(), Inherits())
    with pytest.raises(error, match=says):
        kernelize(model, TO_NORM, mode=INFERENCE, by_class=by_class)
    assert adds(model) == [0, 0]


def test_a_name_that_two_classes_have_is_refused_and_a_dotted_one_is_not() -> None:
    model = nn.Sequential(Plain(), plain_twice()())
    with pytest.raises(RequestError, match=r"the model has 2 classes 'Plain' \(.*Plain, elsewhere.Plain\)"):
        kernelize(model, TO_NORM, mode=INFERENCE, by_class={"Plain": "Norm"})
    kernelize(model, TO_NORM, mode=INFERENCE, by_class={"elsewhere.Plain": "Norm"})
    assert adds(model) == [0, 100]


def test_the_rules_for_layers_hold() -> None:
    class Wide(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x

    model = nn.Sequential(Plain())
    with pytest.raises(LayerError, match="different number of arguments"):
        kernelize(model, {"Norm": {"cpu": Gives(Wide)}}, mode=INFERENCE, by_class={"Plain": "Norm"})
    [row] = kernelize(
        model, {"Norm": {"cpu": Gives(ForwardOnly)}}, mode=Mode.TRAINING, by_class={"Plain": "Norm"}, report=True
    )
    assert row.reason == "the kernel's layer does not support backward"


def test_a_mapping_for_one_call_comes_before_the_others_and_is_gone_after_it() -> None:
    registered(Norm=Gives(KernelNorm))
    with use_kernel_mapping({"Norm": {"cpu": Gives(ForwardOnly)}}):
        assert norm_of(kernelize(Norm(), {"Norm": {"cpu": Gives(OtherNorm)}}, mode=INFERENCE)) == 200
        assert norm_of(kernelize(Norm().eval(), mapping={"Norm": {"cuda": Gives(OtherNorm)}}, mode=INFERENCE)) == 300
    assert norm_of(kernelize(Norm(), mode=INFERENCE)) == 100
    with pytest.raises(TypeError, match="`mapping`: expected a dictionary layer name -> device -> repository"):
        kernelize(Norm(), INFERENCE)
