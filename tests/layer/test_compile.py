"""`torch.compile` sees a kernelized model as it sees any: no graph break, no further compilation."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from layer_models import Gives, KernelAct, KernelNorm, KernelScale, Model, OtherNorm, X, registered
from torch import nn
from torch._dynamo.utils import counters

from kernels.layer import Mode, compare_layers, kernelize, unkernelize

MODE = Mode.INFERENCE | Mode.TORCH_COMPILE


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def compilations() -> int:
    return int(counters["stats"]["unique_graphs"])


def compiled(model: Any) -> Any:
    return torch.compile(model, fullgraph=True, backend="eager")


def test_a_kernelized_model_compiles_to_one_graph_and_stays_with_it() -> None:
    registered(Norm=Gives(KernelNorm), Act=Gives(KernelAct), scale=Gives(KernelScale))
    model = kernelize(Model().eval(), mode=MODE)
    fast = compiled(model)
    for _ in range(3):
        assert torch.equal(fast(X), model(X))
    kernelize(model, mode=MODE)
    assert torch.equal(fast(X), model(X))
    assert compilations() == 1


def by_hand(blocks: int) -> Model:
    """The model as a person would edit it to run the same kernels, without this package."""

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([2.0]), requires_grad=False)

    class Act(nn.Module):
        pass

    Norm.forward, Act.forward = KernelNorm.forward, KernelAct.forward  # type: ignore[method-assign, assignment]
    model = Model(blocks).eval()
    for block in model.blocks:
        block.norm, block.act = Norm(), Act()
    return model


def test_a_call_of_a_kernelized_model_takes_no_step_more_than_the_kernels_called_by_hand() -> None:
    registered(Norm=Gives(KernelNorm), Act=Gives(KernelAct))

    def calls(model: nn.Module) -> int:
        count = 0

        def note(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        with torch.inference_mode():
            model(X)
            sys.setprofile(note)
            try:
                model(X)
            finally:
                sys.setprofile(None)
        return count

    for blocks in (1, 5):
        assert calls(kernelize(Model(blocks).eval(), mode=MODE)) == calls(by_hand(blocks))


def test_a_kernelized_model_and_the_kernels_called_by_hand_compile_to_the_same_graph() -> None:
    registered(Norm=Gives(KernelNorm), Act=Gives(KernelAct))
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    for model in (kernelize(Model(3).eval(), mode=MODE), by_hand(3)):
        fast = torch.compile(model, fullgraph=True, backend=backend)
        for _ in range(3):
            with torch.inference_mode():
                assert torch.equal(fast(X), model(X))
        torch._dynamo.reset()
    kernelized, hand = ([node.target for node in graph.graph.nodes if node.op == "call_function"] for graph in graphs)
    assert kernelized == hand


def test_kernelizing_after_compiling_takes_effect() -> None:
    registered(Norm={MODE: Gives(KernelNorm), Mode.INFERENCE: Gives(OtherNorm)})
    model = Model().eval()
    fast = compiled(model)
    outputs = [fast(X)]
    for change in (
        lambda: kernelize(model, mode=MODE),
        lambda: kernelize(model, mode=Mode.INFERENCE),
        lambda: unkernelize(model),
    ):
        change()
        outputs.append(fast(X))
        assert torch.equal(outputs[-1], model(X))
    assert torch.equal(outputs[0], outputs[3])
    assert len({float(output) for output in outputs}) == 3


def test_a_copy_of_a_kernelized_model_compiles_to_its_own_weights() -> None:
    registered(Norm=Gives(KernelNorm))
    model = kernelize(Model().eval(), mode=MODE)
    copied = copy.deepcopy(model)
    copied.blocks[0].norm.weight.fill_(9)
    assert torch.equal(compiled(copied)(X), copied(X))
    assert not torch.equal(copied(X), model(X))
    shallow = copy.copy(model.blocks[0].norm)
    shallow._parameters = {"weight": torch.nn.Parameter(torch.tensor([9.0]), requires_grad=False)}
    assert float(compiled(shallow)(X)) == 109


def test_a_compiled_model_can_be_kernelized_through_its_wrapper() -> None:
    registered(Norm=Gives(KernelNorm))
    fast = compiled(Model().eval())
    report = kernelize(fast, mode=MODE, report=True)
    assert len(report.kernelized) == 2
    assert torch.equal(fast(X), fast._orig_mod(X))


def test_a_compiled_model_is_compared_layer_by_layer_and_not_compiled_for_it() -> None:
    registered(Norm=Gives(KernelNorm), Act=Gives(KernelAct), scale=Gives(KernelScale))
    fast = compiled(kernelize(Model(blocks=1).eval(), mode=MODE))
    expected = fast(X)
    comparison = compare_layers(fast, X)
    assert {row.layer: row.difference for row in comparison} == {"scale": 7, "Norm": 100, "Act": 999}
    assert torch.equal(fast(X), expected)
    assert compilations() == 1
