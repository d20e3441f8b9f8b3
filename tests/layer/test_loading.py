"""A repository's own `load()` gives the layer, whatever it inherits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from layer_models import Gives, KernelAct, KernelNorm, Model, Norm, OtherNorm, norm_of, registered
from torch import nn

from kernels.errors import MappingError
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
def test_the_load_of_a_subclass_wins(base: Any, arguments: dict[str, Any]) -> None:
    class Mine(base):
        def load(self) -> type[nn.Module]:
            return KernelNorm

    registered(Norm=Mine(**arguments))
    [row] = kernelize(norm := Norm(), mode=INFERENCE, report=True)
    assert norm_of(norm) == 100
    assert row.kernel == "Mine"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_load_that_is_set_on_the_repository_wins(base: Any, arguments: dict[str, Any]) -> None:
    first, second = base(**arguments), base(**arguments)
    first.load, second.load = lambda: KernelNorm, lambda: KernelAct
    registered(Norm=first, Act=second)
    model = kernelize(Model(blocks=1), mode=INFERENCE)
    assert norm_of(model.blocks[0].norm) == 100
    assert norm_of(model.blocks[0].act) == 1000


class WithoutSuper(LayerRepository):
    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def load(self, device: Any = None) -> Any:
        self.device = device
        if isinstance(self.layer, Exception):
            raise self.layer
        return self.layer


def test_equal_repositories_with_loads_of_their_own_are_not_merged() -> None:
    class Mine(LayerRepository):
        def __init__(self, layer: Any) -> None:
            super().__init__("org/absent", layer_name="Norm", version=1)
            self.layer = layer

        def load(self) -> Any:
            return self.layer

    registered(Norm=Mine(KernelNorm), Act=Mine(KernelAct))
    model = kernelize(Model(blocks=1), mode=INFERENCE)
    assert norm_of(model.blocks[0].norm) == 100
    assert norm_of(model.blocks[0].act) == 1000


def test_a_subclass_may_have_a_constructor_of_its_own() -> None:
    repository = WithoutSuper(KernelNorm)
    registered(Norm=repository)
    assert norm_of(kernelize(Norm(), mode=INFERENCE)) == 100
    assert repository.device == "cpu"
    registered(Norm=WithoutSuper(FileNotFoundError("no such kernel")))
    [row] = kernelize(Norm(), mode=INFERENCE, use_fallback=KernelizeFallback.ALL, report=True)
    assert row.reason == "cannot load: no such kernel"
    registered(Norm=WithoutSuper(7))
    with pytest.raises(TypeError, match=r"WithoutSuper\.load\(\): expected a subclass of torch\.nn\.Module, got 7"):
        kernelize(Norm(), mode=INFERENCE)


def test_without_its_constructor_and_without_a_load_a_repository_is_refused() -> None:
    class Neither(LayerRepository):
        def __init__(self) -> None:
            self.repo_id = "org/absent"

    registered(Norm=Neither())
    with pytest.raises(MappingError, match=r"Neither\.__init__ does not call super\(\)\.__init__\(\)"):
        kernelize(Norm(), mode=INFERENCE)


@pytest.mark.parametrize("form", ["plain", "named", "keywords"])
def test_an_inherited_load_is_called_for_the_device_of_the_layer(form: str, write_kernel: Any) -> None:
    code = "class Norm(nn.Module):\n    def forward(self, x):\n        return x * self.weight + 100\n"
    devices = []

    class Plain(LocalLayerRepository):
        def load(self) -> Any:  # type: ignore[override]
            devices.append("cpu")
            return super().load("cpu")

    class Named(LocalLayerRepository):
        def load(self, *, device: Any = None) -> Any:  # type: ignore[override]
            devices.append(device)
            return super().load(device)

    class Keywords(LocalLayerRepository):
        def load(self, **keywords: Any) -> Any:
            devices.append(keywords["device"])
            return super().load(**keywords)

    repository = {"plain": Plain, "named": Named, "keywords": Keywords}[form]
    registered(Norm=repository(write_kernel("norm", layers=code), layer_name="Norm"))
    assert norm_of(kernelize(Norm(), mode=INFERENCE)) == 100
    assert devices == ["cpu"]


def test_what_else_a_subclass_overrides_is_used(write_kernel: Any, hub_folder: Path) -> None:
    code = "class Norm(nn.Module):\n    def forward(self, x):\n        return x * self.weight + 100\n"
    write_kernel("norm", layers=code, repository=hub_folder / "org" / "norm" / "v1")
    folder = write_kernel("other", layers=code.replace("100", "200"))

    class Another(LayerRepository):
        def layer_in(self, kernel: Any) -> Any:
            return OtherNorm

    class FromFolder(LayerRepository):
        def load_kernel(self, device: Any) -> Any:
            return LocalLayerRepository(folder, layer_name="Norm").load_kernel(device)

    registered(Norm=Another("org/norm", layer_name="Any", version=1))
    assert norm_of(kernelize(Norm(), mode=INFERENCE)) == 200
    registered(Norm=FromFolder("org/norm", layer_name="Norm", version=1))
    assert norm_of(kernelize(Norm(), mode=INFERENCE)) == 200


def test_an_object_with_a_load_needs_nothing_else() -> None:
    class Unhashable(Gives):
        def load(self, device: str = "its own default") -> Any:
            assert device == "its own default"
            return super().load()

        __hash__ = None  # type: ignore[assignment]

    registered(Norm=Unhashable(KernelNorm))
    assert norm_of(kernelize(Norm(), mode=INFERENCE)) == 100
