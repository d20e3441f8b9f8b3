"""When the content of a build is checked, what is remembered of that, and what happens to a file that was changed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub
from msgspec.structs import replace
from opened_files import opened_below

from kernels import download_kernels, get_kernel, get_local_kernel, get_locked_kernel, install_kernel, load_kernel
from kernels.api import KernelRequest, get_kernels
from kernels.errors import DigestMismatch, RequestError
from kernels.models.lockfile import Lock, Pin, hashes_path
from kernels.models.requirement import Requirement
from kernels.operations.open_sources import open_sources
from kernels.resolver.content_hash import listed_hash
from kernels.trust.content import BuildContent


@pytest.fixture
def read(isolated_env: Path) -> Iterator[Callable[[], list[str]]]:
    """The files of builds that were read since the last call, each time one was; the plan reads `metadata.json`."""
    with opened_below(isolated_env.parent) as opened:

        def since() -> list[str]:
            here = [
                path for path in opened if path.startswith(("cache/", "copy/", "mirror/"))
            ]  # not in the Hub's folder
            opened.clear()
            names = sorted(path.partition("/build/torch-cpu/")[2] for path in here)
            return [name for name in names if name not in ("", "metadata.json")]

        yield since


FILES = ["__init__.py", "layers.py"]


def change(path: Path) -> bytes:
    """Change a file without changing its size; returns what it was."""
    real = path.resolve()
    before = real.read_bytes()
    real.write_bytes(b"#" + before[1:])
    os.utime(real, ns=(1, 1))  # whatever the clock's grain: another time than the one it had
    return before


@pytest.mark.parametrize("digest", [True, False])
def test_a_build_is_checked_once_and_what_was_found_is_remembered(
    hub: TestHub, new_process: Callable[[], None], read: Callable[[], list[str]], digest: bool
) -> None:
    hub.make_repo("acme/relu", digest=digest)
    install_kernel("acme/relu", version=1)
    assert read() == (FILES if digest else [])  # what was just downloaded was compared when it arrived
    for _ in range(2):
        new_process()
        install_kernel("acme/relu", version=1)
    assert read() == []


def test_a_build_that_is_cleared_away_while_it_is_checked_is_fetched_again(
    hub: TestHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/relu", digest=True)
    cleared: list[Path] = []
    check_digest = BuildContent.check_digest

    def cleared_before(content: BuildContent, *arguments: Any) -> None:
        if not cleared:
            shutil.rmtree(content.folder)
            cleared.append(content.folder)
        check_digest(content, *arguments)

    monkeypatch.setattr(BuildContent, "check_digest", cleared_before)
    assert (install_kernel("acme/relu", version=1) / "layers.py").is_file()
    assert cleared


@pytest.mark.parametrize("how", ["variable", "argument"])
@pytest.mark.parametrize("when", ["install", "load"])
def test_a_file_that_was_changed_in_the_cache_is_found_and_fetched_again(
    hub: TestHub, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch, when: str, how: str
) -> None:
    hub.make_repo("acme/relu", digest=True)
    path = install_kernel("acme/relu", version=1) / "layers.py"
    before = change(path)
    asked = {"verify": when} if how == "argument" else {}
    if how == "variable":
        monkeypatch.setenv("KERNELS_VERIFY", when)
    new_process()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DigestMismatch, match=r"not what the Hub listed: build/torch-cpu/layers\.py"):
        get_kernel("acme/relu", version=1, **asked)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    new_process()
    get_kernel("acme/relu", version=1, **asked)
    assert path.read_bytes() == before


@pytest.mark.parametrize("file", ["layers.py", "metadata.json"])
@pytest.mark.parametrize("size", ["same", "other"])
def test_offline_no_other_build_takes_the_place_of_one_that_was_changed(
    hub: TestHub, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch, file: str, size: str
) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-universal"])
    download_kernels(["acme/relu"], version=1, all_variants=True)
    build = install_kernel("acme/relu", version=1)
    assert build.name == "torch-cpu"
    path = (build / file).resolve()
    before = path.read_bytes()
    path.write_bytes(b"#" + before[size == "same" :])
    new_process()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DigestMismatch, match=rf"not what the Hub listed: build/torch-cpu/{re.escape(file)},"):
        get_kernel("acme/relu", version=1)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    new_process()
    assert get_kernel("acme/relu", version=1).__name__
    assert (build / file).read_bytes() == before


def test_offline_a_build_that_was_never_complete_is_no_candidate_whatever_is_here_of_it(
    hub: TestHub, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-universal"])
    build = download_kernels(["acme/relu"], version=1, all_variants=True)[0].path
    assert build.name == "torch-cpu"
    (build / "layers.py").unlink()
    (build / "metadata.json").unlink()  # a link to what another build may share
    (build / "metadata.json").write_bytes(b"{}")
    new_process()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert install_kernel("acme/relu", version=1).name == "torch-universal"


def test_a_build_without_a_digest_is_held_against_the_listing(hub: TestHub, new_process: Callable[[], None]) -> None:
    hub.make_repo("acme/relu")
    path = install_kernel("acme/relu", version=1) / "layers.py"
    before = change(path)
    new_process()
    install_kernel("acme/relu", version=1)
    assert path.read_bytes() == before


@pytest.mark.parametrize("how", ["variable", "argument"])
def test_off_loads_what_is_there(
    hub: TestHub,
    new_process: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[], list[str]],
    how: str,
) -> None:
    hub.make_repo("acme/relu", digest=True)
    path = install_kernel("acme/relu", version=1, verify="off") / "__init__.py"
    assert read() == []
    path.resolve().write_bytes(path.read_bytes().replace(b"return x + x", b"return x * 3"))
    new_process()
    if how == "variable":
        monkeypatch.setenv("KERNELS_VERIFY", "off")
    kernel = get_kernel("acme/relu", version=1, **({"verify": "off"} if how == "argument" else {}))
    assert kernel.double(1) == 3


def test_load_checks_at_every_load(
    hub: TestHub, new_process: Callable[[], None], read: Callable[[], list[str]]
) -> None:
    hub.make_repo("acme/relu", digest=True)
    install_kernel("acme/relu", version=1)
    read()
    for _ in range(2):
        new_process()
        install_kernel("acme/relu", version=1, verify="load")
        assert read() == FILES


def test_a_cache_that_was_copied_is_checked_once_more_and_not_refused(
    hub: TestHub,
    new_process: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[], list[str]],
    isolated_env: Path,
    tmp_path: Path,
) -> None:
    hub.make_repo("acme/relu", digest=True)
    install_kernel("acme/relu", version=1)
    shutil.copytree(isolated_env, tmp_path / "copy", symlinks=True)
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / "copy"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    read()
    for expected in (FILES, []):
        new_process()
        assert install_kernel("acme/relu", version=1).is_relative_to(tmp_path / "copy")
        assert read() == expected


def test_a_file_that_appears_beside_the_others_is_found(hub: TestHub, new_process: Callable[[], None]) -> None:
    hub.make_repo("acme/relu", digest=True)
    folder = install_kernel("acme/relu", version=1)
    (folder / "layers").mkdir()
    (folder / "layers" / "__init__.py").write_text("raise SystemExit")  # a package goes before a module of its name
    new_process()
    with pytest.raises(DigestMismatch, match=r"not in the digest: 'layers/__init__\.py'"):
        get_kernel("acme/relu", version=1)


@pytest.mark.parametrize("content", [b"", b"true", b"{", b"\xff", b'{"facts": {}, "files": {}}', b"[]"])
def test_findings_that_cannot_be_read_count_as_none(
    hub: TestHub, new_process: Callable[[], None], read: Callable[[], list[str]], isolated_env: Path, content: bytes
) -> None:
    hub.make_repo("acme/relu", digest=True)
    install_kernel("acme/relu", version=1)
    [findings] = isolated_env.rglob("*.checked")
    findings.write_bytes(content)
    read()
    new_process()
    install_kernel("acme/relu", version=1)
    assert read() == FILES
    assert findings.read_bytes() != content


def test_a_cache_that_cannot_be_written_is_checked_each_time_and_serves(
    hub: TestHub, new_process: Callable[[], None], read: Callable[[], list[str]], isolated_env: Path
) -> None:
    hub.make_repo("acme/relu", digest=True)
    install_kernel("acme/relu", version=1)
    [findings] = isolated_env.rglob("*.checked")
    findings.unlink()
    findings.mkdir()
    shutil.rmtree(isolated_env / ".locks")
    (isolated_env / ".locks").write_text("no folder: no lock can be taken")
    for _ in range(2):
        read()
        new_process()
        assert install_kernel("acme/relu", version=1)
        assert read() == FILES


def test_a_folder_in_the_place_of_a_hub_is_checked_once_too(
    isolated_env: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[], list[str]], tmp_path: Path
) -> None:
    from hub import make_repo

    folder = make_repo(tmp_path / "mirror", "acme/relu", digest=True)
    monkeypatch.setenv("KERNELS_HUB", str(tmp_path / "mirror"))
    monkeypatch.setenv("KERNELS_TRUSTED_PUBLISHERS", "acme")
    read()
    install_kernel("acme/relu", version=1)
    install_kernel("acme/relu", version=1)
    assert read() == FILES
    change(folder / "build" / "torch-cpu" / "layers.py")
    for _ in range(2):
        with pytest.raises(DigestMismatch, match=r"changed: 'layers\.py'"):
            install_kernel("acme/relu", version=1)
    assert install_kernel("acme/relu", version=1, verify="off")


def test_a_local_kernel_is_checked_when_asked_for(tmp_path: Path, isolated_env: Path) -> None:
    from hub import make_repo

    folder = make_repo(tmp_path, "acme/relu", digest=True)
    change(folder / "build" / "torch-cpu" / "layers.py")
    assert get_local_kernel(folder).repo_id == "acme/relu"
    assert get_local_kernel(folder, verify="install").repo_id == "acme/relu"
    with pytest.raises(DigestMismatch):
        get_local_kernel(folder, verify="load")


def test_another_word_is_refused_before_anything_is_asked(hub: TestHub) -> None:
    hub.make_repo("acme/relu")
    with pytest.raises(RequestError, match="`verify` is 'never'"):
        get_kernel("acme/relu", version=1, verify="never")  # type: ignore[arg-type]
    [error] = get_kernels([KernelRequest("acme/relu", 1, verify="never")])  # type: ignore[arg-type]
    assert isinstance(error, RequestError)
    assert hub.requests == []


def locked(path: Path, hub: TestHub, *, value: str | None = None) -> Path:
    """A lock with content hashes of acme/relu as the Hub lists it, or with another hash."""
    source = open_sources().of("acme/relu")
    commit = hub.commit("acme/relu")
    requirement = Requirement("acme/relu", version=1)
    content = listed_hash(source, source.snapshot(requirement, commit), "torch-cpu")
    hashes = {("acme/relu", commit): {"torch-cpu": content if value is None else replace(content, value=value)}}
    lock = Lock((Pin(requirement, commit),), hashes)
    path.write_bytes(lock.to_bytes())
    hashes_path(path).write_bytes(lock.hashes_to_bytes())
    return path


@pytest.mark.parametrize("how", ["get_kernel", "get_locked_kernel", "load_kernel"])
def test_what_a_locks_hashes_pin_is_loaded_and_anything_else_is_refused(
    hub: TestHub, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    hub.make_repo("acme/relu", digest=True)
    install_kernel("acme/relu", version=1)
    right = locked(tmp_path / "right.lock", hub)
    wrong = locked(tmp_path / "wrong.lock", hub, value=f"sha256-{'0' * 64}")

    def get(path: Path, verify: str | None = None) -> object:
        new_process()
        if how == "get_kernel":
            monkeypatch.setenv("KERNELS_LOCKFILE", str(path))
            return get_kernel("acme/relu", version=1, verify=verify)  # type: ignore[arg-type]
        load = {"get_locked_kernel": get_locked_kernel, "load_kernel": load_kernel}[how]
        return load("acme/relu", lockfile=path, verify=verify)  # type: ignore[operator]

    assert get(right)
    for verify in (None, "install", "load", "off"):
        with pytest.raises(DigestMismatch, match=r"acme/relu: build torch-cpu .*wrong\.lock pins"):
            get(wrong, verify)
    assert get(right, "load")


def test_off_compares_a_download_with_what_a_lock_pins(hub: TestHub, tmp_path: Path) -> None:
    hub.make_repo("acme/relu", digest=True)
    wrong = locked(tmp_path / "wrong.lock", hub, value=f"sha256-{'0' * 64}")
    for _ in range(2):
        with pytest.raises(DigestMismatch, match=r"acme/relu: build torch-cpu .*wrong\.lock pins"):
            get_locked_kernel("acme/relu", lockfile=wrong, verify="off")


def test_the_environment_says_when_a_mappings_kernels_are_checked(
    hub: TestHub, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernels import LayerRepository

    hub.make_repo("acme/relu", digest=True)
    path = install_kernel("acme/relu", version=1) / "layers.py"
    change(path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    new_process()
    with pytest.raises(DigestMismatch, match=r"layers\.py"):
        LayerRepository("acme/relu", layer_name="SiluAndMul", version=1).load("cpu")
    monkeypatch.setenv("KERNELS_VERIFY", "off")
    new_process()
    assert LayerRepository("acme/relu", layer_name="SiluAndMul", version=1).load("cpu")
