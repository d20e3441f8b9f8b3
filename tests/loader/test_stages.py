"""What a backend does with a build once, and around its import; what it makes lies beside the cache."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hub import TestHub

from kernels import backends, get_kernel, get_local_kernel, install_kernel, settings
from kernels.backends import Backend, BackendProbe, Device, Found, MajorMinor
from kernels.errors import DigestMismatch, KernelImportError, RequestError, StoreError
from kernels.loader.stages import prepare_build, prepared_dir, stages_of

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


def test_a_folder_that_was_removed_is_made_anew(acme: Acme, tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    prepare_build(acme, tmp_path, DEVICE)
    folder = prepared_dir(acme, tmp_path, arch="a100x")
    shutil.rmtree(folder)
    prepare_build(acme, tmp_path, DEVICE)
    prepare_build(acme, tmp_path, DEVICE)
    assert acme.calls == ["prepare", "prepare"]
    assert [path.name for path in folder.iterdir()] == ["kernel.acmebin"]


def test_a_folder_that_was_removed_is_not_complete_again_before_it_is_made(acme: Acme, tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    prepare_build(acme, tmp_path, DEVICE)
    shutil.rmtree(prepared_dir(acme, tmp_path, arch="a100x"))
    complete = []
    acme.prepare = lambda path: complete.extend(prepared_files())  # type: ignore[method-assign]
    prepare_build(acme, tmp_path, DEVICE)
    assert complete == []


def _linked(folder: Path, elsewhere: Path) -> None:
    folder.symlink_to(elsewhere)


def _file(folder: Path, elsewhere: Path) -> None:
    folder.write_text("")


def _nothing(folder: Path, elsewhere: Path) -> None:
    pass


@pytest.mark.parametrize("replaced", [_linked, _file, _nothing])
@pytest.mark.parametrize("fails", [True, False])
def test_a_stage_that_replaced_its_folder_fails_and_leaves_nothing_in_the_way(
    acme: Acme, tmp_path: Path, replaced: Callable[[Path, Path], None], fails: bool
) -> None:
    build, elsewhere = tmp_path / "build", tmp_path / "elsewhere"
    for each in (build, elsewhere):
        each.mkdir()
        (each / "__init__.py").write_text("")

    def replace(variant_dir: Path) -> None:
        folder = prepared_dir(acme, variant_dir)
        folder.rmdir()
        replaced(folder, elsewhere)
        if fails:
            raise RuntimeError("the compiler stopped")

    acme.prepare = replace  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(KernelImportError, match="the compiler stopped" if fails else "it left no folder at "):
            prepare_build(acme, build, DEVICE)
        assert prepared_files() == []
    assert [path.name for path in elsewhere.iterdir()] == ["__init__.py"]
    del acme.prepare
    prepare_build(acme, build, DEVICE)
    assert len(prepared_files()) == 2


def test_a_stage_that_writes_into_the_build_is_told_where_to_write(acme: Acme, tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    acme.prepare = lambda path: (path / "kernel.acmebin").write_text("")  # type: ignore[method-assign, assignment]
    with pytest.raises(KernelImportError, match=r"own files changed meanwhile; its files belong in .*acme"):
        prepare_build(acme, tmp_path, DEVICE)
    assert prepared_files() == []


def test_what_a_stage_wrote_into_a_build_is_found_by_its_digest(
    hub: TestHub, acme: Acme, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/relu", variants=["torch-acme"], digest=True)
    acme.prepare = lambda path: (path / "kernel.acmebin").write_text("")  # type: ignore[method-assign, assignment]
    with pytest.raises(KernelImportError, match="the build's own files changed"):
        install_kernel("acme/relu", version=1)
    monkeypatch.setenv("KERNELS_VERIFY", "1")
    with pytest.raises(DigestMismatch, match=r"kernel\.acmebin"):
        install_kernel("acme/relu", version=1)


def test_threads_of_a_stage_see_its_folder(hub: TestHub, acme: Acme) -> None:
    hub.make_repo("acme/relu", variants=["torch-acme"])
    seen = {}

    def ask(variant_dir: Path, stage: str) -> None:
        with ThreadPoolExecutor(1) as pool:
            seen[stage] = pool.submit(prepared_dir, acme, variant_dir).result()

    acme.prepare = lambda path: ask(path, "prepare")  # type: ignore[method-assign]
    acme.before_import = lambda path, metadata: ask(path, "before")  # type: ignore[method-assign]
    acme.after_import = lambda module, path, metadata: ask(path, "after")  # type: ignore[method-assign]
    module = get_kernel("acme/relu", version=1)
    build = Path(str(module.__file__)).parent
    assert seen == dict.fromkeys(("prepare", "before", "after"), prepared_dir(acme, build, arch="a100x"))
    assert prepared_dir(acme, build) not in seen.values()  # no stage runs any more


def test_a_thread_must_say_which_device_it_means_where_stages_run_for_several(acme: Acme, tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    inner = Device("acme", 1, arch="a200x")
    said = []

    def ask() -> None:
        try:
            prepared_dir(acme, tmp_path)
        except RequestError as error:
            said.append(str(error))

    def prepare(variant_dir: Path) -> None:
        del acme.prepare
        acme.prepare = lambda path: pool.submit(ask).result()  # type: ignore[method-assign]
        prepare_build(acme, tmp_path, inner)

    acme.prepare = prepare  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        prepare_build(acme, tmp_path, DEVICE)
    assert len(said) == 1
    assert "several architectures: 'a100x', 'a200x'" in said[0]


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
from kernels.loader.stages import prepare_build, prepared_dir

class Acme(Backend):
    name = device_type = "acme"

    def prepare(self, variant_dir):
        with open(sys.argv[2], "a") as log:
            log.write("x")
        (prepared_dir(self, variant_dir) / "made").write_text("")

prepare_build(Acme(), Path(sys.argv[1]), Device("acme", 0, arch="a100x"))
"""


