"""Which layers of a model are found, and the device each counts as."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from layer_models import Act, Block, Gives, KernelAct, KernelNorm, KernelScale, Norm, OtherScale, X, registered, scale
from torch import nn

from kernels.errors import MappingError
from kernels.layer import (
    CUDAProperties,
    Device,
    KernelizeFallback,
    Mode,
    kernelize,
    kernelize_report,
    register_kernel_mapping,
    unkernelize,
    use_kernel_mapping,
)
from kernels.resolver.target import Target

INFERENCE, TRAINING, COMPILE = Mode.INFERENCE, Mode.TRAINING, Mode.TORCH_COMPILE


def test_a_wrapped_function_is_found_as_a_submodule_too() -> None:
    registered(scale=Gives(KernelScale))
    model = nn.Sequential(nn.Linear(1, 1), scale)
    assert [row.module for row in kernelize(model, mode=INFERENCE, report=True).kernelized] == ["1"]
    assert float(scale(X)) == 10


# A parameter on a GPU cannot be made here; what counts is the device it says it is on.
def on(module: nn.Module, device: str, *, buffer: bool = False) -> nn.Module:
    kind = module._buffers if buffer else module._parameters
    kind["stands_for"] = SimpleNamespace(device=torch.device(device))  # type: ignore[assignment]
    return module


@pytest.fixture
def spread(monkeypatch: pytest.MonkeyPatch) -> dict[int, Gives]:
    """A machine with GPUs of capability 8.0 and 9.0, and a kernel for each."""
    target = Target.parse("torch2.13-cu130-x86_64-linux+sm_80+sm_90")
    monkeypatch.setattr(Target, "current", staticmethod(lambda: target))
    by_capability = {80: Gives(KernelAct), 90: Gives(type("ActOn90", (KernelAct,), {}))}
    register_kernel_mapping(
        {"Act": {Device("cuda", CUDAProperties(low, low + 9)): gives for low, gives in by_capability.items()}}
    )
    return by_capability


def served_by(module: nn.Module, gives: Gives) -> bool:
    return getattr(module.__dict__.get("forward"), "__func__", None) is gives.layer.forward


def test_each_layer_gets_the_kernel_for_its_own_device(spread: dict[int, Gives]) -> None:
    spread[90].layer = type("ActOn90", (nn.Module,), {"forward": lambda self, x: x})
    model = nn.Sequential(on(nn.Sequential(Act()), "cuda:0"), on(nn.Sequential(Act()), "cuda:1"))
    for device in (None, "cuda", torch.device("cuda")):
        unkernelize(model)
        kernelize(model, mode=INFERENCE, device=device)
        assert served_by(model[0][0], spread[80])
        assert served_by(model[1][0], spread[90])
    kernelize(model, mode=INFERENCE, device="cuda:1")
    assert served_by(model[0][0], spread[90])


def test_a_function_whose_modules_need_different_kernels_keeps_its_own_forward(spread: dict[int, Gives]) -> None:
    register_kernel_mapping(
        {
            "scale": {
                Device("cuda", CUDAProperties(80, 89)): Gives(KernelScale),
                Device("cuda", CUDAProperties(90, 99)): Gives(OtherScale),
            }
        }
    )
    model = nn.Sequential(on(Block(), "cuda:0"), on(Block(), "cuda:1"))
    [reason] = {row.reason for row in kernelize(model, mode=INFERENCE, report=True) if row.layer == "scale"}
    assert reason == "a function is one object, and its modules need different kernels (cuda:0: Gives, cuda:1: Gives)"
    only_scale = {"scale": {"cuda": Gives(KernelScale)}}
    with use_kernel_mapping(only_scale, inherit_mapping=False):
        kernelize(model, mode=INFERENCE)
    with pytest.raises(MappingError, match="Function 'scale': a function is one object"):
        kernelize(model, mode=INFERENCE, use_fallback=KernelizeFallback.ALL & ~KernelizeFallback(4))


@pytest.mark.parametrize(
    ("build", "device"),
    [
        (lambda: on(Act(), "cpu"), "cpu"),
        (lambda: on(on(Act(), "cpu", buffer=True), "mps"), "mps"),
        (lambda: on(nn.Sequential(on(Act(), "mps", buffer=True)), "cpu"), "mps"),
        (lambda: nn.Sequential(Act(), on(nn.Module(), "mps"), on(nn.Module(), "cpu")), "mps"),
        (lambda: nn.Sequential(on(nn.Module(), "cpu"), on(nn.Sequential(nn.Sequential(Act())), "mps")), "mps"),
        (lambda: nn.Sequential(nn.Sequential(on(Act(), "meta"))), "meta"),
    ],
)
def test_a_layer_runs_where_its_own_tensors_are_else_its_nearest_ancestor_s(build: Any, device: str) -> None:
    register_kernel_mapping({"Act": {"xpu": Gives(KernelAct)}})
    [row] = kernelize(build(), mode=INFERENCE, report=True)
    assert row.reason == f"no kernel for device type {device!r}, only for xpu"


def test_a_layer_of_unknown_device_needs_the_argument() -> None:
    registered(Act=Gives(KernelAct))
    model = nn.Sequential(Act())
    with pytest.raises(ValueError, match="The device of 0 is unknown"):
        kernelize(model, mode=INFERENCE)
    assert float(kernelize(model, mode=INFERENCE, device="cpu")(X)) == 1001
    assert kernelize(nn.Sequential(nn.Identity()), mode=INFERENCE) is not None


def test_functions_and_modules_are_in_the_order_of_the_model() -> None:
    registered(Norm=Gives(KernelNorm), Act=Gives(KernelAct), scale=Gives(KernelScale))
    model = nn.Sequential(Norm(), Block(), scale, Act(), nn.Sequential(Norm(), Act()))
    report = kernelize(model, mode=INFERENCE, report=True)
    expected = []
    for path, module in model.named_modules():
        expected += [f"{path}.{name}" for name in vars(module).get("_kernel_funcs", ())]
        expected += [path] if hasattr(type(module), "kernel_layer_name") else []
    assert [row.module for row in report] == expected
    assert len(report.kernelized) == len(expected)


def test_layers_in_other_states_are_decided_for_apart() -> None:
    registered(Norm=Gives(KernelNorm), Act=Gives(KernelAct))
    model = nn.Sequential(Norm(), Norm().half(), Act(), nn.Sequential(Act(), nn.Linear(1, 1).half()), Norm())
    model[4].eval()
    kernelize(model, mode=INFERENCE, device="cpu")
    assert kernelize_report(model).changed == ()
    states = [module.__dict__["_kernelized"].state for module in (model[0], model[1], model[2], model[3][0], model[4])]
    assert [state.dtype for state in states] == [torch.float32, torch.float16, None, None, torch.float32]
    assert [state.training for state in states] == [True, True, True, True, False]
    assert {state.device for state in states} == {torch.device("cpu")}


def test_of_several_errors_that_of_the_first_layer_is_raised() -> None:
    registered(Norm=Gives(KernelNorm))
    for model, first in (
        (nn.Sequential(Act(), scale, Norm()), "'Act' (0)"),
        (nn.Sequential(scale, Act()), "'scale' (0)"),
        (nn.Sequential(Norm(), Block()), "'scale' (1.scale)"),
    ):
        with pytest.raises(MappingError, match=re.escape(f"Layer {first}: no kernel is mapped")):
            kernelize(model, mode=INFERENCE, device="cpu", use_fallback=False)
