"""With `auto`, each layer has kernels for inference and for training, and its own `training` decides at each call."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from layer_models import (
    Act,
    ForwardOnly,
    Gives,
    KernelAct,
    KernelNorm,
    KernelScale,
    Model,
    Norm,
    OtherNorm,
    OtherScale,
    X,
    norm_of,
    registered,
    scale,
)
from torch import nn
from torch._dynamo.utils import counters

from kernels.errors import MappingError, RequestError
from kernels.layer import KernelizeReport, Mode, kernelize, kernelize_report, unkernelize

INFERENCE, TRAINING, COMPILE = Mode.INFERENCE, Mode.TRAINING, Mode.TORCH_COMPILE


class Trained(nn.Module):
    can_torch_compile = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + 200


@pytest.fixture
def norm() -> Any:
    both = {INFERENCE: Gives(KernelNorm), TRAINING: Gives(OtherNorm)}
    registered(Norm={**both, INFERENCE | COMPILE: Gives(ForwardOnly), TRAINING | COMPILE: Gives(Trained)})
    return kernelize(Norm(), auto=True)


def both(module: Any) -> tuple[float, float]:
    """What the layer adds in evaluation, and in training."""
    return norm_of(module.eval()), norm_of(module.train())


def test_the_state_of_each_module_decides_at_each_call(norm: Any) -> None:
    assert norm_of(norm) == 200
    norm.training = False
    assert norm_of(norm) == 100
    model = kernelize(Model(2), auto=True, device="cpu")
    assert [norm_of(block.norm) for block in model.eval().blocks] == [100, 100]
    model.blocks[0].train()
    assert [norm_of(block.norm) for block in model.blocks] == [200, 100]
    assert [norm_of(block.norm) for block in model.train().blocks] == [200, 200]
    unkernelize(model)
    assert both(model.blocks[0].norm) == (0, 0)
    assert model.__dict__.keys() == Model().__dict__.keys()


def test_copies_follow_their_own_state_and_pickles_have_their_own_forwards(norm: Any) -> None:
    copied = copy.deepcopy(norm)
    norm.eval()
    assert (norm_of(norm), norm_of(copied)) == (100, 200)
    with torch.no_grad():
        copied.weight.fill_(50)
    assert float(copied(X)) == 250
    assert both(copy.copy(norm)) == (100, 200)
    replica: Any = norm._replicate_for_data_parallel()
    replica.weight, replica.training = torch.tensor([7.0]), True
    assert float(replica(X)) == 207
    buffer = io.BytesIO()
    torch.save(norm, buffer)
    buffer.seek(0)
    restored = torch.load(buffer, weights_only=False)
    assert both(restored) == both(pickle.loads(pickle.dumps(norm))) == (0, 0)
    assert "kernelize it again" in str(kernelize_report(restored))


def test_where_one_kernel_serves_both_its_forward_alone_is_called() -> None:
    registered(Norm=Gives(KernelNorm))
    norm: Any = kernelize(Norm(), auto=True)
    assert norm.forward.__func__ is KernelNorm.forward
    assert both(norm) == (100, 100)
    registered(Norm={INFERENCE: Gives(KernelNorm), TRAINING: Gives(OtherNorm)})
    kernelize(norm, auto=True)
    assert inspect.signature(norm.forward) == inspect.signature(Norm().forward)


class Joined(nn.Module):
    """Its forward has parameters of every kind."""

    def forward(self, x: Any, /, y: Any = 2, *rest: Any, z: Any = 3, **named: Any) -> Any:
        return ["own", x, y, *rest, z, named]


class Plain(nn.Module):
    def forward(self, x: Any, /, y: Any, w: Any = 2, *, z: Any = 3) -> Any:
        return ["own", x, y, w, z]


def answering(name: str, cls: Any) -> Any:
    def forward(self: Any, x: Any, /, y: Any = 2, *rest: Any, z: Any = 3, **named: Any) -> Any:
        return [name, x, y, *rest, z, named]

    def plain(self: Any, x: Any, /, yy: Any, w: Any = 2, *, z: Any = 3) -> Any:
        return [name, x, yy, w, z]

    return Gives(type(name, (nn.Module,), {"forward": forward if cls is Joined else plain}))


@pytest.mark.parametrize("cls", [Joined, Plain])
def test_arguments_reach_the_kernels_as_they_are_given(cls: Any) -> None:
    mapping = {"Any": {"cpu": {INFERENCE: answering("inference", cls), TRAINING: answering("training", cls)}}}
    module = cls()
    kernelize(module, mapping, by_class={cls: "Any"}, device="cpu", auto=True)
    assert module(1, 5) == ["training", *cls()(1, 5)[1:]]
    module.eval()
    assert module(1, 6, z=7) == ["inference", *cls()(1, 6, z=7)[1:]]
    assert module(1, 5, 9) == ["inference", *cls()(1, 5, 9)[1:]]
    assert inspect.signature(module.forward) == inspect.signature(cls().forward)
    with pytest.raises(TypeError):
        module(x=1)


def test_a_mode_without_a_kernel_runs_the_own_forward() -> None:
    registered(Norm={INFERENCE: Gives(ForwardOnly)})
    norm = kernelize(Norm(), auto=True)
    assert both(norm) == (300, 0)
    report = kernelize_report(norm)
    assert [(row.mode, row.kernelized) for row in report] == [("INFERENCE", True), ("TRAINING", False)]
    assert report.rows[1].reason == "no kernel serves mode TRAINING, only INFERENCE"
    assert str(report).splitlines() == [
        "1 of 1 layer runs through a kernel",
        "module       layer  kernel  commit  variant  mode",
        "(the model)  Norm   Gives   -       -        INFERENCE",
        "(the model)  Norm   its own forward: in TRAINING, no kernel serves mode TRAINING, only INFERENCE",
        "Not measured: kernels.autotune(model, (inputs,)) keeps only the kernels that pay.",
    ]
    model = kernelize(nn.Sequential(Norm(), Act(), Act()), auto=True)
    assert str(kernelize_report(model)).splitlines()[4:-1] == [
        "* (2)   Act    its own forward: no kernel is mapped to layer 'Act'",
    ]
    with pytest.raises(MappingError, match="no kernel serves mode TRAINING"):
        kernelize(Norm(), auto=True, use_fallback=False)
    registered(Norm={INFERENCE: Gives(ForwardOnly), TRAINING: Gives(KernelAct)})
    assert both(kernelize(Norm(), auto=True)) == (300, 1000)


def test_the_report_says_both_and_train_and_eval_change_nothing(norm: Any) -> None:
    report: KernelizeReport = kernelize_report(norm)
    assert [(row.module, row.mode, row.kernel) for row in report] == [
        ("", "INFERENCE", "Gives"),
        ("", "TRAINING", "Gives"),
    ]
    assert kernelize_report(norm.eval()) == report
    assert report.changed == ()
    assert len(kernelize(norm, auto=True, report=True).kernelized) == 2
    assert norm_of(norm) == 100


def test_a_function_runs_the_kernel_for_training_in_both() -> None:
    registered(scale={INFERENCE: Gives(KernelScale), TRAINING: Gives(OtherScale)})
    kernelize(Model(1).eval(), auto=True)
    assert float(scale(X)) == 73
    registered(scale={INFERENCE: Gives(KernelScale)})
    model = Model(1).eval()
    registered(scale={INFERENCE: Gives(KernelScale), TRAINING: Gives(ForwardOnlyScale)})
    with pytest.raises(MappingError, match="does not support backward"):
        kernelize(model, auto=True)


class ForwardOnlyScale(KernelScale):
    has_backward = False


def test_a_function_without_a_kernel_for_training_keeps_its_own_and_says_why() -> None:
    registered(scale={INFERENCE: Gives(KernelScale)})
    report = kernelize(Model(1).eval(), auto=True, report=True)
    assert float(scale(X)) == 3
    assert [row.reason for row in report if row.layer == "scale"] == [
        "a function cannot follow train() and eval(), and for training: no kernel serves mode TRAINING, only INFERENCE",
        "no kernel serves mode TRAINING, only INFERENCE",
    ]


@pytest.mark.parametrize("mode", [INFERENCE, TRAINING, INFERENCE | COMPILE, Mode.FALLBACK])
def test_auto_and_a_mode_contradict_each_other(mode: Mode) -> None:
    with pytest.raises(RequestError, match=r"`mode` is .*; with auto=True, which prepares INFERENCE and TRAINING"):
        kernelize(Norm(), auto=True, mode=mode)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(TypeError, match=r"Mode\.TORCH_COMPILE or None"):
        kernelize(Norm(), auto=True, mode="inference")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="`auto`"):
        kernelize(Norm(), auto=1)  # type: ignore[call-overload]
    with pytest.raises(RequestError, match="must contain"):
        kernelize(Norm(), mode=COMPILE)


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_fresh_compiler")
def test_a_compiled_model_follows_with_one_graph_for_each_state(norm: Any) -> None:
    model = kernelize(nn.Sequential(norm, Norm()), auto=True, mode=COMPILE)
    fast = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        for _ in range(2):
            assert float(fast.eval()(X)) == float(model(X)) == (2 + 300) * 2 + 300
            assert float(fast.train()(X)) == float(model(X)) == (2 + 200) * 2 + 200
    assert counters["stats"]["unique_graphs"] == 2
