"""What a backend does with a build once, and around its import; what it makes lies beside the cache."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hub import TestHub

from kernels import backends, get_kernel, get_local_kernel, install_kernel, settings
from kernels.backends import Backend, BackendProbe, Device, Found, MajorMinor
from kernels.errors import KernelImportError, StoreError
from kernels.stages import prepare_build, prepared_dir, stages_of

DEVICE = Device("acme", 0, "Acme One", "a100x")


class Acme(Backend):
    """Converts each build to the device's own form, and tells the kernel where that lies."""

    name = device_type = "acme"
    versioned = True

    def __init__(self) -> None:
        self.calls: list[str] = []

    def torch_build(self, torch: object) -> Found | None:
        return Found(MajorMinor(1, 2))

    def probe(self) -> BackendProbe:
        return BackendProbe(True, MajorMinor(1, 2), (DEVICE,))

    def prepare(self, variant_dir: Path) -> None:
        self.calls.append("prepare")
        source = (variant_dir / "__init__.py").read_text()
        (prepared_dir(self, variant_dir) / "kernel.acmebin").write_text(f"converted {len(source)}")

    def before_import(self, variant_dir: Path, metadata: Any) -> None:
        self.calls.append(f"before {metadata.name}")

    def after_import(self, module: ModuleType, variant_dir: Path, metadata: Any) -> None:
        self.calls.append(f"after {module.variant}")
        module.binary = (prepared_dir(self, variant_dir) / "kernel.acmebin").read_text()


@pytest.fixture
def acme(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Acme]:
    monkeypatch.setenv("KERNELS_BACKEND", "acme")
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path_factory.mktemp("stages") / "cache"))
    backend = Acme()
    backends.register_backend(backend)
    yield backend
    backends.unregister_backend("acme")


def prepared_files() -> list[Path]:
    beside = Path(f"{settings.cache_dir()}-prepared")
    return sorted(path for path in beside.rglob("*") if path.is_file() and path.suffix != ".lock")


def test_a_build_is_prepared_once_and_imported_between_the_hooks(hub: TestHub, acme: Acme) -> None:
    hub.make_repo("acme/relu", variants=["torch-acme"])
    module = get_kernel("acme/relu", version=1)
    assert acme.calls == ["prepare", "before relu", "after torch-acme"]
    assert module.binary.startswith("converted ")
    assert get_kernel("acme/relu", version=1) is module
    assert acme.calls == ["prepare", "before relu", "after torch-acme"]


def test_what_it_made_lies_beside_the_cache_and_nothing_inside_it_changed(hub: TestHub, acme: Acme) -> None:
    hub.make_repo("acme/relu", variants=["torch-acme"])
    folder = install_kernel("acme/relu", version=1)
    cache = settings.cache_dir()
    assert acme.calls == ["prepare"]
    assert sorted(path.name for path in folder.iterdir()) == ["__init__.py", "layers.py", "metadata.json"]
    assert {path.suffix for path in prepared_files()} == {".done", ".acmebin"}
    assert not any(cache in path.parents for path in prepared_files())
    install_kernel("acme/relu", version=1)
    assert acme.calls == ["prepare"]


def test_a_download_for_another_machine_is_not_prepared_on_this_one(hub: TestHub, acme: Acme) -> None:
    hub.make_repo("acme/relu", variants=["torch-acme"])
    install_kernel("acme/relu", version=1, target="torch2.9-acme12-x86_64-linux+a100x")
    assert acme.calls == []


def test_what_prepare_made_serves_the_next_process(hub: TestHub, acme: Acme, tmp_path: Path) -> None:
    hub.make_repo("acme/relu", variants=["torch-acme"])
    folder = install_kernel("acme/relu", version=1)
    again = Acme()
    prepare_build(again, folder, DEVICE)
    assert again.calls == []


@pytest.mark.parametrize("change", ["another file", "another device", "another compiler"])
def test_what_the_result_depends_on_makes_it_be_prepared_again(
    hub: TestHub, acme: Acme, tmp_path: Path, change: str
) -> None:
    folder = tmp_path / "torch-acme"
    folder.mkdir()
    (folder / "__init__.py").write_text("value = 1")
    device = DEVICE
    prepare_build(acme, folder, device)
    if change == "another file":
        (folder / "more.py").write_text("value = 2")
    elif change == "another device":
        device = Device("acme", 1, arch="a200x")
    else:
        acme.prepare_key = "acmecc 2.0"
    prepare_build(acme, folder, device)
    prepare_build(acme, folder, device)
    assert acme.calls == ["prepare", "prepare"]


