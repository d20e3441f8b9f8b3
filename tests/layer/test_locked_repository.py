"""Locked layers: the lock is read when they are made, and all of a model's are fetched side by side."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub
from layer_models import Model, registered
from torch import nn

from kernels.errors import LockError, NotLocked
from kernels.layer import LayerRepository, LockedFuncRepository, LockedLayerRepository, Mode, kernelize, unkernelize
from kernels.models.lockfile import Lock, Pin
from kernels.models.requirement import Requirement

LAYERS = """
import torch
from torch import nn

class Any(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 100
"""


def write_lock(path: Path, **commits: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pins = [Pin(Requirement(f"acme/{name}", version=1), commit) for name, commit in commits.items()]
    path.write_bytes(Lock(tuple(pins)).to_bytes())
    return path


def locked(path: Path | str, repo_id: str = "acme/norm", layer: str = "Any", **options: Any) -> LockedLayerRepository:
    return LockedLayerRepository(repo_id, lockfile=path, layer_name=layer, **options)


@pytest.fixture
def kernels_of(hub: TestHub, tmp_path: Path) -> Path:
    """A lock of two kernels, whose branches have moved on since."""
    for name in ("norm", "act"):
        hub.make_repo(f"acme/{name}", variants={"torch-cpu": {"layers.py": LAYERS}})
    return write_lock(tmp_path / "kernels.lock", norm=hub.commit("acme/norm"), act=hub.commit("acme/act"))


def test_a_model_is_kernelized_with_locked_layers_side_by_side(hub: TestHub, kernels_of: Path) -> None:
    commits = {name: hub.commit(f"acme/{name}") for name in ("norm", "act")}
    registered(Norm=locked(kernels_of), Act=locked(kernels_of, "acme/act"))
    hub.latency = 0.25
    model = Model(blocks=2)
    rows = {row.layer: row for row in kernelize(model, mode=Mode.INFERENCE, report=True)}
    assert {row.kernel: row.commit for row in rows.values() if row.kernel} == {
        f"acme/{name}": commit for name, commit in commits.items()
    }
    assert hub.count("refs") == 2  # whether branches lead to the commits, beside the listings
    assert hub.depth() <= 5, hub.asked()
    unkernelize(model)


def test_a_layer_is_loaded_from_the_lock_that_it_was_made_with(hub: TestHub, kernels_of: Path) -> None:
    repository = locked(kernels_of)
    kernels_of.unlink()
    assert issubclass(repository.load(), nn.Module)
    with pytest.raises(LockError, match="Cannot read"):
        locked(kernels_of)


def test_a_folder_never_stands_in_for_a_locked_layer(
    hub: TestHub, kernels_of: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOCAL_KERNELS", f"acme/norm={tmp_path / 'none'}")
    assert issubclass(locked(kernels_of).load(), nn.Module)


def test_what_is_not_locked_is_a_value_error_when_the_repository_is_made(tmp_path: Path) -> None:
    path = write_lock(tmp_path / "kernels.lock", norm="1" * 40)
    with pytest.raises(ValueError, match="acme/other is not locked"):
        locked(path, "acme/other")
    with pytest.raises(NotLocked, match="No lockfile was found"):
        LockedLayerRepository("acme/norm", layer_name="Any")
    for options, error in (
        ({"layer": ""}, TypeError),
        ({"repo_id": "norm"}, ValueError),
        ({"user_agent": 5}, TypeError),
    ):
        with pytest.raises(error):
            locked(path, **options)  # type: ignore[arg-type]


def test_equal_locked_repositories_are_equal_keys(tmp_path: Path) -> None:
    one = write_lock(tmp_path / "a" / "kernels.lock", norm="1" * 40)
    same = write_lock(tmp_path / "b" / "kernels.lock", norm="1" * 40)
    other = write_lock(tmp_path / "c" / "kernels.lock", norm="2" * 40)
    more = write_lock(tmp_path / "d" / "kernels.lock", norm="1" * 40, act="1" * 40)
    equal = [locked(one), locked(str(one)), locked(same), locked(one, user_agent="x")]
    others = [
        locked(other),
        locked(more),  # it may pin what the kernel depends on
        locked(one, layer="Other"),
        locked(one, trust_remote_code=True),
        LayerRepository("acme/norm", layer_name="Any", version=1),
    ]
    assert len({*equal, *others}) == 1 + len(others)
    assert str(locked(one)) == f"acme/norm version 1 (commit {'1' * 12}, pinned by {one}), layer Any"


def test_repositories_made_where_other_locks_count_are_not_equal(tmp_path: Path) -> None:
    def made_in(folder: Path) -> LayerRepository:
        (folder / "mapping.py").write_text(
            "from kernels import LayerRepository\n"
            "repository = LayerRepository('acme/norm', layer_name='Any', version=1)\n"
        )
        spec = importlib.util.spec_from_file_location("mapping", folder / "mapping.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found: LayerRepository = module.repository
        return found

    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    for name in ("a", "b"):
        write_lock(tmp_path / name / "kernels.lock", norm="1" * 40)
    a, b, c = (made_in(tmp_path / name) for name in ("a", "b", "c"))
    assert a == made_in(tmp_path / "a")
    assert a != b
    assert a != c
    assert c == LayerRepository("acme/norm", layer_name="Any", version=1)
    assert hash(a) == hash(b) == hash(c)


def test_a_locked_function_is_deprecated_and_serves(hub: TestHub, tmp_path: Path) -> None:
    hub.make_repo("acme/norm")
    path = write_lock(tmp_path / "kernels.lock", norm=hub.commit("acme/norm"))
    with pytest.warns(DeprecationWarning, match="LockedFuncRepository is deprecated") as caught:
        repository = LockedFuncRepository("acme/norm", lockfile=path, func_name="double")
    assert caught[0].filename == __file__
    assert repository.load()()(3) == 6
    assert str(repository).endswith("function double")
