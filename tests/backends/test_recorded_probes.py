"""Machines that cannot be had here, from what their vendors document: probed, written down, and decided for.

Each record in `recorded/` holds files and answers as the cited documents give them, and what must come of it. The
files are laid out under a temporary folder and the backend's own probe reads them there. Where nothing but the
vendor's runtime can answer (torch.xpu, sysctl on macOS), a stand-in returns the recorded values. `torch` is the
environment chosen for a machine: the facts of an installation that backends look at.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernels import backends
from kernels.backends import BackendProbe, torch_build, traces
from kernels.backends.builtin import cann, metal
from kernels.backends.builtin.cann import CANN
from kernels.backends.builtin.cuda import CUDA
from kernels.backends.builtin.neuron import Neuron
from kernels.backends.builtin.rocm import ROCm
from kernels.backends.builtin.tpu import TPU
from kernels.backends.builtin.xpu import XPU
from kernels.backends.traces import MachineTraces, torch_shows
from kernels.models.metadata import BackendInfo, KernelName, Metadata
from kernels.resolver import this_machine
from kernels.resolver.choice import resolve
from kernels.resolver.target import Target

RECORDS = sorted((Path(__file__).parent / "recorded").glob("*.json"))
MACHINES = [
    pytest.param(record["backend"], machine, id=f"{record['backend']}: {machine['machine']}")
    for record in (json.loads(path.read_text(encoding="utf-8")) for path in RECORDS)
    for machine in record["machines"]
]
#: What the vendors' runtimes take from the environment; a test must not depend on this machine's.
VARIABLES = (
    "ASCEND_HOME_PATH",
    "ASCEND_RT_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "HSA_OVERRIDE_GFX_VERSION",
    "KERNELS_BACKEND",
    "ROCM_PATH",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "ZE_FLAT_DEVICE_HIERARCHY",
)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that every backend takes for the root of the file system."""
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    for kind, member in ((ROCm, "sysfs"), (Neuron, "sysfs"), (TPU, "sysfs"), (XPU, "sysfs"), (CANN, "dev")):
        monkeypatch.setattr(kind, member, under(tmp_path, str(vars(kind)[member])))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "opt/rocm"))
    monkeypatch.setenv("HOME", str(tmp_path / "home/user"))
    monkeypatch.setattr(cann, "_TOOLKITS", tuple(under(tmp_path, str(path)) for path in cann._TOOLKITS))
    monkeypatch.setattr(CUDA, "probe", lambda self: BackendProbe())
    monkeypatch.setattr(traces, "ROOT", str(tmp_path))
    return tmp_path


def under(root: Path, path: str) -> Path:
    return root / path.replace("~", "home/user", 1).lstrip("/")


def lay_out(root: Path, machine: dict[str, Any]) -> None:
    """Write a record's files; `{n}` in a path stands for every device."""
    for number in range(machine.get("count", 1)):
        for path, text in machine["files"].items():
            file = under(root, path.replace("{n}", str(number)))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    for path, goal in machine.get("links", {}).items():
        link = under(root, path)
        link.parent.mkdir(parents=True, exist_ok=True)
        under(root, goal).mkdir(parents=True, exist_ok=True)
        link.symlink_to(under(root, goal), target_is_directory=True)


def torch_of(machine: dict[str, Any]) -> SimpleNamespace:
    """An installed Torch as the record has it: its version facts, and what extensions add."""
    facts = machine["torch"]
    mps = SimpleNamespace(is_available=lambda: facts.get("mps", False))
    torch = SimpleNamespace(
        __version__=facts["version"],
        version=SimpleNamespace(cuda=None, hip=facts.get("hip"), xpu=facts.get("xpu")),
        backends=SimpleNamespace(mps=mps),
        cxx11_abi=True,
    )
    if "privateuse1" in facts:
        torch._C = SimpleNamespace(_get_privateuse1_backend_name=lambda: facts["privateuse1"])
    if "neuron" in facts:
        torch.neuron = SimpleNamespace()
    if "tpu" in facts:
        torch.backends.tpu = SimpleNamespace()
    return torch


def xpu_runtime(devices: list[dict[str, Any]]) -> SimpleNamespace:
    """What `torch.xpu` answers once it is initialised."""
    return SimpleNamespace(
        device_count=lambda: len(devices),
        is_initialized=lambda: True,
        current_device=lambda: 0,
        get_device_properties=lambda index: SimpleNamespace(**devices[index]),
    )


def sysctl(answers: dict[str, str]) -> Callable[[object], SimpleNamespace]:
    """A C library whose `sysctlbyname` gives recorded answers."""

    def by_name(name: bytes, buffer: Any, size: Any, new: Any, length: Any) -> int:
        buffer.value = answers[name.decode()].encode()
        return 0

    return lambda path: SimpleNamespace(sysctlbyname=by_name)


