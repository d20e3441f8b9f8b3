"""Probes of hardware that is not here, over recorded copies of what their drivers show.

ROCm: /sys/class/kfd/kfd/topology of an MI300X node, fields as in the Linux kernel's kfd_topology.c; Neuron: AWS Neuron
Sysfs User Guide; TPU: PCI ids from jax/_src/hardware_utils.py; Ascend: /dev and ascend_toolkit_install.info as the
CANN installation guide lists them; Intel: /sys/class/drm as the xe driver fills it.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernels import backends
from kernels.backends import BackendProbe, Found, MajorMinor
from kernels.backends.builtin.cann import CANN
from kernels.backends.builtin.metal import Metal
from kernels.backends.builtin.neuron import Neuron
from kernels.backends.builtin.rocm import ROCm
from kernels.backends.builtin.tpu import TPU
from kernels.backends.builtin.xpu import XPU


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def backend_at(kind: type, folder: Path, member: str = "sysfs") -> Any:
    return type(kind.__name__, (kind,), {member: folder})()


@pytest.fixture
def amd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A processor node and three GPUs: two MI300X and an RX 7900 XTX."""
    nodes = tmp_path / "nodes"
    write(nodes / "0/properties", "cpu_cores_count 96\nsimd_count 0\ngfx_target_version 0\n")
    for number, version, unique, size in [
        (1, 90402, 17, 206141652992),
        (2, 90402, 18, 206141652992),
        (10, 110000, 0, 1),
    ]:
        write(
            nodes / f"{number}/properties",
            f"simd_count 1216\ngfx_target_version {version}\nunique_id {unique}\nname_with two words\n",
        )
        write(nodes / f"{number}/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {size}\n")
        write(nodes / f"{number}/mem_banks/1/properties", "heap_type 4\nsize_in_bytes 65536\n")
    write(tmp_path / "rocm/.info/version", "6.4.3-128\n")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return nodes


def test_amd_gpus_are_read_from_the_kernels_topology(amd: Path) -> None:
    probe = backend_at(ROCm, amd).probe()
    assert (probe.found, str(probe.version), probe.notes) == (True, "6.4", ())
    assert [(each.index, each.arch, each.capability) for each in probe.devices] == [
        (0, "gfx942", 94),
        (1, "gfx942", 94),
        (2, "gfx1100", 110),
    ]
    assert probe.devices[0].memory == 206141652992


@pytest.mark.parametrize(
    ("environment", "archs"),
    [
        ({"HIP_VISIBLE_DEVICES": "2"}, ["gfx1100"]),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, ["gfx1100", "gfx942"]),
        ({"ROCR_VISIBLE_DEVICES": "2,1", "HIP_VISIBLE_DEVICES": "0"}, ["gfx1100"]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-0000000000000011"}, ["gfx942"]),
        ({"HIP_VISIBLE_DEVICES": "9"}, []),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0,1"}, ["gfx942"]),
    ],
)
def test_amd_gpus_can_be_hidden(
    amd: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], archs: list[str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert [device.arch for device in backend_at(ROCm, amd).probe().devices] == archs


def test_an_amd_gpu_without_rocm_is_a_note(amd: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "nowhere"))
    probe = backend_at(ROCm, amd).probe()
    assert probe.version is None
    assert probe.notes == ("an AMD GPU is there, but no ROCm",)


def test_rocm_without_a_gpu_is_not_there(amd: Path, tmp_path: Path) -> None:
    found = backend_at(ROCm, tmp_path / "nowhere")
    found.wsl = tmp_path / "dxg"
    assert found.probe() == BackendProbe(notes=("ROCm 6.4 is installed, but no AMD GPU, or no driver (amdgpu) for it",))
    # A Windows host shows its GPU in another way.
    found.wsl.touch()
    assert (found.probe().found, str(found.probe().version)) == (True, "6.4")


def test_a_cann_toolkit_without_a_device_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "toolkit/ascend_toolkit_install.info", "version=8.2.RC1\n")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "toolkit"))
    (tmp_path / "dev").mkdir()
    assert backend_at(CANN, tmp_path / "dev", "dev").probe() == BackendProbe(
        notes=("CANN 8.2 is installed, but no Ascend device, or no driver for it (no /dev/davinci0)",)
    )


