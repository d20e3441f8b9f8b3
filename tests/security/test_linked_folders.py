"""A cache that others can write, with a link in the place of a folder: nothing outside of the cache is touched."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub import TestHub

from kernels import get_kernel, get_kernel_variants, settings
from kernels.cache.inventory import scan_cache
from kernels.cache.prune import plan_prune, prune
from kernels.cache.store import RepoStore
from kernels.errors import InvalidRepository, StoreError
from kernels.models.snapshot import RepoFile
from kernels.support.files import check_folders, make_folders
from kernels.support.lock import WorkLock, exclusively
from kernels.support.record_file import StoredRecord, read_record, write_record

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")

COMMIT = "c" * 40

FILE = RepoFile("build/torch-cpu/__init__.py", 3)


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A folder outside of the cache, in which nothing may change."""
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "__init__.py").write_text("precious = 1\n")
    yield folder
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"__init__.py": "precious = 1\n"}


def planted(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)


def folders(commit: str) -> list[str]:
    snapshot = f"snapshots/{commit}"
    return ["", "blobs", "snapshots", snapshot, f"{snapshot}/build", f"{snapshot}/build/torch-cpu"]


def receive(store: RepoStore) -> None:
    writer = store.writer(COMMIT)
    with writer.part(FILE) as part:
        part.append(b"a=1")
        writer.keep(part, FILE)


@pytest.mark.parametrize("number", range(6))
def test_a_build_is_written_through_no_link(hub: TestHub, victim: Path, number: int) -> None:
    hub.make_repo()
    planted(settings.cache_dir() / "kernels--acme--relu" / folders(hub.commit())[number], victim)
    with pytest.raises(InvalidRepository, match=r"is a link; expected a folder\. Remove it"):
        get_kernel("acme/relu", version=1)


def test_what_is_read_without_trust_is_written_through_no_link(hub: TestHub, victim: Path) -> None:
    hub.make_repo()
    planted(settings.cache_dir() / "kernels--acme--relu" / "blobs", victim)
    with pytest.raises(InvalidRepository, match="is a link"):
        get_kernel_variants("acme/relu", version=1)


@pytest.mark.parametrize("number", range(6))
def test_nothing_is_placed_adopted_kept_or_discarded_through_a_link(tmp_path: Path, victim: Path, number: int) -> None:
    cache = tmp_path / "cache"
    store = RepoStore(cache, "acme/relu")
    planted(store.folder / folders(COMMIT)[number], victim)
    with pytest.raises(InvalidRepository):
        store.writer(COMMIT).put(b"a=1", FILE)
    with pytest.raises(InvalidRepository):
        store.writer(COMMIT).remove(FILE)
    with pytest.raises(InvalidRepository):
        receive(store)


def test_a_temporary_file_that_is_swapped_for_a_link_is_not_opened_again(tmp_path: Path, victim: Path) -> None:
    store = RepoStore(tmp_path / "cache", "acme/relu")
    file = RepoFile("big.bin", 2_000_000, sha256="a" * 64)
    blobs = store.folder / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{file.blob}.01234567.left.incomplete").write_bytes(b"x" * 1_500_000)
    with store.writer(COMMIT).part(file) as part:
        assert part.offset == 1_500_000
        [path] = blobs.iterdir()
        path.unlink()
        path.symlink_to(victim / "__init__.py")
        assert part.append(b"y" * 500_000)
        part.restart()


@pytest.mark.parametrize("linked", ["", "blobs", "index"])
def test_nothing_is_swept_through_a_link(tmp_path: Path, linked: str) -> None:
    store = RepoStore(tmp_path / "cache", "acme/relu")
    victim = tmp_path / "victim"
    old = [victim / name for name in ("a.incomplete", "a.tmp", "blobs/a.incomplete", "index/a.tmp")]
    for path in old:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (1, 1))
    planted(store.folder / linked, victim)
    assert store.leftovers() == []
    store.sweep()
    assert all(path.exists() for path in old)


@pytest.mark.parametrize("linked", ["kernels--acme--relu", "kernels--acme--relu/blobs", ".locks"])
def test_a_folder_that_becomes_a_link_after_the_look_is_not_cleared(tmp_path: Path, linked: str) -> None:
    cache = tmp_path / "cache"
    store = RepoStore(cache, "acme/relu")
    store.writer(COMMIT).put(b"a=1", FILE)
    old = [store.folder / "blobs" / "a.incomplete", cache / ".locks" / store.folder.name / "a.lock"]
    for path in old:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (1, 1))
    planned = plan_prune(scan_cache(cache), now=time.time())
    assert set(planned.leftovers) == set(old)
    (cache / linked).rename(tmp_path / "victim")
    (cache / linked).symlink_to(tmp_path / "victim")
    prune(planned)
    assert [path.exists() for path in old] == [str(path).startswith(str(cache / linked)) for path in old]


@pytest.mark.parametrize("linked", [".locks", ".locks/kernels--acme--relu"])
def test_a_lock_is_written_through_no_link(tmp_path: Path, victim: Path, linked: str) -> None:
    store = RepoStore(tmp_path / "cache", "acme/relu")
    planted(store.cache / linked, victim)
    with pytest.raises(StoreError, match="is a link; expected a folder"), exclusively(store.lock("work")):
        pass


@pytest.mark.parametrize("linked", ["kernels--a--b", "kernels--a--b/index", ".locks", ".locks/kind", ".locks/kind/Hub"])
def test_a_record_is_neither_written_nor_read_through_a_link(tmp_path: Path, victim: Path, linked: str) -> None:
    folder = "kernels--a--b/index" if linked.startswith("kernels") else ".locks/kind/Hub"
    cache, record = tmp_path / "cache", f"{folder}/a.json"
    write_record(cache / record, StoredRecord())
    assert read_record(cache / record, StoredRecord) is not None
    (cache / linked).rename(tmp_path / "moved")
    planted(cache / linked, tmp_path / "moved")
    assert read_record(cache / record, StoredRecord) is None
    (cache / linked).unlink()
    planted(cache / linked, victim)
    write_record(cache / record, StoredRecord())


def test_a_cache_may_be_a_link_itself_and_share_its_contents(tmp_path: Path) -> None:
    (tmp_path / "disk" / "blobs").mkdir(parents=True)
    cache = tmp_path / "cache"
    cache.symlink_to(tmp_path / "disk")
    store = RepoStore(cache, "acme/relu")
    planted(store.folder / "blobs", cache / "blobs")
    file = RepoFile(FILE.path, 3)
    store.writer(COMMIT).put(b"a=1", file)
    store.check_links(COMMIT, [file])
    assert store.has(COMMIT, file)
    with exclusively(store.lock("work")):
        write_record(store.folder / "index" / "a.json", StoredRecord())
    assert read_record(store.folder / "index" / "a.json", StoredRecord) is not None


def test_folders_of_a_relative_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for root in (Path(), Path("cache")):
        make_folders(root / "kernels--a--b" / "blobs", root)
        check_folders(root / "kernels--a--b" / "blobs", root)
    assert (tmp_path / "kernels--a--b" / "blobs").is_dir()
    assert (tmp_path / "cache" / "kernels--a--b" / "blobs").is_dir()


def test_a_link_in_the_place_of_a_lock_without_flock_is_removed(
    tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    fcntl = pytest.importorskip("fcntl")

    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    for target in (victim / "__init__.py", tmp_path / "nothing"):
        (tmp_path / "work.lock.held").symlink_to(target)
        with exclusively(WorkLock(tmp_path / "work.lock", seconds=5)):
            pass
        assert not (tmp_path / "nothing").exists()
