"""Kernels downloaded before they are asked for, for this machine, for others, and into a folder that can be moved."""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub
from logged import warned

from kernels import download_kernels, get_kernel, get_kernel_variants
from kernels.errors import (
    DigestMismatch,
    KernelsError,
    LockError,
    MissingPythonDependency,
    NoSuitableBuild,
    RequestError,
    StoreError,
    UntrustedPublisher,
    UntrustedSignature,
)
from kernels.models.lockfile import ContentHash, Lock, Pin
from kernels.models.mirror import index_path
from kernels.models.mirror_document import MirrorDocument
from kernels.models.requirement import Requirement
from kernels.operations.download import DownloadedBuild, DownloadRequest, Downloads, prefetch

HOPPER = "torch2.9-cu128-x86_64-linux+sm_90"
APPLE = "torch2.9-metal-aarch64-darwin"
CPU = "torch2.9-cpu-x86_64-linux"


@pytest.fixture
def kernels_hub(hub: TestHub) -> TestHub:
    """`acme/relu`, whose CUDA build depends on `acme/base`, and `acme/gelu`."""
    hub.make_repo("acme/base", variants=["torch-cuda"])
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-metal"])
    hub.make_repo("acme/relu", variants=["torch-cuda"], depends=[("acme/base", 1)], python_depends=["einops"])
    hub.make_repo("acme/gelu", variants=["torch-cpu", "torch-cuda"])
    return hub


def lock_of(hub: TestHub, folder: Path, *repo_ids: str, version: int = 1) -> Path:
    """A lock of the heads as they are now."""
    pins = tuple(Pin(Requirement(each, version=version), hub.commit(each, f"v{version}")) for each in repo_ids)
    path = folder / "kernels.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(Lock(pins).to_bytes())
    return path


def builds(found: Downloads | tuple[DownloadedBuild, ...]) -> list[str]:
    rows = found.builds if isinstance(found, Downloads) else found
    return [f"{each.repo_id} {each.variant}" for each in rows]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def unplugged(monkeypatch: pytest.MonkeyPatch, new_process: Callable[[], None]) -> Callable[[Path], None]:
    """Call it with a folder: this is then another machine, which has that folder, and on which no socket opens."""

    def unplug(folder: Path) -> None:
        new_process()
        monkeypatch.setenv("KERNELS_HUB", str(folder))
        monkeypatch.setenv("KERNELS_CACHE", str(folder.parent / "cache of the other machine"))

        def refuse(*args: Any, **options: Any) -> None:
            raise AssertionError("a socket was opened")

        monkeypatch.setattr(socket, "socket", refuse)

    return unplug


# For this machine and for others


def test_several_kernels_for_several_machines_with_what_they_depend_on(kernels_hub: TestHub) -> None:
    found = prefetch(DownloadRequest(["acme/relu", "acme/gelu"], version=1, targets=[HOPPER, CPU]))
    rows = {(each.repo_id, each.variant): (each.targets, each.new) for each in found.builds}
    assert rows == {
        ("acme/base", "torch-cuda"): ((HOPPER,), True),
        ("acme/gelu", "torch-cpu"): ((CPU,), True),
        ("acme/gelu", "torch-cuda"): ((HOPPER,), True),
        ("acme/relu", "torch-cpu"): ((CPU,), True),
        ("acme/relu", "torch-cuda"): ((HOPPER,), True),
    }
    assert not found.failures
    assert all((each.path / "__init__.py").is_file() for each in found.builds)
    assert [each.size for each in found.builds] == [
        sum(path.stat().st_size for path in each.path.iterdir()) for each in found.builds
    ]