@pytest.fixture
def become(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], None]:
    """Turn this process's surroundings into a recorded machine's."""

    def turn(machine: dict[str, Any]) -> None:
        lay_out(elsewhere, machine)
        for name, value in machine["environment"].items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(platform, "system", lambda: machine["os"].capitalize())
        monkeypatch.setattr(sys, "platform", machine["os"])
        monkeypatch.setattr(platform, "machine", lambda: machine["cpu"])
        if "os_version" in machine:
            monkeypatch.setattr(platform, "mac_ver", lambda: (machine["os_version"], ("", "", ""), machine["cpu"]))
        if "sysctl" in machine:
            monkeypatch.setattr(metal.ctypes, "CDLL", sysctl(machine["sysctl"]))
        torch = torch_of(machine)
        monkeypatch.setattr(torch_build, "installed_torch", lambda: torch)
        monkeypatch.setattr(this_machine, "installed_torch", lambda: torch)
        monkeypatch.setattr(this_machine, "_tvm_ffi", lambda: None)
        if "runtime" in machine:
            torch.xpu = xpu_runtime(machine["runtime"])
            monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]
        else:
            monkeypatch.delitem(sys.modules, "torch", raising=False)

    return turn


def metadata(backend: str, archs: list[str] | None) -> Metadata:
    return Metadata("_relu_1234567", KernelName("relu"), BackendInfo(backend, None if archs is None else tuple(archs)))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_every_record_says_where_its_facts_stand(path: Path) -> None:
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["backend"] == path.stem == backends.get(path.stem).name
    for machine in record["machines"]:
        assert len(machine["sources"]) >= 2
        for source in machine["sources"]:
            assert set(source) == {"title", "url", "says"}
            assert source["url"].startswith("https://")
            assert all(source.values())


@pytest.mark.parametrize(("backend", "machine"), MACHINES)
def test_a_recorded_machine_is_probed_as_its_vendor_documents_it(
    become: Callable[[dict[str, Any]], None], backend: str, machine: dict[str, Any]
) -> None:
    become(machine)
    probe = backends.get(backend).probe()
    assert probe.found
    assert (None if probe.version is None else str(probe.version)) == machine["found"]
    assert [device.index for device in probe.devices] == list(range(len(machine["devices"])))
    for device, wanted in zip(probe.devices, machine["devices"], strict=True):
        assert (device.backend, device.name, device.arch) == (backend, wanted["name"], wanted["arch"])
        assert device.capability == wanted["capability"]
        if machine["os"] != "darwin":  # there it is this machine's own
            assert device.memory == wanted["memory"]