@pytest.mark.skipif(not hasattr(os, "setresuid") or os.geteuid() != 0, reason="root may read every folder")
def test_a_home_that_may_not_be_read_is_no_failure(tmp_path: Path) -> None:
    code = (
        "import os\n"
        "from kernels.backends import all_backends\n"
        "from kernels.backends.probing import probe_backend\n"
        "from kernels.backends.builtin import cuda_driver\n"
        "every = all_backends()\n"
        "os.setresuid(65534, 65534, 65534)\n"
        "print([each.name for each in every if probe_backend(each).failed])"
    )
    tmp_path.chmod(0o700)
    environment = {**os.environ, "HOME": str(tmp_path), "CUDA_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_hidden_gpus_name_the_variable_that_hides_them(amd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "9")
    assert backend_at(ROCm, amd).probe().hidden == "HIP_VISIBLE_DEVICES='9'"


def test_neuron_devices_are_read_from_sysfs(tmp_path: Path) -> None:
    for number in (0, 1, 10):
        write(tmp_path / f"neuron{number}/info/architecture/device_name", "Trainium2\n")
        write(tmp_path / f"neuron{number}/info/architecture/arch_type", "v3\n")
    write(tmp_path / "neuron2/core_count", "8\n")  # a driver that describes itself less
    write(tmp_path / "power/control", "auto\n")
    probe = backend_at(Neuron, tmp_path).probe()
    assert [(each.index, each.name, each.arch) for each in probe.devices] == [
        (0, "Trainium2", "v3"),
        (1, "Trainium2", "v3"),
        (2, "", ""),
        (3, "Trainium2", "v3"),
    ]


def test_tpus_are_recognised_by_their_pci_ids(tmp_path: Path) -> None:
    for address, vendor, device in [
        ("0000:00:04.0", "0x1ae0", "0x0063"),
        ("0000:00:05.0", "0x1ae0", "0x0063"),
        ("0000:00:06.0", "0x1ae0", "0x0042"),  # Google's network card
        ("0000:00:07.0", "0x8086", "0x0063"),
    ]:
        write(tmp_path / address / "vendor", vendor + "\n")
        write(tmp_path / address / "device", device + "\n")
    probe = backend_at(TPU, tmp_path).probe()
    assert [(each.index, each.name, each.arch) for each in probe.devices] == [
        (0, "TPU v5e", "v5e"),
        (1, "TPU v5e", "v5e"),
    ]


def test_ascend_chips_and_toolkit_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("davinci0", "davinci1", "davinci_manager", "null"):
        write(tmp_path / "dev" / name, "")
    write(tmp_path / "toolkit/aarch64-linux/ascend_toolkit_install.info", "package_name=Ascend-cann\nversion=8.2.RC1\n")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "toolkit"))
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    backend = backend_at(CANN, tmp_path / "dev", "dev")
    probe = backend.probe()
    assert (probe.found, str(probe.version), len(probe.devices)) == (True, "8.2", 2)
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "1")
    assert len(backend.probe().devices) == 1
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "nowhere"))
    assert backend.probe().notes == ("an Ascend device is there, but no CANN toolkit",)


def test_intel_gpus_are_counted_by_their_driver(tmp_path: Path) -> None:
    for card, vendor, driver in [
        ("renderD128", "0x8086", "xe"),
        ("renderD129", "0x8086", "vfio-pci"),
        ("renderD130", "0x1002", "amdgpu"),
        ("card0", "0x8086", "xe"),
    ]:
        write(tmp_path / "drm" / card / "device/vendor", vendor + "\n")
        (tmp_path / "drivers" / driver).mkdir(parents=True, exist_ok=True)
        (tmp_path / "drm" / card / "device/driver").symlink_to(tmp_path / "drivers" / driver)
    write(tmp_path / "drm/version", "drm 1.1.0\n")
    (tmp_path / "drm/renderD131").mkdir()
    assert len(backend_at(XPU, tmp_path / "drm").probe().devices) == 1


@pytest.mark.parametrize("kind", [ROCm, Neuron, TPU, XPU])
def test_a_machine_without_the_hardware_is_a_fact(kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    assert backend_at(kind, tmp_path / "nowhere").probe() == BackendProbe()


def test_ascend_is_absent_where_nothing_of_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    assert backend_at(CANN, tmp_path / "nowhere", "dev").probe() == BackendProbe()


class IntelRuntime:
    """What `torch.xpu` answers for an Arc B580 (torch 2.9, `torch.xpu.get_device_properties`)."""

    def __init__(self, *, initialised: bool, broken: bool = False) -> None:
        self.initialised, self.broken, self.asked = initialised, broken, False

    def device_count(self) -> int:
        if self.broken:
            raise RuntimeError("level zero answered 0x78000001")
        return 1

    def is_initialized(self) -> bool:
        return self.initialised

    def current_device(self) -> int:
        return 0

    def get_device_properties(self, index: int) -> SimpleNamespace:
        self.asked = True
        return SimpleNamespace(name="Intel(R) Arc(TM) B580 Graphics", total_memory=12168933376)


@pytest.mark.parametrize("initialised", [True, False])
def test_torchs_intel_devices_are_described_only_where_the_runtime_already_runs(
    monkeypatch: pytest.MonkeyPatch, initialised: bool
) -> None:
    runtime = IntelRuntime(initialised=initialised)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=SimpleNamespace(xpu="20250301"), xpu=runtime))  # type: ignore[arg-type]
    device = XPU().probe().devices[0]
    assert runtime.asked == initialised
    assert device.name == ("Intel(R) Arc(TM) B580 Graphics" if initialised else "")
    assert XPU().current_device() == 0