def test_a_second_download_asks_for_no_file_and_says_that_nothing_is_new(
    kernels_hub: TestHub, new_process: Callable[[], None]
) -> None:
    prefetch(DownloadRequest(["acme/relu", "acme/gelu"], version=1, targets=[HOPPER, CPU]))
    kernels_hub.clear()
    new_process()
    again = prefetch(DownloadRequest(["acme/relu", "acme/gelu"], version=1, targets=[HOPPER, CPU]))
    assert not any(each.new for each in again.builds)
    assert kernels_hub.count("/resolve/") == 0
    assert {path for _, path in kernels_hub.requests} == {
        f"/api/kernels/acme/{name}/refs" for name in ("base", "gelu", "relu")
    }


def test_what_another_machine_will_choose_is_what_it_finds_here(kernels_hub: TestHub) -> None:
    from kernels import install_kernel

    [base, relu] = download_kernels(["acme/relu"], version=1, targets=[HOPPER])
    kernels_hub.clear()
    assert install_kernel("acme/relu", version=1, target=HOPPER) == relu.path
    assert install_kernel("acme/base", version=1, target=HOPPER) == base.path
    assert kernels_hub.count("/resolve/") == 0


def test_python_packages_are_asked_for_on_this_machine_only(hub: TestHub, tmp_path: Path) -> None:
    hub.make_repo("acme/relu", python_depends=["einops"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "einops", None)
        assert builds(download_kernels(["acme/relu"], version=1, targets=[CPU])) == ["acme/relu torch-cpu"]
        assert builds(download_kernels(["acme/relu"], version=1, to=tmp_path / "to")) == ["acme/relu torch-cpu"]
        with pytest.raises(MissingPythonDependency):
            download_kernels(["acme/relu"], version=1)


def test_every_build_and_every_build_of_what_any_depends_on(kernels_hub: TestHub) -> None:
    kernels_hub.make_repo("acme/base", variants=["torch-cpu", "torch-xpu"])
    assert builds(prefetch(DownloadRequest(["acme/relu"], version=1, all_variants=True))) == [
        "acme/base torch-cpu",
        "acme/base torch-cuda",
        "acme/base torch-xpu",
        "acme/relu torch-cpu",
        "acme/relu torch-cuda",
        "acme/relu torch-metal",
    ]


def test_a_build_that_nobody_could_load_is_left_out_of_every_build(hub: TestHub) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu"])
    hub.make_repo("acme/relu", variants={"torch-cuda": {"metadata.json": "[]"}})
    with warned(r"Build torch-cuda of acme/relu is left out: .*[^.]\.$"):
        assert builds(prefetch(DownloadRequest(["acme/relu"], version=1, all_variants=True))) == ["acme/relu torch-cpu"]


def test_what_has_no_build_for_a_machine_is_named_and_the_others_are_downloaded(kernels_hub: TestHub) -> None:
    with pytest.raises(NoSuitableBuild, match="acme/gelu"):
        download_kernels(["acme/relu", "acme/gelu"], version=1, targets=[APPLE, CPU])
    found = prefetch(DownloadRequest(["acme/relu", "acme/gelu"], version=1, targets=[APPLE, CPU]))
    assert [(each.variant, each.new) for each in found.builds] == [
        ("torch-cpu", False),
        ("torch-cpu", False),
        ("torch-metal", False),
    ]
    assert [(each.kernel, each.target) for each in found.failures] == [("acme/gelu version 1", APPLE)]


def test_a_hub_that_is_cut_in_the_middle_costs_only_what_was_missing(
    kernels_hub: TestHub, new_process: Callable[[], None], isolated_env: Path
) -> None:
    kernels_hub.truncate("acme/gelu/resolve/.*layers")
    found = prefetch(DownloadRequest(["acme/relu", "acme/gelu"], version=1, targets=[CPU]))
    assert builds(found) == ["acme/relu torch-cpu"]
    assert [(each.kernel, each.target) for each in found.failures] == [("acme/gelu torch-cpu", CPU)]
    kernels_hub.heal()
    kernels_hub.clear()
    new_process()
    again = prefetch(DownloadRequest(["acme/relu", "acme/gelu"], version=1, targets=[CPU]))
    assert [(each.repo_id, each.new) for each in again.builds] == [("acme/gelu", True), ("acme/relu", False)]
    asked = {path.rpartition("gelu/resolve/")[2][41:] for _, path in kernels_hub.requests if "/resolve/" in path}
    assert {"build/torch-cpu/layers.py"} <= asked <= {"build/torch-cpu/layers.py", "build/torch-cpu/__init__.py"}


def test_untrusted_publishers_are_refused_unless_asked_for(hub: TestHub) -> None:
    hub.make_repo("eve/relu")
    with pytest.raises(UntrustedPublisher):
        download_kernels(["eve/relu"], version=1)
    with pytest.raises(UntrustedPublisher):
        download_kernels(["eve/relu"], version=1, all_variants=True)
    assert hub.count("/resolve/") == 0
    assert builds(download_kernels(["eve/relu"], version=1, trust_remote_code=True)) == ["eve/relu torch-cpu"]


@pytest.mark.parametrize("all_variants", [False, True])
def test_what_a_policy_wants_signed_is_not_downloaded_unsigned(
    hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, all_variants: bool
) -> None:
    hub.make_repo("acme/relu")
    (tmp_path / "policy.toml").write_text("require-signature = true\n")
    monkeypatch.setenv("KERNELS_POLICY", str(tmp_path / "policy.toml"))
    with pytest.raises(UntrustedSignature):
        download_kernels(["acme/relu"], version=1, all_variants=all_variants, to=tmp_path / "to")
    assert not (tmp_path / "to").exists()
    assert hub.count("layers") == 0


class Told:
    """What a watcher was told."""

    def __init__(self) -> None:
        self.announced: list[tuple[int, int]] = []
        self.files = self.size = 0

    def start(self, files: int, size: int) -> None:
        self.announced.append((files, size))

    def arrived(self, files: int, size: int) -> None:
        self.files += files
        self.size += size

    def stored(self, size: int) -> None:
        raise AssertionError("no archive is stored")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process from /proc")
@pytest.mark.parametrize("resumed", [False, True])
def test_a_large_file_takes_little_memory(hub: TestHub, isolated_env: Path, resumed: bool) -> None:
    content = bytes(100_000_000)
    hub.make_repo("acme/relu", variants={"torch-cpu": {"data.bin": content}})
    if resumed:
        blobs = isolated_env / "kernels--acme--relu" / "blobs"
        blobs.mkdir(parents=True)
        left = blobs / f"{hashlib.sha256(content).hexdigest()}.0123abcd.left.incomplete"
        left.write_bytes(content[:60_000_000])
    code = """
from pathlib import Path
import kernels.operations.load, kernels.sources.download
from huggingface_hub.utils import get_session
from kernels import install_kernel

def peak():  # in kB; `ru_maxrss` is that of the parent where it was larger
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1])

get_session()
before = peak()
folder = install_kernel("acme/relu", version=1)
assert (folder / "data.bin").stat().st_size == 100_000_000
print((peak() - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 40, done.stdout
    assert not list((isolated_env / "kernels--acme--relu" / "blobs").glob("*.incomplete"))


def test_progress_is_of_all_files_and_bytes_together_large_ones_too(
    hub: TestHub, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from kernels.sources import download

    monkeypatch.setattr(download, "IN_MEMORY", 1000)
    monkeypatch.delenv("HF_HUB_DISABLE_PROGRESS_BARS")
    hub.make_repo("acme/relu", variants={"torch-cpu": {"large.bin": b"x" * 100_000, "again.bin": b"y" * 2000}})
    hub.make_repo("acme/gelu")
    told = Told()
    found = prefetch(DownloadRequest(["acme/relu", "acme/gelu"], version=1), told)
    assert told.announced == [(8, sum(each.size for each in found.builds))]
    assert (told.files, told.size) == told.announced[0]
    assert capfd.readouterr().err == ""
    new_process()
    silent = Told()
    prefetch(DownloadRequest(["acme/relu", "acme/gelu"], version=1), silent)
    assert (silent.announced, silent.files) == ([], 0)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"kernels": []}, RequestError, "Nothing to download"),
        ({"kernels": ["relu"]}, RequestError, "org/name"),
        ({"kernels": "acme/relu"}, TypeError, "a list"),
        ({"kernels": ["acme/relu"], "version": 1, "revision": "main"}, RequestError, "not both"),
        ({"kernels": ["acme/relu"], "targets": ["torch2.9-cu128"]}, RequestError, "such as 'torch2.9-cu128"),
        (
            {"kernels": ["acme/relu"], "targets": ["torch2.9-cud128-x86_64-linux"]},
            RequestError,
            "a known accelerator",
        ),
        ({"kernels": ["acme/relu"], "targets": [CPU], "all_variants": True}, RequestError, "cannot be used together"),
        ({"kernels": ["acme/relu"], "user_agent": 3}, TypeError, "user_agent"),
    ],
)
def test_arguments_that_mean_nothing_are_refused_before_anything_is_asked(
    hub: TestHub, arguments: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        prefetch(DownloadRequest(**arguments))
    assert hub.asked() == []


# Locks


def test_a_lock_says_which_commits_are_meant(kernels_hub: TestHub, tmp_path: Path) -> None:
    lock = lock_of(kernels_hub, tmp_path, "acme/base", "acme/gelu", "acme/relu")
    then = {name: kernels_hub.commit(name) for name in ("acme/base", "acme/gelu", "acme/relu")}
    for name in then:  # the commits that are locked stay, under their own names
        folder = kernels_hub.root / name
        shutil.copytree(folder / "v1", folder / then[name])
        (folder / "v1" / "news.txt").write_text("a newer commit")
        assert kernels_hub.commit(name) != then[name]
    found = prefetch(DownloadRequest(lock=lock, targets=[HOPPER]))
    assert not found.failures
    assert {each.repo_id: each.commit for each in found.builds} == then
    assert kernels_hub.count("/refs") == kernels_hub.count("/commits/") == len(then)  # they are no heads any more
    [base, _] = download_kernels(["acme/relu"], version=1, lock=lock, targets=[HOPPER])
    assert base.commit == then["acme/base"]


def test_what_is_locked_for_other_machines_alone_is_not_missed(kernels_hub: TestHub, tmp_path: Path) -> None:
    lock = lock_of(kernels_hub, tmp_path, "acme/base", "acme/relu")
    assert builds(download_kernels(lock=lock, targets=[CPU])) == ["acme/relu torch-cpu"]
    alone = lock_of(kernels_hub, tmp_path / "alone", "acme/base", "acme/gelu")
    [failure] = prefetch(DownloadRequest(lock=alone, targets=[CPU])).failures
    assert failure.kernel == "acme/base version 1"


def test_a_lock_of_the_older_format_is_one_too(kernels_hub: TestHub, tmp_path: Path) -> None:
    commits = {name: kernels_hub.commit(name) for name in ("acme/base", "acme/relu")}
    lock = tmp_path / "kernels.lock"
    lock.write_text(json.dumps([{"repo_id": name, "sha": commit, "variants": {}} for name, commit in commits.items()]))
    found = download_kernels(lock=lock, targets=[HOPPER])
    assert {each.repo_id: each.commit for each in found} == commits


@pytest.mark.parametrize(
    ("kernels", "version", "says"),
    [
        (["acme/other"], 1, "does not pin acme/other"),
        (["acme/relu"], 2, "version 2.*version 1"),
        ([], 1, "its own versions"),
    ],
)
def test_what_a_lock_does_not_mean_is_an_error(
    kernels_hub: TestHub, tmp_path: Path, kernels: list[str], version: int, says: str
) -> None:
    lock = lock_of(kernels_hub, tmp_path, "acme/relu")
    with pytest.raises((LockError, RequestError), match=says):
        prefetch(DownloadRequest(kernels, version=version, lock=lock))


@pytest.mark.parametrize("all_variants", [False, True])
def test_a_build_is_compared_with_the_content_that_a_lock_pins(
    hub: TestHub, tmp_path: Path, all_variants: bool
) -> None:
    hub.make_repo("acme/relu")
    lock = lock_of(hub, tmp_path, "acme/relu")
    pinned = {("acme/relu", hub.commit("acme/relu")): {"torch-cpu": ContentHash("sha256sum", "sha256-" + "0" * 64)}}
    (tmp_path / "kernels.hashes.json").write_bytes(Lock(hashes=pinned).hashes_to_bytes())
    with pytest.raises(DigestMismatch, match=r"not what .*kernels\.lock pins"):
        download_kernels(lock=lock, all_variants=all_variants, to=tmp_path / "to")
    assert not list((tmp_path / "to").rglob("*.py"))


def test_locked_carried_and_unplugged_a_kernel_is_found_by_its_lock(
    kernels_hub: TestHub,
    tmp_path: Path,
    unplugged: Callable[[Path], None],
    new_process: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock = lock_of(kernels_hub, tmp_path, "acme/gelu")
    locked = kernels_hub.commit("acme/gelu")
    download_kernels(lock=lock, targets=[CPU], to=tmp_path / "to")
    new_process()
    kernels_hub.make_repo("acme/gelu", variants=["torch-cpu"], seed="newer")
    download_kernels(["acme/gelu"], version=1, targets=[CPU], to=tmp_path / "to")
    unplugged(tmp_path / "to")
    monkeypatch.setenv("KERNELS_LOCKFILE", str(tmp_path / "to" / "kernels.lock"))
    monkeypatch.setenv("KERNELS_LOCKED", "1")
    assert locked in str(get_kernel("acme/gelu", version=1).__file__)
    assert locked in str(get_kernel("acme/gelu").__file__)
    monkeypatch.delenv("KERNELS_LOCKFILE")
    (tmp_path / "nowhere").mkdir()
    monkeypatch.chdir(tmp_path / "nowhere")
    caller = tmp_path / "nowhere" / "caller.py"  # it has no lock, and no project
    caller.write_text(
        "from kernels import get_kernel, get_locked_kernel, load_kernel\n"
        "found = [get_kernel('acme/gelu', version=1), get_locked_kernel('acme/gelu'), load_kernel('acme/gelu')]\n"
    )
    assert [locked in str(each.__file__) for each in runpy.run_path(str(caller))["found"]] == [True, True, True]
    monkeypatch.delenv("KERNELS_LOCKED")
    assert [locked in str(each.__file__) for each in runpy.run_path(str(caller))["found"]] == [False, True, True]
    assert locked not in str(get_kernel("acme/gelu", version=1).__file__)


def test_the_lock_in_force_counts_for_repositories_that_are_named(
    kernels_hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = lock_of(kernels_hub, tmp_path, "acme/gelu")
    monkeypatch.setenv("KERNELS_LOCKFILE", str(lock))
    download_kernels(["acme/gelu"], targets=[CPU], to=tmp_path / "to")
    assert kernels_hub.count("/refs") == 1  # whether a branch leads to the commit
    assert (tmp_path / "to" / "kernels.lock").read_bytes() == lock.read_bytes()
    with pytest.raises(LockError, match="version 2"):
        download_kernels(["acme/gelu"], version=2)


# Into a folder


def test_a_folder_stays_valid_however_it_is_moved(
    kernels_hub: TestHub,
    tmp_path: Path,
    unplugged: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit = kernels_hub.commit("acme/gelu")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    download_kernels(["acme/relu", "acme/gelu"], version=1, targets=[CPU, HOPPER], to="to")
    source, there = tmp_path / "here" / "to", tmp_path / "there" / "kernels"
    assert not [path for path in source.rglob("*") if path.is_symlink()]
    assert str(tmp_path).encode() not in b"".join(contents(source).values())
    there.parent.mkdir()
    source.rename(there)
    monkeypatch.chdir(tmp_path)
    unplugged(there)
    monkeypatch.setenv("KERNELS_VERIFY", "load")
    by_version = get_kernel("acme/gelu", version=1)
    assert (by_version.repo_id, by_version.version) == ("acme/gelu", 1)
    assert get_kernel("acme/gelu", revision=commit[:12]) is by_version
    assert str(tmp_path / "there" / "cache of the other machine") in str(by_version.__file__)
    assert get_kernel("acme/relu", version=1).variant == "torch-cpu"


def test_a_second_download_into_a_folder_changes_nothing(
    kernels_hub: TestHub, tmp_path: Path, new_process: Callable[[], None]
) -> None:
    lock = lock_of(kernels_hub, tmp_path, "acme/base", "acme/relu")
    (tmp_path / "kernels.hashes.json").write_bytes(Lock().hashes_to_bytes())
    download_kernels(lock=lock, targets=[HOPPER], to=tmp_path / "to")
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in (tmp_path / "to").rglob("*")}
    kernels_hub.clear()
    new_process()
    again = download_kernels(lock=lock, targets=[HOPPER], to=tmp_path / "to")
    assert not any(each.new for each in again)
    assert kernels_hub.count("/resolve/") == 0
    assert before == {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in (tmp_path / "to").rglob("*")}
    assert (tmp_path / "to" / "kernels.lock").read_bytes() == lock.read_bytes()
    assert (tmp_path / "to" / "kernels.hashes.json").is_file()
    lock_of(kernels_hub, tmp_path / "other", "acme/gelu")
    download_kernels(lock=tmp_path / "other" / "kernels.lock", targets=[CPU], to=tmp_path / "to")
    assert (tmp_path / "to" / "kernels.lock").read_bytes() == (tmp_path / "other" / "kernels.lock").read_bytes()
    assert not (tmp_path / "to" / "kernels.hashes.json").exists()


def test_a_folder_is_added_to_and_its_branches_follow(
    kernels_hub: TestHub, tmp_path: Path, new_process: Callable[[], None], unplugged: Callable[[Path], None]
) -> None:
    first = kernels_hub.commit("acme/gelu")
    download_kernels(["acme/gelu"], version=1, targets=[CPU], to=tmp_path / "to")
    new_process()
    kernels_hub.make_repo("acme/gelu", variants=["torch-cpu", "torch-cuda"], seed="newer")
    second = kernels_hub.commit("acme/gelu")
    download_kernels(["acme/gelu"], version=1, targets=[CPU], to=tmp_path / "to")
    new_process()
    download_kernels(["acme/gelu"], version=1, targets=[HOPPER], to=tmp_path / "to")
    download_kernels(["acme/relu"], version=1, targets=[CPU], to=tmp_path / "to")
    unplugged(tmp_path / "to")
    newest = get_kernel("acme/gelu", version=1)
    assert second in str(newest.__file__)
    assert first in str(get_kernel("acme/gelu", revision=first).__file__)
    assert [each.variant.name for each in get_kernel_variants("acme/gelu", version=1)] == ["torch-cpu", "torch-cuda"]


def test_a_branch_with_the_first_letters_of_its_commit_for_a_name_is_carried(
    hub: TestHub, tmp_path: Path, unplugged: Callable[[Path], None]
) -> None:
    folder = hub.make_repo("acme/relu", revision="main")
    commit = hub.commit("acme/relu", "main")
    folder.rename(folder.with_name(commit[:3]))
    download_kernels(["acme/relu"], revision=commit[:3], to=tmp_path / "to")
    unplugged(tmp_path / "to")
    for revision in (commit[:3], commit[:7], commit):
        assert commit in str(get_kernel("acme/relu", revision=revision).__file__)


def test_a_publisher_is_as_trusted_there_as_it_was_here(
    hub: TestHub, tmp_path: Path, unplugged: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/relu")
    hub.make_repo("eve/relu")
    download_kernels(["acme/relu", "eve/relu"], version=1, to=tmp_path / "to", trust_remote_code=True)
    unplugged(tmp_path / "to")
    assert get_kernel("acme/relu", version=1)
    with pytest.raises(UntrustedPublisher, match="eve/relu is refused"):
        get_kernel("eve/relu", version=1)
    assert get_kernel("eve/relu", version=1, trust_remote_code=["eve/relu"])


# Folders that are none, and faults


def test_a_folder_that_holds_something_else_is_left_as_it_is(kernels_hub: TestHub, tmp_path: Path) -> None:
    to = tmp_path / "to"
    for name in ("notes.txt", "acme/relu/v1/build/torch-cpu/__init__.py", ".hidden", "acme/notes"):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        (to / name).write_text("mine")
        before = contents(tmp_path / "to")
        with pytest.raises(RequestError, match=r"is not empty, and .* was not written by"):
            prefetch(DownloadRequest(["acme/gelu"], version=1, targets=[CPU], to=to))
        assert contents(to) == before
        shutil.rmtree(to)
    to.write_text("a file")
    with pytest.raises(RequestError, match="is not a folder"):
        prefetch(DownloadRequest(["acme/gelu"], version=1, targets=[CPU], to=to))
    with pytest.raises(RequestError, match="is not a folder"):
        prefetch(DownloadRequest(["acme/gelu"], version=1, targets=[CPU], to=to / "below"))
    assert to.read_text() == "a file"
    assert kernels_hub.asked() == []


@pytest.mark.parametrize("inside", [".", "cache"])
def test_a_folder_that_holds_the_cache_is_refused_before_the_cache_is_filled(
    kernels_hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str
) -> None:
    folder = tmp_path / "carried"
    monkeypatch.setenv("KERNELS_CACHE", str(folder / inside))
    with pytest.raises(RequestError, match="contains the cache"):
        prefetch(DownloadRequest(["acme/relu"], version=1, targets=[CPU], to=folder))
    assert not folder.exists()


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has no such permissions")
def test_a_folder_that_cannot_be_written_is_said_before_anything_is_asked(
    kernels_hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    if os.geteuid() == 0:  # root may write everywhere but on a file system that is read-only
        closed = Path("/proc/sys")
    else:
        closed.chmod(0o500)
    with pytest.raises(StoreError, match="is not writable"):
        prefetch(DownloadRequest(["acme/gelu"], version=1, targets=[CPU], to=closed / "to"))
    assert kernels_hub.asked() == []


def test_a_folder_of_repositories_is_copied_not_downloaded(
    kernels_hub: TestHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELS_HUB", str(kernels_hub.root))
    with pytest.raises(RequestError, match="copy that folder to"):
        prefetch(DownloadRequest(["acme/gelu"], version=1, to=tmp_path / "to"))
    assert not any(each.new for each in download_kernels(["acme/gelu"], version=1, trust_remote_code=True))


RUN = "import sys; from kernels import download_kernels; download_kernels(['acme/gelu'], version=1, to=sys.argv[1])"


def test_ctrl_c_ends_it_and_leaves_nothing_half_written(hub: TestHub, tmp_path: Path) -> None:
    hub.make_repo("acme/gelu")
    hub.make_repo("acme/relu")
    hub.hang("gelu/resolve/.*layers")
    code = RUN.replace("['acme/gelu']", "['acme/gelu', 'acme/relu']")
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "to")], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while hub.count("gelu/resolve/.*layers") == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert not list((tmp_path / "to").rglob(".staging*"))
    hub.heal()
    found = download_kernels(["acme/gelu", "acme/relu"], version=1, to=tmp_path / "to")
    assert builds(found) == ["acme/gelu torch-cpu", "acme/relu torch-cpu"]


def test_a_disk_that_is_full_is_an_error_that_says_so_and_leaves_what_was_there(hub: TestHub, tmp_path: Path) -> None:
    hub.make_repo("acme/gelu", variants={"torch-cpu": {"large.py": f"# {os.urandom(200_000).hex()}"}})
    hub.make_repo("acme/relu")
    download_kernels(["acme/gelu"], version=1)
    download_kernels(["acme/relu"], version=1, to=tmp_path / "to")
    before = contents(tmp_path / "to")
    full = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", full + RUN, str(tmp_path / "to")],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("kernels.errors.StoreError: Cannot write")
    assert "File too large" in last
    assert contents(tmp_path / "to") == before
    assert not list((tmp_path / "to").rglob(".staging*"))
    assert builds(download_kernels(["acme/gelu"], version=1, to=tmp_path / "to"))


def test_a_folder_is_a_mirror_with_the_lock_beside_it(kernels_hub: TestHub, tmp_path: Path) -> None:
    lock = lock_of(kernels_hub, tmp_path, "acme/gelu")
    commit = kernels_hub.commit("acme/gelu")
    [build] = download_kernels(lock=lock, targets=[CPU], to=tmp_path / "to")
    assert (build.path.parents[2], build.path.name[64:], build.new) == (tmp_path / "to", ".tar.zst", True)
    assert sorted(contents(tmp_path / "to")) == [
        "api/kernels/acme/gelu/refs",
        f"api/kernels/acme/gelu/tree/{commit}",
        build.path.relative_to(tmp_path / "to").as_posix(),
        "kernels.lock",
        "mirror.json",
    ]
    index = MirrorDocument.parse((tmp_path / "to" / index_path("acme/gelu")).read_bytes(), "index")
    found = index.repository("acme/gelu", "index")
    assert (found.branches, found.origin.url, found.publisher.trusted) == ({"v1": commit}, kernels_hub.url, True)
    assert found.commits[commit].absent == ("torch-cuda",)


def test_an_archive_that_was_not_copied_whole_is_put_there_again(hub: TestHub, tmp_path: Path) -> None:
    hub.make_repo("acme/gelu")
    [build] = download_kernels(["acme/gelu"], version=1, to=tmp_path / "to")
    good = build.path.read_bytes()
    build.path.write_bytes(good[:-1])
    [again] = download_kernels(["acme/gelu"], version=1, to=tmp_path / "to")
    assert (again.new, build.path.read_bytes()) == (True, good)


def test_what_was_changed_in_the_cache_is_not_carried(hub: TestHub, tmp_path: Path) -> None:
    hub.make_repo("acme/gelu")
    [build] = download_kernels(["acme/gelu"], version=1)
    changed = build.path / "layers.py"
    good = changed.read_bytes()
    changed.resolve().write_bytes(b"#" * len(good))
    [carried] = download_kernels(["acme/gelu"], version=1, to=tmp_path / "to")
    assert carried.new
    assert changed.read_bytes() == good


def test_what_is_not_in_the_folder_is_said(
    kernels_hub: TestHub, tmp_path: Path, unplugged: Callable[[Path], None]
) -> None:
    [build] = download_kernels(["acme/gelu"], version=1, targets=[CPU], to=tmp_path / "to")
    unplugged(tmp_path / "to")
    with pytest.raises(RequestError, match="no version 2; it has 1"):
        get_kernel("acme/gelu", version=2)
    with pytest.raises(RequestError, match="has no commit"):
        get_kernel("acme/gelu", revision="1" * 40)
    with pytest.raises(FileNotFoundError, match="acme/relu"):
        get_kernel("acme/relu", version=1)
    build.path.unlink()
    with pytest.raises(KernelsError, match=r"\.tar\.zst"):
        get_kernel("acme/gelu", version=1)
