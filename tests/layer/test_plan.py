"""Planning takes work by the number of kinds of layers, of layers and of mapped names, and not by their product."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest
from layer_models import Gives, KernelAct
from torch import nn

from kernels.layer import (
    LayerRepository,
    LocalLayerRepository,
    Mode,
    kernelize,
    replace_kernel_forward_from_hub,
    use_kernel_forward_from_hub,
    use_kernel_mapping,
)
from kernels.operations import load as loads
from kernels.resolver import locks


def calls_of(work: Callable[[], object]) -> int:
    """How many functions of Python and of C a piece of work calls."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.collect()
    gc.disable()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def kind(name: str) -> type[nn.Module]:
    class Act(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1

    replace_kernel_forward_from_hub(Act, name)
    return Act


def kinds(number: int) -> dict[str, type[nn.Module]]:
    return {f"Act{index}": kind(f"Act{index}") for index in range(number)}


def planned(
    classes: dict[str, type[nn.Module]], layers: int, names: int = 0, *, again: bool = True, **options: Any
) -> int:
    """The calls of `kernelize` of so many layers, with so many names that no layer has.

    The classes were kernelized before, and with `again` the model, too.
    """
    each = list(classes.values())
    model, other = (nn.ModuleList(each[index % len(each)]() for index in range(layers)) for _ in range(2))
    mapping = {name: {"cpu": Gives(KernelAct)} for name in [*classes, *(f"Other{index}" for index in range(names))]}
    with use_kernel_mapping(mapping):
        kernelize(model if again else other, mode=Mode.INFERENCE, device="cpu", **options)
        return calls_of(lambda: kernelize(model, mode=Mode.INFERENCE, device="cpu", **options))


def test_more_layers_of_the_same_kinds_cost_the_same_each() -> None:
    classes = kinds(20)
    for again, most in ((False, 35), (True, 60)):
        few, more, many = (planned(classes, layers, again=again) for layers in (200, 400, 800))
        assert many - more == pytest.approx(2 * (more - few), rel=0.05)
        assert (more - few) / 200 < most


def test_more_kinds_cost_the_same_each_however_many_there_are() -> None:
    few, more, many = (planned(kinds(number), 160) for number in (40, 80, 160))
    assert many - more == pytest.approx(2 * (more - few), rel=0.1)


@pytest.mark.parametrize("where", ["hub", "folder"])
def test_a_kernel_and_its_lock_are_looked_for_once_however_many_layers_it_has(
    write_kernel: Any, hub_folder: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    source = "import torch\n" + "".join(
        f"class Act{index}(torch.nn.Module):\n    def forward(self, x):\n        return x + {index}\n"
        for index in range(30)
    )
    folder = write_kernel("many", layers=source, repository=hub_folder / "org" / "many" / "v1")
    repositories = [
        LayerRepository("org/many", layer_name=f"Act{index}", version=1)
        if where == "hub"
        else LocalLayerRepository(folder, layer_name=f"Act{index}")
        for index in range(30)
    ]
    counts = {"install": 0, "lock_path": 0}

    def counted(module: Any, name: str) -> None:
        own = getattr(module, name)

        def count(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return own(*args, **kwargs)

        monkeypatch.setattr(module, name, count)

    counted(loads, "install")
    counted(locks, "lock_path")
    classes = kinds(30)
    model = nn.Sequential(*(cls() for cls in classes.values()))
    mapping = {name: {"cpu": repository} for name, repository in zip(classes, repositories, strict=True)}
    with use_kernel_mapping(mapping):
        kernelize(model, mode=Mode.INFERENCE, device="cpu")
    assert [layer(0) for layer in model] == list(range(30))
    assert counts["install"] == 1
    assert counts["lock_path"] <= 1


def test_a_mark_costs_a_few_calls_and_a_mapping_nothing_by_what_is_registered() -> None:
    classes = [type(f"Layer{index}", (nn.Module,), {"forward": lambda self, x: x}) for index in range(20)]
    mark = use_kernel_forward_from_hub("Layer")
    mark(classes.pop())
    assert calls_of(lambda: [mark(cls) for cls in classes]) / len(classes) < 40
    context = use_kernel_mapping({"Layer": {"cpu": Gives(KernelAct)}})

    def enter() -> None:
        with context:
            pass

    alone = calls_of(enter)
    with use_kernel_mapping({f"Layer{index}": {"cpu": Gives(KernelAct)} for index in range(500)}):
        assert calls_of(enter) == alone


def test_a_repository_is_made_with_few_calls() -> None:
    def make() -> LayerRepository:
        return LayerRepository("org/many", layer_name="Act", version=1)

    make()
    assert calls_of(make) < 35