def test_a_broken_intel_runtime_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = IntelRuntime(initialised=False, broken=True)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=SimpleNamespace(xpu="20250301"), xpu=runtime))  # type: ignore[arg-type]
    assert XPU().probe().notes == ("Torch cannot list Intel GPUs: level zero answered 0x78000001",)


@pytest.mark.parametrize(
    ("system", "machine", "count", "notes"),
    [("Darwin", "arm64", 1, 0), ("Darwin", "x86_64", 0, 1), ("Linux", "x86_64", 0, 0)],
)
def test_a_mac_has_the_gpu_of_its_processor(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, count: int, notes: int
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    probe = Metal().probe()
    assert (len(probe.devices), len(probe.notes)) == (count, notes)
    assert all(device.memory for device in probe.devices)


def torch_like(**parts: Any) -> SimpleNamespace:
    version = {"cuda": None, "hip": None, "xpu": None, **parts.pop("version", {})}
    return SimpleNamespace(
        version=SimpleNamespace(**version), backends=SimpleNamespace(**parts.pop("backends", {})), **parts
    )


# `torch.version` of published wheels: 2.9.0+cu128, 2.9.0+rocm6.4, 2.9.0+xpu, and what torch_tpu and torch_neuronx add.
TORCHES = {
    "cuda": (torch_like(version={"cuda": "12.8"}), Found(MajorMinor(12, 8))),
    "rocm": (torch_like(version={"hip": "6.4.43482-0f2d60242"}), Found(MajorMinor(6, 4))),
    "xpu": (torch_like(version={"xpu": "20250301"}), Found(MajorMinor(2025, 3))),
    "tpu": (torch_like(backends={"tpu": object()}), Found()),
    "neuron": (torch_like(neuron=object()), Found()),
    "cpu": (torch_like(), Found()),
}


@pytest.mark.parametrize("name", TORCHES)
def test_a_torch_is_recognised_by_the_backend_it_was_built_for_alone(name: str) -> None:
    torch, found = TORCHES[name]
    built = {each.name: each.torch_build(torch) for each in backends.all_backends()}
    assert {key for key, value in built.items() if value is not None} == {name, "cpu"}
    assert built[name] == found


def test_a_renamed_privateuse1_device_is_ascend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(tmp_path / "ascend_toolkit_install.info", "version=8.3.RC1\n")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    named = {"npu": Found(MajorMinor(8, 3)), "privateuseone": None}
    for device, found in named.items():
        torch = torch_like(_C=SimpleNamespace(_get_privateuse1_backend_name=lambda device=device: device))
        assert CANN().torch_build(torch) == found


@pytest.mark.parametrize("available", [True, False])
def test_torch_on_a_mac_is_for_metal_where_it_sees_the_gpu(monkeypatch: pytest.MonkeyPatch, available: bool) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    torch = torch_like(backends={"mps": SimpleNamespace(is_available=lambda: available)})
    assert Metal().torch_build(torch) == (Found() if available else None)


@pytest.mark.parametrize(
    ("name", "attribute"), [("cuda", "cuda"), ("rocm", "cuda"), ("xpu", "xpu"), ("cann", "npu"), ("cpu", "cpu")]
)
def test_the_current_device_is_asked_only_of_a_runtime_that_already_runs(
    monkeypatch: pytest.MonkeyPatch, name: str, attribute: str
) -> None:
    for running, index in ((True, 3), (False, 0)):
        runtime = SimpleNamespace(is_initialized=lambda running=running: running, current_device=lambda: 3)
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(**{attribute: runtime}))  # type: ignore[arg-type]
        assert backends.get(name).current_device() == (index if name != "cpu" else 0)
    monkeypatch.delitem(sys.modules, "torch")
    assert backends.get(name).current_device() == 0
