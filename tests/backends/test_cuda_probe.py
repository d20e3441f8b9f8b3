"""NVIDIA's libraries are asked through their own C interface; stand-ins for them are compiled here.

The machines are recorded: names, UUID forms, capabilities and memory as `nvidia-smi` prints them, the numbering of
different GPUs as the CUDA C++ Programming Guide describes it for CUDA_DEVICE_ORDER.
"""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from kernels import backends
from kernels.backends.builtin import cuda_driver
from kernels.backends.builtin.cuda_driver import GPU, visible

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the stand-ins are ELF libraries")

A100 = GPU("NVIDIA A100-SXM4-80GB", "GPU-5e1a1c2b-0000-1111-2222-333344445555", (8, 0), 85899345920)
H100 = GPU("NVIDIA H100 80GB HBM3", "GPU-9d0c8f7e-0000-1111-2222-333344445555", (9, 0), 85520809984)
T4 = GPU("Tesla T4", "GPU-77aa66bb-0000-1111-2222-333344445555", (7, 5), 16106127360)


def text(gpus: Iterable[GPU]) -> str:
    return ";".join(f"{g.name}|{g.uuid}|{g.capability[0]}|{g.capability[1]}|{g.memory}" for g in gpus)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("nvidia") / "fake.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, Path(__file__).with_name("fake_nvidia.c")], check=True)
    return path


