"""A report says what has changed since a model was kernelized."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from layer_models import Gives, KernelNorm, KernelScale, Model, Norm, registered
from torch import nn

from kernels.layer import Mode, kernelize, kernelize_report, register_kernel_mapping, unkernelize

INFERENCE = Mode.INFERENCE


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
        "Not measured: kernels.autotune(model, (inputs,)) keeps only the kernels that pay.",
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


def test_only_the_layers_concerned_are_told() -> None:
    registered(Norm=Gives(KernelNorm), scale={INFERENCE: Gives(KernelScale)})
    report = kernelize_report(kernelize(Model(1)).eval())
    assert [(row.layer, row.kernelized, row.changed) for row in report] == [
        ("scale", False, "kernelized for TRAINING, now in evaluation"),
        ("Norm", True, "kernelized for TRAINING, now in evaluation"),
        ("Act", False, None),  # nothing is mapped to it
    ]
    assert report.to_list()[0]["changed"] == report.changed[0].changed
    assert "only INFERENCE; kernelized for TRAINING, now in evaluation" in str(report)
