"""A model's layers run through the kernels that are mapped to them, all or none."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from layer_models import (
    ForwardOnly,
    Gives,
    KernelAct,
    KernelNorm,
    KernelScale,
    Model,
    Norm,
    OtherNorm,
    X,
    norm_of,
    registered,
)
from logged import logged
from torch import nn

import kernels.operations.load
from kernels.errors import LayerError, MappingError
from kernels.layer import (
    KernelizeFallback,
    LayerRepository,
    LocalLayerRepository,
    Mode,
    kernelize,
    kernelize_report,
    replace_kernel_forward_from_hub,
    unkernelize,
    use_kernel_forward_from_hub,
    use_kernel_mapping,
)

INFERENCE, TRAINING, COMPILE = Mode.INFERENCE, Mode.TRAINING, Mode.TORCH_COMPILE


def test_every_marked_layer_and_attached_function_runs_through_its_kernel() -> None:
    registered(Norm=Gives(KernelNorm), Act=Gives(KernelAct), scale=Gives(KernelScale))
    model = Model(blocks=1)
    assert float(model(X)) == 7
    assert kernelize(model, mode=INFERENCE) is model
    assert float(model(X)) == (2 + 100) * 3 + 7 + 1000
    assert type(model.blocks[0].norm) is Norm


def test_a_kernel_is_loaded_once_however_many_layers_it_serves() -> None:
    repository = Gives(KernelNorm)
    registered(Norm=repository)
    kernelize(Model(blocks=5), mode=INFERENCE)
    assert repository.loads == 1


@pytest.mark.parametrize(("training", "adds"), [(True, 200), (False, 100)])
def test_without_a_mode_the_model_s_own_counts(training: bool, adds: int) -> None:
    registered(Norm={INFERENCE: Gives(KernelNorm), TRAINING: Gives(OtherNorm)})
    assert norm_of(kernelize(Norm().train(training))) == adds


def test_kernelizing_again_starts_from_the_original() -> None:
    registered(Norm={INFERENCE: Gives(KernelNorm), TRAINING: Gives(OtherNorm)})
    model = Model()
    adds = []
    for mode in (INFERENCE, TRAINING, INFERENCE):
        kernelize(model, mode=mode)
        adds.append(norm_of(model.blocks[0].norm))
    with use_kernel_mapping({}, inherit_mapping=False):
        kernelize(model, mode=INFERENCE)
    assert [*adds, norm_of(model.blocks[0].norm)] == [100, 200, 100, 0]
    assert "forward" not in model.blocks[0].norm.__dict__


def test_a_layer_whose_condition_is_false_is_not_changed() -> None:
    @use_kernel_forward_from_hub("Norm", condition=lambda module: module.fast)
    class Choosy(Norm):
        fast = True

    @use_kernel_forward_from_hub("scale", condition=lambda function: False)
    def never(x: torch.Tensor, by: float = 3.0) -> torch.Tensor:
        return x * by

    registered(Norm=Gives(KernelNorm), scale=Gives(KernelScale))
    model = nn.ModuleList([Choosy(), Choosy(), never])
    kernelize(model, mode=INFERENCE)
    model[0].fast = False
    report = kernelize(model, mode=INFERENCE, report=True)
    assert [norm_of(model[0]), norm_of(model[1]), float(never(X))] == [0, 100, 3]
    assert [row.reason for row in report] == ["its condition is false", None, "its condition is false"]


@pytest.mark.parametrize(
    ("mapping", "flag", "says"),
    [
        ({}, KernelizeFallback.NO_LAYER, "no kernel is mapped to layer 'Norm'"),
        ({"Norm": {"cuda": Gives(KernelNorm)}}, KernelizeFallback.NO_DEVICE, "no kernel for device type 'cpu'"),
        (
            {"Norm": {"cpu": {TRAINING: Gives(KernelNorm)}}},
            KernelizeFallback.NO_COMPATIBLE_MODE,
            "no kernel serves mode INFERENCE . TORCH_COMPILE, only TRAINING",
        ),
        ({"Norm": {"cpu": Gives(OtherNorm)}}, KernelizeFallback.NO_COMPATIBLE_MODE, "does not support torch.compile"),
        ({"Norm": {"cpu": Gives(FileNotFoundError("gone\nfor good"))}}, KernelizeFallback.CANNOT_LOAD, "gone"),
    ],
)
def test_a_layer_keeps_its_forward_only_where_that_is_allowed(mapping: Any, flag: KernelizeFallback, says: str) -> None:
    mode = INFERENCE | COMPILE
    with use_kernel_mapping(mapping):
        model = Model()
        for refused in (KernelizeFallback.NONE, KernelizeFallback.ALL & ~flag):
            with pytest.raises((ValueError, FileNotFoundError), match=says):
                kernelize(model.blocks[0].norm, mode=mode, use_fallback=refused)
        for allowed in (flag, KernelizeFallback.ALL):
            [row] = kernelize(model.blocks[0].norm, mode=mode, use_fallback=allowed, report=True)
            assert row.reason is not None
            assert "\n" not in row.reason
    assert norm_of(model.blocks[0].norm) == 0


def test_the_layers_that_keep_their_forward_are_logged() -> None:
    @use_kernel_forward_from_hub("Norm", condition=lambda module: False)
    class Slow(nn.Module):
        pass

    with logged(logging.INFO) as records:
        kernelize(nn.Sequential(Slow(), Slow()), mode=Mode.INFERENCE, device="cpu")
        mapping = {"Norm": {"cpu": {Mode.INFERENCE: Gives(KernelNorm)}}}
        kernelize(nn.Sequential(Norm(), Norm()), mapping, mode=Mode.TRAINING)
    assert [(each.levelname, each.getMessage()) for each in records] == [
        ("INFO", f"Layer 'Norm' of {Slow.__qualname__} keeps its own forward: its condition is false"),
        ("INFO", "Sequential is kernelized for INFERENCE: 0 of 2 layers run through a kernel"),
        ("INFO", "Layer 'Norm' on cpu keeps its own forward: no kernel serves mode TRAINING, only INFERENCE"),
        ("INFO", "Sequential is kernelized for TRAINING: 0 of 2 layers run through a kernel"),
    ]


def test_the_kernel_of_each_layer_is_logged_for_debugging() -> None:
    with logged(logging.DEBUG) as records:
        kernelize(nn.Sequential(Norm(), Norm()), {"Norm": {"cpu": Gives(KernelNorm)}}, mode=INFERENCE)
    assert [(each.levelname, each.getMessage()) for each in records] == [
        ("INFO", "Sequential is kernelized for INFERENCE: 2 of 2 layers run through a kernel (2 Norm: Gives)"),
        ("DEBUG", "0 (Norm): Gives"),
        ("DEBUG", "1 (Norm): Gives"),
    ]


def test_true_allows_all_but_a_failed_load_and_false_nothing() -> None:
    registered(Act=Gives(FileNotFoundError("gone")))
    assert kernelize(Norm(), mode=INFERENCE, use_fallback=True)
    with pytest.raises(MappingError):
        kernelize(Norm(), mode=INFERENCE, use_fallback=False)
    with pytest.raises(FileNotFoundError):
        kernelize(Model(), mode=INFERENCE, use_fallback=True)
    kernelize(Model(), mode=INFERENCE, use_fallback=KernelizeFallback.ALL)


def test_a_kernel_registered_for_a_mode_it_does_not_support_is_a_wrong_mapping() -> None:
    registered(Norm={TRAINING: Gives(ForwardOnly)})
    with pytest.raises(ValueError, match="does not support backward, but is registered for 'Norm' with the mode TRAIN"):
        kernelize(Norm(), mode=INFERENCE, use_fallback=KernelizeFallback.ALL)


def test_a_fallback_kernel_without_backward_serves_inference_alone() -> None:
    registered(Norm=Gives(ForwardOnly))
    assert norm_of(kernelize(Norm().eval(), mode=INFERENCE)) == 300
    assert norm_of(kernelize(Norm(), mode=TRAINING)) == 0


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (Gives(FileNotFoundError("gone")), FileNotFoundError),
        (Gives(ImportError("lacks einops")), ImportError),
        (Gives(ValueError("not trusted")), ValueError),
        (Gives(KernelScale), LayerError),
        (Gives(len), TypeError),
    ],
)
def test_a_failure_leaves_the_model_as_it_was(broken: Gives, error: type[Exception]) -> None:
    registered(Norm={INFERENCE: Gives(KernelNorm), TRAINING: Gives(OtherNorm)}, scale=Gives(KernelScale))
    model = kernelize(Model(), mode=INFERENCE)
    before = [dict(module.__dict__) for module in model.modules()]
    registered(Act=broken)
    with pytest.raises(error):
        kernelize(model, mode=TRAINING)
    assert [dict(module.__dict__) for module in model.modules()] == before
    assert norm_of(model.blocks[0].norm) == 100


def test_layers_without_a_mapping_are_warned_of_once() -> None:
    with logged() as caught:
        for mode in (INFERENCE, TRAINING):
            kernelize(Model(blocks=3), mode=mode)
    [warning] = [each.getMessage() for each in caught]
    assert warning.split("'")[1::2] == ["Act", "Norm", "scale"]


@pytest.mark.parametrize("value", ["1", "true"])
def test_the_mapping_can_be_disabled_by_the_environment(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    registered(Norm=Gives(KernelNorm))
    norm = kernelize(Norm(), mode=INFERENCE)
    monkeypatch.setenv("DISABLE_KERNEL_MAPPING", value)
    [row] = kernelize(norm, mode=INFERENCE, report=True, use_fallback=False)
    assert row.reason == "DISABLE_KERNEL_MAPPING is set"
    assert norm_of(norm) == 0


def test_a_kernel_from_a_folder_and_one_from_a_hub_serve_one_model(write_kernel: Any, hub_folder: Path) -> None:
    code = "class Norm(nn.Module):\n    def forward(self, x):\n        return x * self.weight + 100\n"
    local = write_kernel("local-norm", layers=code)
    write_kernel("act", layers=code.replace("self.weight", "1"), repository=hub_folder / "org" / "act" / "v2")
    registered(
        Norm=LocalLayerRepository(local, layer_name="Norm"),
        Act={INFERENCE: LayerRepository("org/act", layer_name="Norm", version=2)},
    )
    model = Model(blocks=1)
    rows = {row.layer: row for row in kernelize(model, mode=INFERENCE, report=True)}
    assert float(model(X)) == (2 + 100) * 3 + 100
    assert (rows["Norm"].kernel, rows["Norm"].commit, rows["Norm"].variant) == (str(local), None, "torch-cpu")
    assert (rows["Act"].kernel, rows["Act"].commit, rows["Act"].variant) == ("org/act", "v2", "torch-cpu")
    assert (rows["Act"].mode, rows["Act"].registered, rows["Norm"].registered) == ("INFERENCE", "INFERENCE", "FALLBACK")


def test_all_kernels_on_a_hub_are_asked_for_at_once(
    write_kernel: Any, hub_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "class Any(nn.Module):\n    def forward(self, x):\n        return x\n"
    asked: list[list[str]] = []
    load_all = kernels.operations.load.load_all

    def recording(requests: Any) -> Any:
        asked.append([request.repo_id for request in requests])
        assert not any("forward" in module.__dict__ for module in model.modules())
        return load_all(requests)

    monkeypatch.setattr(kernels.operations.load, "load_all", recording)
    for name in ("norm", "act"):
        write_kernel(name, layers=code, repository=hub_folder / "org" / name / "v1")
        registered(**{name.title(): LayerRepository(f"org/{name}", layer_name="Any", version=1)})
    model = Model(blocks=3)
    kernelize(model, mode=INFERENCE)
    assert asked == [["org/norm", "org/act"]]


def test_a_kernel_that_a_hub_does_not_have_can_be_fallen_back_from(write_kernel: Any, hub_folder: Path) -> None:
    code = "class Norm(nn.Module):\n    def forward(self, x):\n        return x * self.weight + 100\n"
    write_kernel("norm", layers=code, repository=hub_folder / "org" / "norm" / "v1")
    registered(
        Norm=LayerRepository("org/norm", layer_name="Norm", version=1),
        Act=LayerRepository("org/act", layer_name="Act", version=1),
    )
    model = Model()
    with pytest.raises(FileNotFoundError, match="org/act"):
        kernelize(model, mode=INFERENCE)
    assert norm_of(model.blocks[0].norm) == 0
    rows = {row.layer: row for row in kernelize(model, mode=INFERENCE, use_fallback=KernelizeFallback.ALL, report=True)}
    assert rows["Norm"].kernelized
    assert rows["Act"].kernel == "org/act"
    assert rows["Act"].reason.startswith("cannot load: ")
    registered(Act=LayerRepository("org/norm", layer_name="Act", version=1))
    with pytest.raises(MappingError, match="'Act'; its layers are Norm"):
        kernelize(model, mode=INFERENCE, use_fallback=KernelizeFallback.ALL)
    registered(Act=LayerRepository("org/norm", layer_name="Norm", version=9))
    with pytest.raises(ValueError, match="org/norm"):
        kernelize(model, mode=INFERENCE, use_fallback=KernelizeFallback.ALL)


def test_a_model_may_be_used_by_a_thread_while_another_mapping_is_registered_there() -> None:
    registered(Norm=Gives(KernelNorm))
    model, results = Model(), []

    def work() -> None:
        with use_kernel_mapping({"Norm": {"cpu": Gives(OtherNorm)}}):
            results.append(norm_of(kernelize(Norm(), mode=INFERENCE)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [*results, norm_of(kernelize(model, mode=INFERENCE).blocks[0].norm)] == [200, 100]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"model": "llama"}, TypeError, "`model`: expected a torch.nn.Module, got 'llama'"),
        ({"mode": Mode.FALLBACK}, ValueError, "only be used to register"),
        ({"mode": Mode.TORCH_COMPILE}, ValueError, "must contain"),
        ({"mode": "inference"}, TypeError, "`mode`: expected a Mode such as Mode.INFERENCE, got 'inference'"),
        ({"device": "gpu"}, ValueError, "`device`: expected one of the device types .*, got 'gpu'"),
        ({"use_fallback": "yes"}, TypeError, "`use_fallback`: expected a bool or a KernelizeFallback, got 'yes'"),
        ({"report": "no"}, TypeError, "`report`: expected True or False, got 'no'"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        kernelize(arguments.pop("model", Norm()), **{"mode": INFERENCE, **arguments})


def test_only_modules_can_be_unkernelized_or_reported() -> None:
    for function in (unkernelize, kernelize_report):
        with pytest.raises(TypeError, match=r"`model`: expected a torch.nn.Module, got None"):
            function(None)  # type: ignore[operator]


def test_a_class_of_someone_else_s_can_be_marked() -> None:
    class Theirs(nn.LayerNorm):
        pass

    class KernelLayerNorm(nn.Module):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return input + 100

    replace_kernel_forward_from_hub(Theirs, "LayerNorm")
    registered(LayerNorm=Gives(KernelLayerNorm))
    assert norm_of(kernelize(Theirs(1), mode=INFERENCE)) == 100
