"""A repository's own `load()` gives the layer, whatever it inherits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from layer_models import Gives, KernelAct, KernelNorm, Model, Norm, norm_of, registered
from torch import nn

from kernels.layer import (
    FuncRepository,
    KernelizeFallback,
    LayerRepository,
    LocalFuncRepository,
    LocalLayerRepository,
    LockedFuncRepository,
    LockedLayerRepository,
    Mode,
    kernelize,
)
from kernels.models.lockfile import Lock, Pin
from kernels.models.requirement import Requirement

INFERENCE = Mode.INFERENCE

#: A repository of each class, of a kernel that does not exist: nobody may look for it.
MAKE: dict[type, dict[str, Any]] = {
    LayerRepository: {"repo_id": "org/absent", "layer_name": "Norm", "version": 1},
    LocalLayerRepository: {"repo_path": "/absent", "layer_name": "Norm"},
    FuncRepository: {"repo_id": "org/absent", "func_name": "norm", "version": 1},
    LocalFuncRepository: {"repo_path": "/absent", "func_name": "norm"},
    LockedLayerRepository: {"repo_id": "org/absent", "layer_name": "Norm"},
    LockedFuncRepository: {"repo_id": "org/absent", "func_name": "norm"},
}


@pytest.fixture(params=MAKE, ids=lambda base: base.__name__)
def base(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def arguments(base: Any, tmp_path: Path) -> dict[str, Any]:
    if not base.__name__.startswith("Locked"):
        return MAKE[base]
    path = tmp_path / "kernels.lock"
    path.write_bytes(Lock((Pin(Requirement("org/absent", version=1), "1" * 40),)).to_bytes())
    return {**MAKE[base], "lockfile": path}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_another_load_wins_over_that_of_the_class(base: Any, arguments: dict[str, Any]) -> None:
    class Mine(base):
        def load(self) -> type[nn.Module]:
            return KernelNorm

    changed = base(**arguments)
    changed.load = lambda: KernelAct
    registered(Norm=Mine(**arguments), Act=changed)
    model = Model(blocks=1)
    rows = kernelize(model, mode=INFERENCE, report=True)
    assert norm_of(model.blocks[0].norm) == 100
    assert norm_of(model.blocks[0].act) == 1000
    assert {row.layer: row.kernel for row in rows if row.kernel} == {"Norm": "Mine", "Act": base.__name__}


class WithoutSuper(LayerRepository):
    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def load(self) -> Any:  # type: ignore[override]
        if isinstance(self.layer, Exception):
            raise self.layer
        return self.layer


def test_equal_repositories_with_loads_of_their_own_are_not_merged() -> None:
    class Mine(LayerRepository):
        def __init__(self, layer: Any) -> None:
            super().__init__("org/absent", layer_name="Norm", version=1)
            self.layer = layer

        def load(self) -> Any:  # type: ignore[override]
            return self.layer

    registered(Norm=Mine(KernelNorm), Act=Mine(KernelAct))
    model = kernelize(Model(blocks=1), mode=INFERENCE)
    assert norm_of(model.blocks[0].norm) == 100
    assert norm_of(model.blocks[0].act) == 1000


def test_a_subclass_may_have_a_constructor_of_its_own() -> None:
    registered(Norm=WithoutSuper(KernelNorm))
    assert norm_of(kernelize(Norm(), mode=INFERENCE)) == 100
    registered(Norm=WithoutSuper(FileNotFoundError("no such kernel")))
    [row] = kernelize(Norm(), mode=INFERENCE, use_fallback=KernelizeFallback.ALL, report=True)
    assert row.reason == "cannot load: no such kernel"
    registered(Norm=WithoutSuper(7))
    with pytest.raises(TypeError, match=r"WithoutSuper\.load\(\): expected a subclass of torch\.nn\.Module, got 7"):
        kernelize(Norm(), mode=INFERENCE)


def test_an_overridden_load_may_call_the_inherited_one(write_kernel: Any) -> None:
    class Mine(LocalLayerRepository):
        def load(self, device: Any = None) -> Any:
            return super().load(device)

    code = "class Norm(nn.Module):\n    def forward(self, x):\n        return x * self.weight + 100\n"
    registered(Norm=Mine(write_kernel("norm", layers=code), layer_name="Norm"))
    assert norm_of(kernelize(Norm(), mode=INFERENCE)) == 100


def test_an_object_with_a_load_needs_nothing_else() -> None:
    class Unhashable(Gives):
        def load(self, device: str = "its own default") -> Any:
            assert device == "its own default"
            return super().load()

        __hash__ = None  # type: ignore[assignment]

    registered(Norm=Unhashable(KernelNorm))
    assert norm_of(kernelize(Norm(), mode=INFERENCE)) == 100