@pytest.fixture
def machine(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make this machine one with these libraries, GPUs (by bus) and environment."""

    def install(
        gpus: Iterable[GPU] = (),
        *,
        libraries: Iterable[str] = ("libnvidia-ml.so.1", "libcuda.so.1"),
        torch: bool = True,
        **env: str,
    ) -> None:
        found = {"torch": object() if torch else None}
        find_spec = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: found[name] if name in found else find_spec(name))
        for name in libraries:
            shutil.copy(library, tmp_path / name)
        # Only these libraries exist: here by name, in a child process by the loader's path.
        monkeypatch.setattr(cuda_driver, "_load", lambda names: load(tmp_path, names))
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"FAKE_NVML": text(gpus), "FAKE_CUDA": text(gpus), "FAKE_VERSION": "12080", **env}.items():
            monkeypatch.setenv(name, value)

    return install


def load(folder: Path, names: Iterable[str]) -> ctypes.CDLL | None:
    return next((ctypes.CDLL(str(folder / name)) for name in names if (folder / name).exists()), None)


def test_every_gpu_is_found_with_its_facts(machine: Callable[..., None]) -> None:
    machine([H100, H100])
    probe = backends.get("cuda").probe()
    assert (probe.found, str(probe.version), probe.notes) == (True, "12.8", ())
    assert [device.index for device in probe.devices] == [0, 1]
    first = probe.devices[0]
    assert (first.backend, first.name, first.arch, first.capability) == ("cuda", H100.name, "9.0", 90)
    assert first.memory == 85520809984


@pytest.mark.parametrize(
    ("wanted", "seen"),
    [
        (None, "ABC"),
        ("", ""),
        ("-1", ""),
        ("1", "B"),
        ("2,0", "CA"),
        ("0,7,1", "A"),  # an entry that is no device ends the list
        ("0,x,1", "A"),
        ("1gpu,2gpu", "BC"),
        ("1,1", ""),  # named twice: none
        ("GPU-9d0c8f7e", "B"),
        ("GPU-77aa66bb-0000-1111-2222-333344445555,GPU-5e", "CA"),
        ("GPU-", ""),  # shortened too far to be unique
        ("GPU-00000000", ""),
    ],
)
def test_cuda_visible_devices_chooses_and_orders(wanted: str | None, seen: str) -> None:
    names = {"A": A100, "B": H100, "C": T4}
    assert visible(list(names.values()), wanted) == [names[each] for each in seen]


def test_equal_gpus_are_chosen_without_asking_cuda(machine: Callable[..., None]) -> None:
    twin = GPU(H100.name, "GPU-aaaaaaaa-0000-1111-2222-333344445555", H100.capability, H100.memory)
    machine([H100, twin], CUDA_VISIBLE_DEVICES="1", FAKE_FAIL="cuInit")
    facts = cuda_driver.look()
    assert (facts.gpus, facts.notes) == ((twin,), ())


def test_different_gpus_are_numbered_as_cuda_numbers_them(machine: Callable[..., None]) -> None:
    machine([T4, H100], FAKE_CUDA=text([H100, T4]))
    assert cuda_driver.look().gpus == (H100, T4)


def test_in_bus_order_the_management_library_is_enough(machine: Callable[..., None]) -> None:
    machine([T4, H100], FAKE_CUDA=text([H100, T4]), CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert cuda_driver.look().gpus == (T4, H100)


def test_where_cuda_cannot_be_asked_the_order_is_the_buses_and_a_note_says_so(machine: Callable[..., None]) -> None:
    machine([T4, H100], FAKE_FAIL="cuInit")
    facts = cuda_driver.look()
    assert facts.gpus == (T4, H100)
    assert facts.notes == ("CUDA could not list its devices: cuInit answered 999",)


def test_without_the_management_library_the_driver_is_asked(machine: Callable[..., None]) -> None:
    machine([A100], libraries=["libcuda.so.1"])
    facts = cuda_driver.look()
    assert facts.gpus == (A100,)
    assert str(facts.driver_version) == "12.8"
    assert "no NVIDIA driver: its management library (NVML) is not installed" in facts.notes


def test_a_slice_of_a_gpu_has_its_capability(machine: Callable[..., None]) -> None:
    machine([A100], CUDA_VISIBLE_DEVICES="MIG-41b35014-0000-1111-2222-333344445555,MIG-2")
    assert cuda_driver.look().gpus == (A100,)


def test_an_unknown_slice_is_a_note(machine: Callable[..., None]) -> None:
    machine([], CUDA_VISIBLE_DEVICES="MIG-41b35014")
    facts = cuda_driver.look()
    assert facts.gpus == ()
    assert "CUDA_VISIBLE_DEVICES names MIG-41b35014" in facts.notes[0]


@pytest.mark.parametrize("call", ["nvmlInit_v2", "nvmlSystemGetCudaDriverVersion_v2", "nvmlDeviceGetCount_v2"])
def test_a_broken_management_library_is_a_note(machine: Callable[..., None], call: str) -> None:
    machine([H100], libraries=["libnvidia-ml.so.1"], FAKE_FAIL=call)
    probe = backends.get("cuda").probe()
    assert (probe.found, probe.devices) == (False, ())
    assert f"{call} answered 999 (Unknown Error)" in probe.notes[0]


def test_a_broken_driver_is_a_note(machine: Callable[..., None]) -> None:
    machine([H100], libraries=["libcuda.so.1"], FAKE_FAIL="cuDriverGetVersion")
    probe = backends.get("cuda").probe()
    assert not probe.found
    assert "cuDriverGetVersion answered 999" in probe.notes[1]


def test_a_library_without_the_calls_is_a_note(machine: Callable[..., None], tmp_path: Path) -> None:
    machine([H100], libraries=[])
    source = tmp_path / "empty.c"
    source.write_text("int nothing;")
    for name in ("libnvidia-ml.so.1", "libcuda.so.1"):
        subprocess.run([shutil.which("cc") or "gcc", "-shared", "-o", tmp_path / name, source], check=True)
    probe = backends.get("cuda").probe()
    assert not probe.found
    assert "has no nvmlInit_v2; the driver is too old" in probe.notes[0]


def test_an_integrated_gpu_has_no_memory_of_its_own(machine: Callable[..., None]) -> None:
    machine([H100], FAKE_FAIL="nvmlDeviceGetMemoryInfo")
    assert cuda_driver.look().gpus[0].memory is None


def test_no_driver_at_all_is_a_note(machine: Callable[..., None]) -> None:
    machine(libraries=[])
    probe = backends.get("cuda").probe()
    assert (probe.found, probe.version, probe.devices) == (False, None, ())
    assert probe.notes == ("no NVIDIA driver: its management library (NVML) is not installed",)


def test_without_torch_the_runtime_of_the_system_gives_the_version(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine([H100], libraries=["libnvidia-ml.so.1", "libcudart.so.12"], torch=False, FAKE_RUNTIME="12040")
    # Only the stand-in: the runtimes that this machine itself has are not in question.
    monkeypatch.setattr(cuda_driver, "_runtime_candidates", lambda: [str(tmp_path / "libcudart.so.12")])
    assert cuda_driver._read_runtime() == [12, 4]
    monkeypatch.setattr(cuda_driver, "_ask_child", lambda question, notes: cuda_driver._read_runtime())
    assert str(backends.get("cuda").probe().version) == "12.4"


def test_without_torch_and_runtime_the_driver_gives_the_version(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine([H100], torch=False)
    monkeypatch.setattr(cuda_driver, "_runtime_candidates", list)
    probe = backends.get("cuda").probe()
    assert str(probe.version) == "12.8"
    assert "no CUDA runtime (libcudart) found" in probe.notes[0]


def test_a_child_process_reads_the_runtime(machine: Callable[..., None], tmp_path: Path) -> None:
    machine(libraries=["libcudart.so.99"], FAKE_RUNTIME="13010")
    assert str(tmp_path / "libcudart.so.99") in list(cuda_driver._runtime_candidates())
    assert cuda_driver.runtime_version() is not None


def test_devices_are_listed_by_cuda_itself_in_the_child(machine: Callable[..., None]) -> None:
    machine([H100, T4])
    listed = cuda_driver._list_devices()
    assert [each["uuid"] for each in listed] == [H100.uuid, T4.uuid]
    assert cuda_driver._gpus_of(listed) == (H100, T4)


def test_a_child_that_gives_no_answer_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver.sys, "executable", "/nonexistent/python")
    notes: list[str] = []
    assert cuda_driver._ask_child("devices", notes) is None
    assert "CUDA did not report its devices" in notes[0]


def test_a_toolkit_without_a_driver_is_no_gpu(
    machine: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(libraries=["libcudart.so.12"], torch=False)
    monkeypatch.setattr(cuda_driver, "_runtime_candidates", lambda: [str(tmp_path / "libcudart.so.12")])
    probe = CUDAWithoutCards().probe()
    assert (probe.found, probe.version, probe.devices) == (False, None, ())
    assert probe.notes == ("no NVIDIA driver: its management library (NVML) is not installed",)


def test_a_card_without_a_driver_is_a_note(machine: Callable[..., None], tmp_path: Path) -> None:
    machine(libraries=[])
    for number, (vendor, kind) in enumerate([("0x10de", "0x030200"), ("0x10de", "0x040300"), ("0x8086", "0x030000")]):
        folder = tmp_path / f"pci/0000:00:0{number}.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")
    backend = CUDAWithoutCards()
    backend.sysfs = tmp_path / "pci"
    assert backend.probe().notes[-1] == "1 NVIDIA GPU on the PCI bus, but no driver that answers"


@pytest.mark.parametrize("value", ["", "-1", "7"])
def test_the_variable_that_hides_every_gpu_is_named(machine: Callable[..., None], value: str) -> None:
    machine([H100, H100], CUDA_VISIBLE_DEVICES=value)
    probe = backends.get("cuda").probe()
    assert (probe.found, probe.devices, probe.hidden) == (True, (), f"CUDA_VISIBLE_DEVICES={value!r}")


class CUDAWithoutCards(type(backends.get("cuda"))):  # type: ignore[misc]
    """NVIDIA GPUs, on a machine whose PCI bus cannot be read."""

    sysfs = Path("/nowhere")