_ENDED = """
import os
import signal
import sys
from pathlib import Path
from kernels.backends import Backend, Device
from kernels.loader.stages import prepare_build, prepared_dir

class Acme(Backend):
    name = device_type = "acme"

    def prepare(self, variant_dir):
        (prepared_dir(self, variant_dir) / "half").write_text("")
        os.kill(os.getpid(), signal.SIGKILL)

prepare_build(Acme(), Path(sys.argv[1]), Device("acme", 0, arch="a100x"))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no such signal")
@pytest.mark.parametrize("before", ["nothing was there", "only the folder was removed"])
def test_a_process_that_is_killed_in_the_middle_leaves_nothing_that_counts(
    acme: Acme, tmp_path: Path, before: str
) -> None:
    (tmp_path / "__init__.py").write_text("")
    folder = prepared_dir(acme, tmp_path, arch="a100x")
    if before == "only the folder was removed":
        prepare_build(acme, tmp_path, DEVICE)
        shutil.rmtree(folder)
        acme.calls.clear()
    ended = subprocess.run([sys.executable, "-c", _ENDED, str(tmp_path)], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert [path.name for path in prepared_files()] == ["half"]
    prepare_build(acme, tmp_path, DEVICE)
    assert acme.calls == ["prepare"]
    assert [path.name for path in folder.iterdir()] == ["kernel.acmebin"]


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
        (lambda device: None, "expected `stages` to return a dictionary, got None"),
        (lambda device: {"compile": print}, "functions called prepare, before_import.*got 'compile'"),
        (lambda device: {"prepare": 3}, "got 'prepare': 3"),
        (lambda device: 1 / 0, "its `stages` raised ZeroDivisionError"),
        (lambda device: sys.exit(7), "its `stages` raised SystemExit: 7"),
        (lambda device: Mute(), "expected `stages` to return a dictionary, got a Mute, whose repr raised"),
    ],
)
def test_stages_that_are_none_are_refused(acme: Acme, stages: Any, message: str) -> None:
    acme.stages = stages  # type: ignore[method-assign]
    with pytest.raises(KernelImportError, match=message):
        stages_of(acme, DEVICE)


class Mute(Exception):
    """An error, or anything else, that fails when it is asked what it says."""

    def __str__(self) -> str:
        sys.exit(7)

    __repr__ = __str__


def _raise(error: BaseException) -> Callable[..., Any]:
    def stage(*args: Any) -> Any:
        raise error

    return stage


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Mute(), r"Mute, whose message raised SystemExit"),
        (SystemExit(7), "SystemExit: 7"),
        (BaseException("panic"), "BaseException: panic"),
        (RuntimeError("x" * 1000), "RuntimeError: x{485}…$"),
    ],
)
def test_whatever_prepare_raises_is_told_in_one_kind_of_error(
    acme: Acme, tmp_path: Path, error: BaseException, message: str
) -> None:
    acme.prepare = _raise(error)  # type: ignore[method-assign]
    with pytest.raises(KernelImportError, match=f"Backend acme could not prepare .*: {message}"):
        prepare_build(acme, tmp_path, DEVICE)


@pytest.mark.parametrize("member", ["prepare", "stages", "prepare_key"])
def test_an_interrupt_passes_through(acme: Acme, tmp_path: Path, member: str) -> None:
    if member == "prepare_key":
        type(acme).prepare_key = property(_raise(KeyboardInterrupt()))  # type: ignore[assignment]
    else:
        setattr(acme, member, _raise(KeyboardInterrupt()))
    try:
        with pytest.raises(KeyboardInterrupt):
            prepare_build(acme, tmp_path, DEVICE)
    finally:
        if member == "prepare_key":
            del type(acme).prepare_key
    assert prepared_files() == []


def test_a_key_that_fails_is_told(tmp_path: Path) -> None:
    class Keyless(Acme):
        @property
        def prepare_key(self) -> str:  # type: ignore[override]
            raise OSError("no compiler")

    with pytest.raises(KernelImportError, match="its `prepare_key` raised OSError: no compiler"):
        prepared_dir(Keyless(), tmp_path)


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


@pytest.mark.parametrize("cache", ["/", "/nowhere/.."])
def test_a_cache_that_nothing_lies_beside_is_an_error(
    acme: Acme, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    monkeypatch.setenv("KERNELS_CACHE", cache)
    with pytest.raises(
        RequestError, match=r"The cache is .*, and backends prepare builds in a folder beside it.*KERNELS_CACHE"
    ):
        prepare_build(acme, tmp_path, DEVICE)


def test_beside_the_folder_above_is_not_inside_of_it(
    acme: Acme, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache" / "below").mkdir(parents=True)
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / "cache" / "below" / ".."))
    assert prepared_dir(acme, tmp_path).parents[1] == tmp_path / "cache-prepared"


def test_a_mark_that_cannot_be_written_is_an_error(acme: Acme, tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")

    def prepare(variant_dir: Path) -> None:
        folder = prepared_dir(acme, variant_dir)
        folder.with_name(f"{folder.name}.done").mkdir()

    acme.prepare = prepare  # type: ignore[method-assign]
    with pytest.raises(StoreError, match=r"Cannot write .*, where backend acme prepares builds"):
        prepare_build(acme, tmp_path, DEVICE)
