"""Repositories name a layer; nothing is read or fetched before it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from kernels.errors import UnsupportedSpecifier
from kernels.layer import (
    FuncRepository,
    KernelizeFallback,
    LayerRepository,
    LocalFuncRepository,
    LocalLayerRepository,
    Mode,
    kernelize,
    use_kernel_forward_from_hub,
    use_kernel_mapping,
)
from kernels.layer.device import ModuleDevice
from kernels.layer.repos import kernel_at

LAYERS = """
class Norm(nn.Module):
    def forward(self, x):
        return 7 * x
class Act(nn.Module):
    def forward(self, x):
        return x
"""


def hub(repo_id: str = "org/norm", **changes: Any) -> LayerRepository:
    return LayerRepository(repo_id, **{"layer_name": "Norm", "version": 1, **changes})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_equal_repositories_are_equal_keys() -> None:
    same = [hub(), hub(), hub(user_agent={"framework": "x"})]
    others = [
        hub(version=2),
        hub(version=None, revision="v1"),
        hub("org/other"),
        hub(layer_name="Act"),
        hub(trust_remote_code=True),
        hub(trust_remote_code=["org/norm"]),
        LocalLayerRepository(Path("org/norm"), layer_name="Norm"),
        LocalLayerRepository("org/norm", layer_name="Act"),
        FuncRepository("org/norm", func_name="Norm", version=1),
        LocalFuncRepository("org/norm", func_name="Norm"),
    ]
    assert len({*same, *others}) == 1 + len(others)
    assert hub() != "org/norm"


def test_a_list_of_trusted_repositories_may_change_afterwards() -> None:
    trusted = ["org/norm"]
    repository = hub(trust_remote_code=trusted)
    trusted.append("org/evil")
    assert repository == hub(trust_remote_code=["org/norm"])


@pytest.mark.parametrize(
    ("repository", "text"),
    [
        (hub(), "org/norm version 1, layer Norm"),
        (hub(version=None, revision="main"), "org/norm at main, layer Norm"),
        (LocalLayerRepository(Path("some/where"), layer_name="Norm"), "some/where, layer Norm"),
    ],
)
def test_a_repository_prints_without_asking_anyone(repository: Any, text: str) -> None:
    assert str(repository) == text
    assert text in repr(repository)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: hub(revision="main"), ValueError, "not both"),
        (lambda: hub("norm"), ValueError, "`repo_id` is 'norm'"),
        (lambda: hub(layer_name=None), TypeError, "`layer_name`: expected a name, got None"),
        (lambda: hub(version="1"), TypeError, "`version` is '1'"),
        (lambda: hub(trust_remote_code="org/norm"), TypeError, "`trust_remote_code`: .*got 'org/norm'"),
        (lambda: hub(trust_remote_code=["x"]), ValueError, "is 'x'; expected 'org/name'"),
        (lambda: hub(trust_remote_code=[1]), TypeError, r"is 1 \(int\)"),
        (lambda: hub(user_agent=5), TypeError, "`user_agent`: expected a string or a mapping .*, got 5"),
        (lambda: hub(user_agent={1: 2}), TypeError, "`user_agent`: expected .*, got {1: 2}"),
        (lambda: LocalLayerRepository(3, layer_name="Norm"), TypeError, "`repo_path`: expected a path, got 3"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_are_named(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: LayerRepository("org/norm", layer_name="Norm"),
        pytest.param(
            lambda: FuncRepository("org/norm", func_name="norm"),
            marks=pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning"),
        ),
    ],
)
def test_a_repository_without_version_or_revision_is_made_and_does_not_load(make: Any) -> None:
    """Older versions of transformers make some of them when they are imported."""
    repository = make()
    assert repository == make()
    assert hash(repository) == hash(make())
    with pytest.raises(ValueError, match="A kernel version or revision must be specified for org/norm"):
        repository.load()


def test_a_version_specifier_is_taken_and_does_not_load() -> None:
    """transformers 5.0 has such entries in the mapping that it makes when it is imported."""

    def make(version: Any = ">=0.0.4,<0.1.0") -> LayerRepository:
        return LayerRepository("org/norm", layer_name="Norm", version=version)

    assert make() == make() != make(">=0.0.5")
    with pytest.raises(UnsupportedSpecifier, match=r"specifier '>=0.0.4,<0.1.0' is of an older client"):
        make().load()
    with pytest.raises(TypeError, match="expected an integer such as 1"):
        make("one")


def test_a_layer_with_a_version_specifier_keeps_its_forward_unless_it_may_not() -> None:
    model = nn.Sequential(use_kernel_forward_from_hub("Norm")(type("Norm", (nn.Identity,), {}))())
    old: Any = ">=0.0.4,<0.1.0"
    with use_kernel_mapping({"Norm": {"cpu": LayerRepository("org/norm", layer_name="Norm", version=old)}}):
        [row] = kernelize(model, mode=Mode.INFERENCE, use_fallback=KernelizeFallback.ALL, device="cpu", report=True)
        assert "version specifier '>=0.0.4,<0.1.0'" in str(row.reason)
        with pytest.raises(UnsupportedSpecifier):
            kernelize(model, device="cpu", mode=Mode.INFERENCE)


def test_a_layer_is_loaded_from_a_folder(write_kernel: Any) -> None:
    folder = write_kernel("norm", layers=LAYERS)
    layer = LocalLayerRepository(folder, layer_name="Norm").load()
    assert issubclass(layer, nn.Module)
    assert LocalLayerRepository(folder / "build" / "torch-cpu", layer_name="Norm").load(device="cpu") is layer


def test_a_layer_is_loaded_from_a_hub(write_kernel: Any, hub_folder: Path) -> None:
    write_kernel("norm", layers=LAYERS, repository=hub_folder / "org" / "norm" / "v1")
    layer = hub().load()
    assert layer()(3) == 21
    assert hub().load(device="cpu") is layer


def test_layers_need_not_be_imported_by_the_kernel_itself(write_kernel: Any) -> None:
    folder = write_kernel("norm", init="", layers=LAYERS)
    assert LocalLayerRepository(folder, layer_name="Norm").load()()(1) == 7


def test_a_request_names_the_backend_and_the_device_of_the_module() -> None:
    kernel = kernel_at("org/norm", 1, None, ["org/norm"], "me/1")
    asked = kernel.request(ModuleDevice("mps", 0))
    assert (asked.repo_id, asked.version, asked.backend, asked.device) == ("org/norm", 1, "metal", "mps:0")
    assert (asked.trust_remote_code, asked.user_agent) == (["org/norm"], "me/1")
    assert kernel.request(ModuleDevice("cpu")).device is None
    assert kernel.request(None).backend is None


def test_a_kernel_without_layers_or_without_that_one_says_so(write_kernel: Any) -> None:
    bare = write_kernel("bare", init="")
    with pytest.raises(ValueError, match="layer Norm: the kernel defines no layers"):
        LocalLayerRepository(bare, layer_name="Norm").load()
    full = write_kernel("full", layers=LAYERS)
    with pytest.raises(ValueError, match="'Rope'; its layers are Act, Norm"):
        LocalLayerRepository(full, layer_name="Rope").load()


def test_a_function_is_loaded_from_the_top_level(write_kernel: Any, hub_folder: Path) -> None:
    init = "def scale(x, by=5):\n    return x * by\nscale.has_backward = False\n"
    folder = write_kernel("scale", init=init, repository=hub_folder / "org" / "scale" / "v1")
    with pytest.warns(DeprecationWarning, match="LocalFuncRepository is deprecated"):
        local = LocalFuncRepository(folder, func_name="scale")
    layer = local.load()
    assert layer()(2) == 10
    assert (layer.has_backward, layer.can_torch_compile) == (False, False)
    with pytest.warns(DeprecationWarning, match="FuncRepository is deprecated"):
        remote = FuncRepository("org/scale", func_name="scale", version=1)
    assert remote.load() is layer
    with pytest.warns(DeprecationWarning, match="LocalFuncRepository"):
        absent = LocalFuncRepository(folder, func_name="shift")
    with pytest.raises(ValueError, match="function shift: the kernel has no such function"):
        absent.load()


def test_a_repository_that_is_not_there_is_a_missing_file(hub_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        hub().load()
    with pytest.raises(FileNotFoundError):
        LocalLayerRepository(tmp_path / "nowhere", layer_name="Norm").load()