def test_a_local_build_is_prepared_as_well(acme: Acme, tmp_path: Path, hub: TestHub) -> None:
    path = hub.make_repo("acme/relu", variants=["torch-acme"])
    assert get_local_kernel(path).binary.startswith("converted ")


def test_a_stage_that_fails_keeps_nothing_and_is_tried_again(acme: Acme, tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    good = Acme.prepare

    def half(self: Acme, variant_dir: Path) -> None:
        good(self, variant_dir)
        raise OSError("the compiler stopped")

    acme.prepare = half.__get__(acme)  # type: ignore[method-assign]
    with pytest.raises(KernelImportError, match=r"acme could not prepare .*OSError: the compiler stopped"):
        prepare_build(acme, tmp_path, DEVICE)
    assert prepared_files() == []
    del acme.prepare
    prepare_build(acme, tmp_path, DEVICE)
    assert len(prepared_files()) == 2


def test_what_an_ended_process_left_half_made_is_made_anew(acme: Acme, tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    left = prepared_dir(acme, tmp_path, arch="a100x")
    left.mkdir(parents=True)
    (left / "half").write_text("")
    prepare_build(acme, tmp_path, DEVICE)
    assert [path.name for path in left.iterdir()] == ["kernel.acmebin"]


def test_threads_that_want_one_build_prepare_it_once(acme: Acme, tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    start = threading.Barrier(8)

    def want() -> None:
        start.wait()
        prepare_build(acme, tmp_path, DEVICE)

    threads = [threading.Thread(target=want) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert acme.calls == ["prepare"]


_PROCESS = """
import sys
from pathlib import Path
from kernels.backends import Backend, Device
from kernels.stages import prepare_build, prepared_dir

class Acme(Backend):
    name = device_type = "acme"

    def prepare(self, variant_dir):
        with open(sys.argv[2], "a") as log:
            log.write("x")
        (prepared_dir(self, variant_dir) / "made").write_text("")

prepare_build(Acme(), Path(sys.argv[1]), Device("acme", 0, arch="a100x"))
"""


def test_processes_that_want_one_build_prepare_it_once(tmp_path: Path, hub: TestHub) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "__init__.py").write_text("")
    command = [sys.executable, "-c", _PROCESS, str(tmp_path / "build"), str(tmp_path / "log")]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert (tmp_path / "log").read_text() == "x"


def test_a_vendor_drops_or_replaces_a_stage_for_its_device(hub: TestHub, acme: Acme) -> None:
    class Picky(Acme):
        def stages(self, device: Device | None) -> Mapping[str, Any]:
            stages = dict(super().stages(device))
            del stages["prepare"], stages["after_import"]
            if device is not None and device.arch == "a100x":
                stages["before_import"] = lambda path, metadata: self.calls.append(f"replaced for {device.arch}")
            return stages

    picky = Picky()
    backends.register_backend(picky, override=True)
    try:
        hub.make_repo("acme/relu", variants=["torch-acme"])
        get_kernel("acme/relu", version=1)
    finally:
        backends.unregister_backend("acme")
    assert picky.calls == ["replaced for a100x"]


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (lambda device: None, "its `stages` gave None; allowed is a dictionary"),
        (lambda device: {"compile": print}, "has 'compile'.*allowed are functions called prepare, before_import"),
        (lambda device: {"prepare": 3}, "has 'prepare': 3; allowed are functions"),
        (lambda device: 1 / 0, "its `stages` raised ZeroDivisionError"),
    ],
)
def test_stages_that_are_none_are_refused(acme: Acme, stages: Any, message: str) -> None:
    acme.stages = stages  # type: ignore[method-assign]
    with pytest.raises(KernelImportError, match=message):
        stages_of(acme, DEVICE)


def test_a_build_of_no_known_backend_has_no_stages() -> None:
    assert stages_of(None, None) == {}


def test_a_place_that_cannot_be_written_is_an_error(
    acme: Acme, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "__init__.py").write_text("")
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache-prepared").write_text("a file, where the folder should be")
    with pytest.raises(StoreError):
        prepare_build(acme, tmp_path, DEVICE)
