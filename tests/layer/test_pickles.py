"""A kernelized model that is saved loads without this package, with its own forwards."""

from __future__ import annotations

import copy
import importlib
import json
import pickle
import pickletools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from layer_models import Gives, registered
from torch import nn

from kernels.layer import Mode, kernelize, kernelize_report

#: A library that uses this package where it is installed, as transformers does.
LIBRARY = """
import torch
from torch import nn

try:
    from kernels import use_kernel_forward_from_hub, use_kernelized_func
except ImportError:
    use_kernel_forward_from_hub = use_kernelized_func = lambda *arguments: lambda target: target


@use_kernel_forward_from_hub("halve")
def halve(x):
    return x / 2


@use_kernel_forward_from_hub("Add")
class Add(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x + self.weight


class Stateful(Add):
    def __getstate__(self):
        return {**self.__dict__, "cache": None}


class Own(Add):
    def __reduce__(self):
        return make, (type(self), self.__dict__)


def make(cls, state):
    made = cls.__new__(cls)
    nn.Module.__init__(made)
    made.__dict__.update(state)
    return made


@use_kernelized_func(halve)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(Add(), Stateful(), Own(), Hooked())

    def forward(self, x):
        return halve(self.layers(x))


class Hooked(Add):
    def hook(self):
        self._hf_hook, self._old_forward = "hook", self.forward
        self.forward = through
        return self


def through(x):
    return x + 5
"""

LOAD = """
import json, sys
sys.modules["kernels"] = None
import pickle, torch
results = {}
for path in sys.argv[1:]:
    if path.endswith(".pickle"):
        with open(path, "rb") as file:
            model = pickle.load(file)
    else:
        model = torch.load(path, weights_only=False)
    results[path.rpartition("/")[2]] = float(model(torch.zeros(1)))
assert not [name for name in sys.modules if name.startswith("kernels.")]
print(json.dumps(results))
"""


class KernelAdd(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight + 100


class KernelHalve(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / 2 + 1000


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "some_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    registered(Add=Gives(KernelAdd), halve=Gives(KernelHalve))
    yield importlib.import_module("some_library")
    del sys.modules["some_library"]


def test_what_is_saved_loads_where_this_package_is_not_installed(library: Any, tmp_path: Path) -> None:
    model = library.Model().eval()
    model.layers[3].hook()
    kernelize(model, {"Ad": {"cpu": Gives(KernelAdd)}})  # which leaves a note about this name
    assert float(model(torch.zeros(1))) == (3 + 300 + 5) / 2 + 1000
    saved = {
        "model": model,
        "copy": copy.deepcopy(model),
        "layer": model.layers[0],
        "around": nn.Sequential(nn.Identity(), model),
    }
    paths = []
    for name, each in saved.items():
        paths += [tmp_path / f"{name}.pt", tmp_path / f"{name}.pickle"]
        torch.save(each, paths[-2])
        paths[-1].write_bytes(pickle.dumps(each))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            assert ours(pickle.dumps(each, protocol)) == set()
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *map(str, paths)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    own = {"model": 4.0, "copy": 4.0, "layer": 1.0, "around": 4.0}
    assert json.loads(done.stdout) == {path.name: own[path.stem] for path in paths}


def ours(pickled: bytes) -> set[str]:
    """The names of this package in a pickle."""
    return {
        argument
        for _, argument, _ in pickletools.genops(pickled)
        if isinstance(argument, str) and "kernels" in argument
    }


def test_with_this_package_a_loaded_model_says_what_to_do(library: Any, tmp_path: Path) -> None:
    model = kernelize(library.Model().eval())
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    rows = kernelize_report(loaded).rows
    assert {row.reason for row in rows if row.layer == "Add"} == {"pickled since: kernelize it again"}
    assert [name for name in loaded.__dict__ if name not in vars(library.Model())] == []
    kernelize(loaded, mode=Mode.INFERENCE)
    assert torch.equal(loaded(torch.zeros(1)), model(torch.zeros(1)))
    assert list(loaded.state_dict()) == list(model.state_dict()) == list(library.Model().state_dict())


def test_a_spawned_process_gets_the_model(library: Any) -> None:
    from multiprocessing.reduction import ForkingPickler

    model = kernelize(library.Model().eval())
    restored = pickle.loads(bytes(ForkingPickler.dumps(model)))
    assert {row.reason for row in kernelize_report(restored) if row.layer == "Add"} == {
        "pickled since: kernelize it again"
    }