@pytest.mark.parametrize(("backend", "machine"), MACHINES)
def test_a_recorded_machine_shows_a_trace_of_its_backend_alone(
    become: Callable[[dict[str, Any]], None], backend: str, machine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    become(machine)
    monkeypatch.delenv("ROCM_PATH", raising=False)  # set for the probe that is tested here
    if "ROCM_PATH" in machine["environment"]:
        monkeypatch.setenv("ROCM_PATH", machine["environment"]["ROCM_PATH"])
    monkeypatch.setattr(traces, "_loads", lambda name: False)
    labels = [entry.label for entry in backends.entries() if entry.label.traces is not None]
    built = {label.names.name for label in labels if torch_shows(torch_build.installed_torch(), label)}
    assert backend in built
    if not machine.get("runtime"):
        assert backend in {label.names.name for label in labels if MachineTraces().shows(label)}
    assert built <= {backend, "metal"}


@pytest.mark.parametrize(("backend", "machine"), MACHINES)
def test_a_recorded_machine_is_told_its_build_and_why_each_other_one_is_not(
    become: Callable[[dict[str, Any]], None], backend: str, machine: dict[str, Any]
) -> None:
    become(machine)
    probed = Target.probe()
    target = Target.from_json(probed.to_json())
    assert target == probed
    assert target.backends[backend] == machine["version"]
    assert len(target.backend_devices(backend)) == len(machine["devices"])

    known = {name: metadata(backend, archs) for name, archs, _ in machine["variants"]}
    resolution = resolve([name for name, _, _ in machine["variants"]], target, backend=backend, metadata=known)
    fitting = [name for name, _, why in machine["variants"] if why is None]
    assert (None if resolution.best is None else resolution.best.name) == next(iter(fitting), None)
    assert sorted(variant.name for variant in resolution.accepted) == sorted(fitting)
    reasons = {each.variant.variant_str: each.reason for each in resolution.rejected}
    for name, _, why in machine["variants"]:
        assert why is None or why in reasons[name], name


def amd(*uniques: int) -> dict[str, Any]:
    """A machine with one GPU of each unique id."""
    nodes = "/sys/class/kfd/kfd/topology/nodes"
    return {
        "files": {
            f"{nodes}/{number}/properties": f"gfx_target_version {90402 + 100 * number}\nunique_id {unique}\n"
            for number, unique in enumerate(uniques)
        }
    }


# ROCR-Runtime, amd_filter_device.cpp; clr, rocdevice.cpp (Device::init); torch/cuda/__init__.py.
@pytest.mark.parametrize(
    ("environment", "numbers"),
    [
        ({}, [0, 1, 2]),
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
        ({"ROCR_VISIBLE_DEVICES": " 2 , 0x1"}, [2, 1]),
        ({"ROCR_VISIBLE_DEVICES": "1,1,0"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "0,one,2"}, [0]),
        ({"ROCR_VISIBLE_DEVICES": "08,1"}, []),
        ({"ROCR_VISIBLE_DEVICES": "GPU-ABC0000000000001"}, [0]),
        ({"ROCR_VISIBLE_DEVICES": "gpu-abd"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-AB"}, []),  # two begin so
        ({"ROCR_VISIBLE_DEVICES": "GPU-0000000000000000"}, []),  # one without an id has no UUID
        ({"HIP_VISIBLE_DEVICES": "1, 2"}, [1]),
        ({"HIP_VISIBLE_DEVICES": "2,2"}, []),
        ({"HIP_VISIBLE_DEVICES": "GPU-abd0000000000002,0"}, [1, 0]),
        ({"ROCR_VISIBLE_DEVICES": "2,1", "HIP_VISIBLE_DEVICES": "1"}, [1]),
    ],
)
def test_amd_gpus_are_chosen_as_the_runtimes_read_their_lists(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], numbers: list[int]
) -> None:
    lay_out(elsewhere, amd(0xABC0000000000001, 0xABD0000000000002, 0))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    archs = ["gfx942", "gfx952", "gfx962"]
    assert [device.arch for device in ROCm().probe().devices] == [archs[number] for number in numbers]


# libhsakmt, topology.c: the node's own variable comes first; what is no version is passed by.
@pytest.mark.parametrize(
    ("environment", "archs"),
    [
        ({"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}, ["gfx1030", "gfx1030"]),
        ({"HSA_OVERRIDE_GFX_VERSION_1": "11.0.0"}, ["gfx942", "gfx1100"]),
        ({"HSA_OVERRIDE_GFX_VERSION": "9.0.10", "HSA_OVERRIDE_GFX_VERSION_0": "9.4.2"}, ["gfx942", "gfx90a"]),
        ({"HSA_OVERRIDE_GFX_VERSION": "gfx1030"}, ["gfx942", "gfx952"]),
    ],
)
def test_an_amd_gpu_is_what_its_user_bids_it_be(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], archs: list[str]
) -> None:
    lay_out(elsewhere, amd(1, 2))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert [device.arch for device in ROCm().probe().devices] == archs


# CANN 9.0.0, "ASCEND_RT_VISIBLE_DEVICES", with its own examples.
@pytest.mark.parametrize(
    ("value", "count"), [("1", 1), ("1,2,3", 3), ("1, 2,3", 1), ("1,3,8", 2), ("", 0), ("-1", 0), ("0,0", 1)]
)
def test_ascend_chips_are_chosen_by_logical_ids(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, value: str, count: int
) -> None:
    lay_out(elsewhere, {"files": {f"/dev/davinci{number}": "" for number in range(8, 16)}})
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", value)
    assert len(CANN().probe().devices) == count


# torch/xpu/__init__.py, _parse_visible_devices and _enum_zes_device_infos.
@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, 3),
        ({"ZE_AFFINITY_MASK": "1,2"}, 2),
        ({"ZE_AFFINITY_MASK": "0"}, 1),  # the processor's own, where no card is left
        ({"ZE_AFFINITY_MASK": "0.0,0.1"}, 0),
        ({"ZE_AFFINITY_MASK": "9"}, 0),
        ({"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}, 2),
        ({"ZE_FLAT_DEVICE_HIERARCHY": "COMBINED"}, 3),
    ],
)
def test_intel_devices_are_counted_as_torch_counts_them(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], count: int
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    cards = {"renderD128": "0000:00:02.0", "renderD129": "0000:03:00.0", "renderD130": "0000:3a:00.0"}
    files, links = {}, {}
    for card, address in cards.items():
        files[f"/sys/devices/{address}/vendor"] = "0x8086\n"
        links[f"/sys/class/drm/{card}/device"] = f"/sys/devices/{address}"
        links[f"/sys/devices/{address}/driver"] = "/sys/bus/pci/drivers/xe"
    for tile in (0, 1):
        files[f"/sys/devices/0000:3a:00.0/tile{tile}/id"] = ""
    lay_out(elsewhere, {"files": files, "links": links})
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert len(XPU().probe().devices) == count


def test_a_tpu_whose_files_cannot_be_read_is_none(elsewhere: Path) -> None:
    root = under(elsewhere, "/sys/bus/pci/devices")
    lay_out(elsewhere, {"files": {"/sys/bus/pci/devices/0000:00:04.0/vendor": "0x1ae0\n"}})
    (root / "0000:00:05.0").mkdir()
    assert TPU().probe() == BackendProbe()


@pytest.mark.parametrize("name", [each.name for each in backends.all_backends()])
def test_every_built_in_family_says_who_makes_it_and_how_to_write_for_it(name: str) -> None:
    backend = backends.get(name)
    assert backend.vendor
    if name not in ("cpu", "cuda"):
        assert 2 <= len(backend.guidance_block.splitlines()) <= 6
        assert 2 <= len(backend.kernel_guidance.splitlines()) <= 6
        assert backend.cuda_hacks_to_strip
        if backend.device_type != "cuda":
            assert "torch.cuda." in backend.cuda_hacks_to_strip
