"""The probe on a real NVIDIA GPU: what it says is what Torch says, and CUDA is not initialised by asking."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from kernels import backends
from kernels.backends.builtin import cuda_driver
from kernels.resolver.target import Target

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def needs_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or torch.version.cuda is None:
        pytest.skip("no NVIDIA GPU that this Torch can use")


def run(script: str, **environment: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return json.loads(done.stdout)


COMPARE = """
import json, sys
from kernels.resolver.target import Target
from kernels.backends import torch_build
target = Target.current()
cheap, initialised = "torch" not in sys.modules, False
files = [target.torch, target.cxx11_abi, list(target.torch_backends), target.backends.get("cuda")]
ours = [[d.index, d.name, d.capability] for d in target.backend_devices("cuda")]
import torch
initialised = torch.cuda.is_initialized()
again = Target.current()
module = [again.torch, again.cxx11_abi, list(again.torch_backends), again.backends.get("cuda")]
found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
theirs = [[index, each.name, each.major * 10 + each.minor] for index, each in enumerate(found)]
memory = [d.memory >= torch.cuda.get_device_properties(d.index).total_memory for d in target.backend_devices("cuda")]
json.dump([cheap, initialised, files == module, ours, theirs, memory], sys.stdout)
"""


def test_devices_are_those_torch_sees_and_neither_torch_nor_cuda_was_needed() -> None:
    cheap, initialised, same, ours, theirs, memory = run(COMPARE)
    assert cheap
    assert not initialised
    assert same
    assert ours == theirs
    assert len(ours) >= 1
    assert all(memory)


def test_devices_chosen_by_uuid_are_numbered_as_torch_numbers_them() -> None:
    uuids = [gpu.uuid for gpu in cuda_driver.look().gpus]
    _, _, _, ours, theirs, _ = run(COMPARE, CUDA_VISIBLE_DEVICES=",".join(reversed(uuids)))
    assert ours == theirs
    assert len(ours) == len(uuids)


def test_hidden_devices_are_not_listed() -> None:
    script = """
import json, sys
from kernels.resolver.target import Target
json.dump(len(Target.current().backend_devices("cuda")), sys.stdout)
"""
    assert run(script, CUDA_VISIBLE_DEVICES="") == 0
    assert run(script, CUDA_VISIBLE_DEVICES="-1") == 0


def test_after_probing_a_forked_child_can_still_use_cuda() -> None:
    script = """
import json, multiprocessing, sys
from kernels.resolver.target import Target

def child(answers):
    import torch
    answers.put(torch.ones(4, device="cuda").sum().item())

target = Target.current()
context = multiprocessing.get_context("fork")
answers = context.Queue()
process = context.Process(target=child, args=(answers,))
process.start()
json.dump(answers.get(timeout=120), sys.stdout)
process.join()
"""
    assert run(script) == 4.0


def test_cuda_itself_lists_the_same_devices() -> None:
    notes: list[str] = []
    listed = cuda_driver._ask_child("devices", notes)
    assert notes == []
    ours = cuda_driver.look().gpus
    assert [(each.uuid, each.name, each.capability) for each in cuda_driver._gpus_of(listed)] == [
        (each.uuid, each.name, each.capability) for each in ours
    ]


def test_the_driver_alone_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = cuda_driver.look()
    load = cuda_driver._load
    monkeypatch.setattr(cuda_driver, "_load", lambda names: None if "nvidia-ml" in "".join(names) else load(names))
    driver = cuda_driver.look()
    assert driver.driver_version == whole.driver_version
    assert [gpu.uuid for gpu in driver.gpus] == [gpu.uuid for gpu in whole.gpus]


def test_without_torch_driver_runtime_and_devices_are_found() -> None:
    script = """
import importlib.util, json, sys
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else find_spec(name, *rest)
from kernels.resolver.target import Target
target = Target.current()
json.dump([target.torch, target.default_backend, target.backends["cuda"], len(target.devices)], sys.stdout)
"""
    torch, backend, version, devices = run(script)
    assert (torch, backend) == (None, "cuda")
    assert version.split(".")[0].isdecimal()
    assert devices >= 1


def test_the_current_device_follows_torch_once_it_uses_cuda() -> None:
    import torch

    last = torch.cuda.device_count() - 1
    with torch.cuda.device(last):
        torch.ones(1, device="cuda")
        assert Target.current().current_device == last
        assert backends.get("cuda").current_device() == last
