"""Only backends of which a machine shows a trace are imported, and that changes no answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernels import backends
from kernels.backends import BackendProbe, traces
from kernels.backends.label import Label
from kernels.backends.traces import MachineTraces, torch_shows

BUILT_IN = [entry for entry in backends.list_backends() if entry.origin.kind == "built-in"]

#: A process on a machine without any trace; Torch may be built for something.
BARE = """
import sys
from kernels.backends import traces
traces.ROOT, traces._loads = sys.argv[1], lambda name: False

from kernels import backends
from kernels.backends.torch_build import torch_builds
from kernels.resolver.choice import resolve
from kernels.resolver.target import Target

target = Target.current()
assert target.backends.keys() <= {"cpu", *torch_builds()}, target.backends
resolution = resolve(["torch-cuda", "torch-npu", "torch-cpu", "torch29-cxx11-rocm63-x86_64-linux"], target)
imported = {name.rpartition(".")[2] for name in sys.modules if name.startswith("kernels.backends.builtin.")}
assert imported == {"cpu", *torch_builds()} - {"cuda_driver"}, imported
assert [backend.name for backend in backends.all_backends()] == [entry.name for entry in backends.entries()]
assert Target.probe() == target
print("done")
"""


def label(**given: Any) -> Label:
    return Label.from_literals({"name": "acme", "device_type": "acme", "traces": given})


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(traces, "ROOT", str(tmp_path))
    return tmp_path


def put(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("entry", BUILT_IN, ids=lambda entry: entry.name)
def test_the_probe_of_a_backend_without_a_trace_finds_what_its_label_says(entry: Any) -> None:
    if MachineTraces().shows(entry.label):
        assert entry.name == "cpu" or entry.label.traces is not None
    else:
        assert entry.backend.probe() == BackendProbe(notes=entry.label.without_traces)


def test_no_backend_is_imported_without_a_trace(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path), "PATH": ""}
    command = [sys.executable, "-c", BARE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout == "done\n", done.stderr


def test_a_backend_without_traces_in_its_label_is_always_asked() -> None:
    unknown = Label.from_literals({"name": "acme", "device_type": "acme"})
    assert MachineTraces().shows(unknown)
    assert torch_shows(SimpleNamespace(), unknown)


def test_a_path_is_a_trace(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(root / "home"))
    places = {"/opt/acme/version": "opt/acme/version", "/dev/acme*": "dev/acme0", "~/acme": "home/acme"}
    for path, there in places.items():
        assert not MachineTraces().shows(label(paths=[path]))
        put(root / there)
        assert MachineTraces().shows(label(paths=[path]))


def test_a_variable_is_a_trace(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not MachineTraces().shows(label(environment=["ACME_HOME"]))
    monkeypatch.setenv("ACME_HOME", "")
    assert MachineTraces().shows(label(environment=["ACME_HOME"]))


def test_a_library_that_loads_is_a_trace(root: Path) -> None:
    assert not MachineTraces().shows(label(libraries=["libkernels-no-such.so.1", "kernels-no-such.dll"]))
    if sys.platform.startswith("linux"):
        assert MachineTraces().shows(label(libraries=["libc.so.6"]))


@pytest.mark.parametrize("listed", [True, False])
def test_a_device_on_the_pci_bus_is_a_trace(root: Path, listed: bool) -> None:
    if listed:
        put(root / "proc/bus/pci/devices", "0000\t80861237\t0\t        0\n0018\t10de2330\t2a\tnvidia\n")
    else:
        put(root / "sys/bus/pci/devices/0000:00:00.0/vendor", "0x8086\n")
        put(root / "sys/bus/pci/devices/0000:03:00.0/vendor", "0x10de\n")
    assert MachineTraces().shows(label(pci=["0x10de"]))
    assert not MachineTraces().shows(label(pci=["0x1ae0"]))


def test_elsewhere_than_on_its_systems_there_is_no_trace(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = label(systems=["darwin"], paths=["/"], torch=["version.acme"])
    torch = SimpleNamespace(version=SimpleNamespace(acme="1.0"))
    for system, shown in (("linux", False), ("darwin", True)):
        monkeypatch.setattr(sys, "platform", system)
        assert MachineTraces().shows(given) is torch_shows(torch, given) is shown


def test_what_torch_was_built_for_or_extended_with_is_a_trace() -> None:
    given = label(torch=["version.acme"])
    assert not torch_shows(SimpleNamespace(), given)
    assert not torch_shows(SimpleNamespace(version=SimpleNamespace(acme=None)), given)
    assert torch_shows(SimpleNamespace(version=SimpleNamespace(acme="1.0")), given)
    for name, shown in (("privateuseone", False), ("acme", True)):
        renamed = SimpleNamespace(_C=SimpleNamespace(_get_privateuse1_backend_name=lambda name=name: name))
        assert torch_shows(renamed, given) is shown
