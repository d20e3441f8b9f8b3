"""The machine as data: probed, printed, written, and described in a string."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from html_cells import ReadHtml
from hypothesis import given
from hypothesis import strategies as st

from kernels import backends, load_backends
from kernels.backends import Backend, BackendProbe, Device, Found, MajorMinor, Unanswered, torch_build
from kernels.backends.hindrance import Hindrance
from kernels.errors import RequestError
from kernels.resolver import this_machine
from kernels.resolver.target import Target


def test_this_machine_is_described_with_everything_a_build_can_depend_on() -> None:
    found = Target.probe()
    assert found.os == platform.system().lower()
    assert found.cpu in ("x86_64", "aarch64") or found.cpu == platform.machine().lower()
    assert found.python == platform.python_version()
    assert found.free_threaded == bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    assert found.default_backend in found.backends
    assert "cpu" in found.backends


def test_the_torch_that_is_installed_is_the_one_described() -> None:
    torch = pytest.importorskip("torch")
    found = Target.probe()
    assert found.torch == torch.__version__
    assert found.torch_backends[-1] == "cpu"
    assert found.default_backend == found.torch_backends[0]
    if found.os == "linux":
        assert found.cxx11_abi == torch.compiled_with_cxx11_abi()


def test_probing_neither_imports_torch_nor_keeps_a_later_fork_from_working() -> None:
    script = "import sys; from kernels.resolver.target import Target; Target.current(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(sys.platform == "darwin")


class Vendor(Backend):
    name = noarch_name = token = device_type = mapping_device = "vendor"
    dispatch_key = "PrivateUse1"
    order = 5
    current = 0

    def torch_build(self, torch: Any) -> Any:
        return Found(MajorMinor(1, 2))

    def probe(self) -> BackendProbe:
        return BackendProbe(True, devices=(Device(self.name, 0, arch="v1"), Device(self.name, 1, arch="v2")))

    def current_device(self) -> int:
        return self.current


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    backend = Vendor()
    backends.register_backend(backend)
    yield backend
    backends.unregister_backend(backend.name)


def test_a_machine_is_probed_once_by_whichever_thread_comes_first(
    vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KERNELS_BACKEND")  # with another backend than Torch's, each caller gets an equal copy
    probes: list[int] = []
    monkeypatch.setattr(vendor, "probe", lambda: (probes.append(1), BackendProbe(True))[1])
    found: list[Target] = []
    threads = [threading.Thread(target=lambda: found.append(Target.current())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(probes) == 1
    assert all(each is found[0] for each in found)


def test_the_current_device_is_looked_up_each_time(vendor: Vendor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELS_BACKEND")
    assert Target.current().current_device == 0
    vendor.current = 1
    assert Target.current().current_device == 1


def test_a_backend_whose_probe_fails_is_a_note(vendor: Vendor, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> BackendProbe:
        raise OSError("no such ioctl")

    monkeypatch.setattr(vendor, "probe", broken)
    assert "vendor: could not be probed: OSError: no such ioctl" in Target.probe().notes


def test_without_torch_the_backend_is_the_first_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    class There(Vendor):
        name = noarch_name = token = device_type = mapping_device = "there"

    monkeypatch.setattr(torch_build, "installed_torch", lambda: None)
    monkeypatch.setattr(this_machine, "installed_torch", lambda: None)
    backends.register_backend(There())
    try:
        found = Target.probe()
    finally:
        backends.unregister_backend("there")
    assert (found.torch, found.cxx11_abi, found.torch_backends) == (None, None, ())
    assert found.default_backend == "there"


def test_hardware_that_torch_is_not_built_for_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = SimpleNamespace(
        __version__="2.9.0+cpu",
        version=SimpleNamespace(cuda=None, hip=None),
        backends=SimpleNamespace(),
        cxx11_abi=True,
    )
    monkeypatch.setattr(torch_build, "installed_torch", lambda: torch)
    monkeypatch.setattr(this_machine, "installed_torch", lambda: torch)
    gpu = Device("cuda", 0, "NVIDIA H100", "9.0", 90)
    probe = BackendProbe(True, MajorMinor(12, 8), (gpu,))
    monkeypatch.setattr(type(backends.get("cuda")), "probe", lambda self: probe)
    monkeypatch.setattr(this_machine.MachineTraces, "shows", lambda self, label: label.names.name in ("cuda", "cpu"))
    found = Target.probe()
    assert (found.default_backend, found.torch_backends) == ("cpu", ("cpu",))
    assert (found.backends["cuda"], found.backend_devices("cuda")) == ("12.8", (gpu,))
    assert "cuda: it is there, but this Torch (2.9.0+cpu) is not built for it, or extended with it" in found.notes


@pytest.mark.parametrize(
    ("system", "reported", "version"), [("Darwin", "16.0", "26.0"), ("Darwin", "15.5", "15.5"), ("Darwin", "", None)]
)
def test_macos_26_is_recognised_under_the_number_old_programs_see(
    monkeypatch: pytest.MonkeyPatch, system: str, reported: str, version: str | None
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "mac_ver", lambda: (reported, ("", "", ""), "arm64"))
    assert Target.probe().os_version == version


def test_tvm_ffi_is_found_by_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.delitem(sys.modules, "tvm_ffi", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert Target.probe().tvm_ffi is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    for version in ("0.1.4", None):  # None: the module without its distribution
        monkeypatch.setattr(
            this_machine, "installed_version", lambda name, found=version: {"apache-tvm-ffi": found}[name]
        )
        assert Target.probe().tvm_ffi == version
    monkeypatch.setitem(sys.modules, "tvm_ffi", SimpleNamespace(__version__="0.2.0"))  # type: ignore[arg-type]
    assert Target.probe().tvm_ffi == "0.2.0"


# What is written -> how it prints; equal where the left side is None.
DESCRIBED = {
    "torch2.9-cu128-x86_64-linux+sm_90": None,
    "torch2.9-cu128-x86_64-linux+sm_90+sm_80": None,
    "torch2.9-cu128-x86_64-linux+8xsm_90": None,
    "torch2.9-cu128-x86_64-linux+sm_90+sm_90": "torch2.9-cu128-x86_64-linux+2xsm_90",
    "torch2.9-cxx11-cu128-x86_64-linux": "torch2.9-cu128-x86_64-linux",
    "torch2.9-cxx98-cu128-x86_64-linux": None,
    "torch2.6-cu124-x86_64-linux": None,
    "torch2.6-cxx11-cu124-x86_64-linux": None,
    "torch2.13.0-cpu-x86_64-linux": "torch2.13-cpu-x86_64-linux",
    "torch2.13-cpu-AMD64-windows": "torch2.13-cpu-x86_64-windows",
    "torch2.13-metal-arm64-macos26.1": "torch2.13-metal-aarch64-darwin26.1",
    "torch2.9-rocm64-x86_64-linux+gfx942": None,
    "rocm7.10-x86_64-linux+gfx90a": None,
    "cu12.8-x86_64-linux": "cu128-x86_64-linux",
    "torch2.13-mps-arm64-macos26.1": "torch2.13-metal-aarch64-darwin26.1",
    "torch2.9-cuda12.8-x86_64-linux+sm75": "torch2.9-cu128-x86_64-linux+sm_75",
    "cuda128-x86_64-linux+compute_90": "cu128-x86_64-linux+sm_90",
    "npu8.2-x86_64-linux": "cann82-x86_64-linux",
    "cann-aarch64-linux": None,
    "tvm-ffi0.1-cpu-x86_64-linux": None,
    "torch2.13-tvm-ffi0.1-py3.14t-cpu-x86_64-linux": None,
    "torch2.9-py3.12-cpu-x86_64-linux": "torch2.9-cpu-x86_64-linux",
    "cpu-x86_64-linux": None,
}


@pytest.mark.parametrize("text", DESCRIBED)
def test_a_machine_is_described_in_a_short_string(text: str) -> None:
    printed = DESCRIBED[text] or text
    assert str(Target.parse(text)) == printed
    assert str(Target.parse(printed)) == printed


def test_a_described_machine_has_what_resolving_needs() -> None:
    found = Target.parse("torch2.9-cu128-aarch64-linux+sm_90+2xsm_80")
    assert (found.torch, found.cxx11_abi, found.cpu, found.os) == ("2.9", True, "aarch64", "linux")
    assert found.backends == {"cuda": "12.8", "cpu": None}
    assert found.torch_backends == ("cuda", "cpu")
    assert found.backend_version("cuda") == (12, 8)
    assert found.backend_version("cpu") is None
    assert [(each.index, each.arch, each.capability) for each in found.devices] == [
        (0, "9.0", 90),
        (1, "8.0", 80),
        (2, "8.0", 80),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected torch<version>-<accelerator>-<cpu>-<os>"),
        ("torch2.9", "expected torch<version>"),
        ("torch2.9-cu128-x86_64-solaris", "expected torch<version>"),
        ("torch29-cu128-x86_64-linux", "'torch29' is no accelerator|expected torch<version>"),
        ("torch2.9-gpu-x86_64-linux", "'gpu' is not a known accelerator"),
        ("torch2.9-cu128-x86_64-linux+hopper", "'hopper' is no architecture of cuda; .* such as sm_90"),
        (
            "torch2.9-rocm64-x86_64-linux+mi300",
            "'mi300' is no architecture of rocm; expected a gfx name",
        ),
        ("mps3-x86_64-linux", r"'mps3' is not a known accelerator .*; did you mean 'metal'\? Expected"),
        ("cuda9-x86_64-linux", "'cuda9' is not a known accelerator"),
        ("torch2.9-cu128-x86_64-linux+", "'' is no architecture of cuda"),
        ("torch2.9-cu128-x86_64-linux+99999xsm_90", "is no architecture"),
        ("x" * 10_000, "expected torch<version>"),
    ],
)
def test_what_describes_no_machine_is_refused(text: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        Target.parse(text)
    assert len(str(caught.value)) < 600
    with pytest.raises(TypeError, match=r"`target`: expected .* got 7 \(int\)"):
        Target.parse(7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("same-major-minor-not-newer", r"major\.minor, such as 1\.2, with the arch_rule same-major-minor-not-newer\."),
        ("exact", r"letters, digits, dots, dashes and underscores\."),
    ],
)
def test_an_architecture_that_is_none_is_refused_with_the_spelling_of_a_declared_backend(
    tmp_path: Path, rule: str, expected: str
) -> None:
    file = tmp_path / "zephyr.json"
    file.write_text(json.dumps({"zephyr": {"device_string": "zephyr", "version": "1.2", "arch_rule": rule}}))
    load_backends(file)
    try:
        with pytest.raises(RequestError, match=f"is no architecture of zephyr; expected {expected}$"):
            Target.parse("torch2.9-zephyr12-x86_64-linux+_Z2")
    finally:
        backends.unregister_backend("zephyr")


versions = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda pair: f"{pair[0]}.{pair[1]}")
devices = st.builds(
    Device,
    st.sampled_from(["cuda", "rocm"]),
    st.integers(0, 15),
    st.text(max_size=20),
    st.sampled_from(["9.0", "gfx942", ""]),
    st.none() | st.integers(0, 130),
    st.none() | st.integers(0, 2**40),
)
targets = st.builds(
    Target,
    os=st.sampled_from(["linux", "darwin", "windows"]),
    cpu=st.sampled_from(["x86_64", "aarch64"]),
    os_version=st.none() | versions,
    python=st.none() | versions,
    free_threaded=st.booleans(),
    glibc=st.none() | versions,
    torch=st.none() | versions,
    cxx11_abi=st.none() | st.booleans(),
    tvm_ffi=st.none() | versions,
    backends=st.dictionaries(st.sampled_from(["cuda", "rocm", "cpu"]), st.none() | versions),
    torch_backends=st.lists(st.sampled_from(["cuda", "cpu"]), max_size=2).map(tuple),
    devices=st.lists(devices, max_size=3).map(tuple),
    default_backend=st.sampled_from(["cuda", "rocm", "cpu"]),
    current_device=st.integers(0, 7),
    notes=st.lists(st.text(max_size=20), max_size=2).map(tuple),
    hindrances=st.dictionaries(
        st.sampled_from(["cuda", "rocm"]),
        st.tuples(st.builds(Hindrance, st.sampled_from(["absent", "torch"]), st.text(max_size=9), st.just("fix"))),
        max_size=1,
    ),
    unanswered=st.dictionaries(
        st.sampled_from(["cuda", "rocm"]),
        st.tuples(st.builds(Unanswered, st.just("version"), st.text(max_size=9), st.booleans())),
        max_size=1,
    ),
)


@given(targets)
def test_a_machine_goes_to_json_and_back_and_prints_in_one_line(machine: Target) -> None:
    assert "\n" not in str(machine)
    assert Target.from_json(machine.to_json()) == machine


def test_the_json_is_readable_by_others() -> None:
    data = json.loads(Target.parse("torch2.9-cu128-x86_64-linux+sm_90").to_json())
    assert data["backends"] == {"cuda": "12.8", "cpu": None}
    assert data["devices"][0]["arch"] == "9.0"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"os": 1}', "[" * 100_000, b"\xff", 5, None, ["{}"]])
def test_json_that_is_no_machine_is_refused(text: Any) -> None:
    is_json = isinstance(text, (str, bytes))
    message = "The target's JSON is not valid" if is_json else "`data`: expected bytes or a string"
    with pytest.raises(RequestError if is_json else TypeError, match=message):
        Target.from_json(text)


def test_the_user_may_prefer_another_backend_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_BACKEND", "cpu")
    assert Target.current().default_backend == "cpu"
    monkeypatch.setenv("KERNELS_BACKEND", "abacus")
    with pytest.raises(RequestError, match="`KERNELS_BACKEND` is 'abacus'"):
        Target.current()


def test_a_notebook_shows_a_target_as_a_table() -> None:
    target = Target.parse("torch2.9-cu128-x86_64-linux+2xsm_90")
    cells = ReadHtml(msgspec.structs.replace(target, notes=("cuda: <script>",))._repr_html_()).cells
    shown = dict(zip(cells[::2], cells[1::2], strict=True))
    assert shown == {
        "machine": str(target),
        "system": "linux x86_64",
        "Torch": "2.9 for cuda, cpu",
        "backends": "cuda 12.8, cpu; default: cuda",
        "device 0": "cuda 9.0",
        "device 1": "cuda 9.0",
        "note": "cuda: <script>",
    }
