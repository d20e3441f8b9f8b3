"""A report says what has changed since a model was kernelized."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from layer_models import Gives, KernelAct, KernelNorm, KernelScale, Model, Norm, OtherNorm, registered
from torch import nn

from kernels.layer import (
    LayerRepository,
    Mode,
    kernelize,
    kernelize_report,
    register_kernel_mapping,
    unkernelize,
    use_kernel_mapping,
)

INFERENCE, TRAINING = Mode.INFERENCE, Mode.TRAINING


def changed(model: nn.Module) -> str | None:
    [row] = kernelize_report(model)
    return row.changed


@pytest.fixture
def norm() -> Any:
    registered(Norm=Gives(KernelNorm))
    return kernelize(Norm().eval())


def test_nothing_has_changed_at_first(norm: Any) -> None:
    assert changed(norm) is None
    assert changed(copy.deepcopy(norm)) is None
    assert kernelize_report(norm.eval().to("cpu").to(torch.float32)).changed == ()


def test_train_and_eval_are_told(norm: Any) -> None:
    assert changed(norm.train()) == "kernelized for INFERENCE, now in training"
    assert changed(norm.eval()) is None
    norm.training = True
    assert str(kernelize_report(norm)).splitlines() == [
        "1 of 1 layer runs through a kernel; 1 has changed since: kernelize the model again",
        "module       layer  kernel  commit  variant  mode",
        "(the model)  Norm   Gives   -       -        INFERENCE (any mode); kernelized for INFERENCE, now in training",
    ]
    assert changed(kernelize(norm)) is None
    assert changed(norm.eval()) == "kernelized for TRAINING, now in evaluation"
    # A mode that was asked for against the state of the model is as it was asked for.
    kernelize(norm.train(), mode=INFERENCE)
    assert changed(norm) is None
    assert changed(norm.eval()) is None


def test_a_moved_or_converted_model_is_told(norm: Any) -> None:
    assert changed(copy.deepcopy(norm).half()) == "kernelized in float32, now in float16"
    assert changed(copy.deepcopy(norm).to(torch.bfloat16)) == "kernelized in float32, now in bfloat16"
    moved = copy.deepcopy(norm).to("meta")
    assert changed(moved) == "kernelized for cpu, now on meta"
    unkernelize(moved)
    assert changed(moved) is None


def test_a_device_that_was_named_before_the_model_moves_is_no_change() -> None:
    register_kernel_mapping({"Norm": {"cuda": Gives(KernelNorm)}})
    norm = kernelize(Norm().eval(), device="cuda")
    assert changed(norm) is None
    assert changed(norm.to("meta")) == "kernelized for cuda, now on meta"


def test_a_changed_mapping_is_told(norm: Any) -> None:
    registered(Norm=Gives(OtherNorm))
    assert "kernelized with <layer_models.Gives object" in str(changed(norm))
    assert str(changed(norm)).endswith("is mapped to it")
    register_kernel_mapping({}, inherit_mapping=False)
    assert str(changed(norm)).endswith("now no kernel is mapped to layer 'Norm'")
    assert changed(kernelize(norm)) is None
    registered(Norm=Gives(OtherNorm))
    assert str(changed(norm)).startswith("kernelized without a kernel, now <layer_models.Gives object")


def test_an_equal_repository_is_no_change_and_another_version_is() -> None:
    def mapped(version: int) -> None:
        registered(Norm=LayerRepository("org/norm", layer_name="Norm", version=version))

    class Loaded(LayerRepository):
        def load(self) -> Any:
            return KernelNorm

    repository = Loaded("org/norm", layer_name="Norm", version=1)
    registered(Norm=repository)
    norm = kernelize(Norm().eval())
    registered(Norm=repository)
    assert changed(norm) is None
    mapped(2)
    assert changed(norm) == "kernelized with Loaded.load(), now org/norm version 2, layer Norm is mapped to it"


def test_a_mapping_that_was_left_is_told_and_one_for_the_call_is_not() -> None:
    mapping = {"Norm": {"cpu": Gives(KernelNorm)}}
    with use_kernel_mapping(mapping):
        norm = kernelize(Norm().eval())
        assert changed(norm) is None
    assert str(changed(norm)).endswith("now no kernel is mapped to layer 'Norm'")
    with use_kernel_mapping(mapping):
        assert changed(norm) is None
    assert changed(kernelize(norm, mapping)) is None
    assert changed(norm.train()) == "kernelized for INFERENCE, now in training"


def test_only_the_layers_concerned_are_told() -> None:
    registered(Norm=Gives(KernelNorm), scale=Gives(KernelScale))
    model = kernelize(Model(1).eval())
    report = kernelize_report(model.train())
    assert [row.layer for row in report.changed] == ["scale", "Norm"]
    registered(Act={TRAINING: Gives(KernelAct)})
    rows = {row.layer: row.changed for row in kernelize_report(model.train())}
    assert rows["Act"].startswith("kernelized for INFERENCE, now in training")  # type: ignore[union-attr]
    assert rows["Act"] == kernelize_report(model).to_list()[2]["changed"]
