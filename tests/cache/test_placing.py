"""Contents that are put into a snapshot: many at once, with folders that change or are links."""

from __future__ import annotations

import hashlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernels.cache import placing
from kernels.cache.placing import Placing
from kernels.cache.repo_store import RepoStore
from kernels.errors import InvalidRepository, StoreError
from kernels.models.snapshot import RepoFile
from kernels.support.concurrency import Cancelled

COMMIT = "c" * 40


@pytest.fixture(params=[True, False], ids=["in open folders", "by path"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RepoStore:
    if request.param and not placing._IN_FOLDERS:
        pytest.skip("files cannot be named within an open folder here")
    monkeypatch.setattr(placing, "_IN_FOLDERS", request.param)
    return RepoStore(tmp_path / "cache", "kernel", "acme/relu")


def described(path: str, content: bytes) -> RepoFile:
    return RepoFile(path, len(content), sha256=hashlib.sha256(content).hexdigest())


def _open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()


def test_files_of_many_folders_are_placed_from_many_threads(store: RepoStore) -> None:
    contents = {f"build/v/f{number % 50}/{number}.py": b"%d" % number for number in range(300)}
    files = {path: described(path, content) for path, content in contents.items()}
    before = _open_files()
    with store.placing(COMMIT) as place, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda path: place.put(contents[path], files[path]), contents))
        assert len(_open_files() - before) <= placing._MOST_OPEN + 1
    assert _open_files() <= before
    assert store.missing(COMMIT, files.values()) == []
    assert all(store.read(COMMIT, files[path]) == content for path, content in contents.items())
    store.check_links(COMMIT, files.values())
    assert {path.name for path in (store.folder / "blobs").iterdir()} == {file.blob for file in files.values()}


def test_files_of_one_content_share_it(store: RepoStore) -> None:
    files = [described(f"build/v/{name}/__init__.py", b"") for name in "abc"]
    with store.placing(COMMIT) as place:
        place.put(b"", *files)
    assert store.missing(COMMIT, files) == []
    assert len(list((store.folder / "blobs").iterdir())) == 1


def test_what_is_there_is_replaced_unless_it_is_as_listed(store: RepoStore) -> None:
    file = described("a.py", b"right")
    blob = store.folder / "blobs" / file.blob
    with store.placing(COMMIT) as place:
        place.put(b"right", file)
        found = blob.stat().st_ino
        place.put(b"right", file)
        assert blob.stat().st_ino == found
        blob.write_bytes(b"wrong")
        link = store.snapshot(COMMIT) / "a.py"
        link.unlink()
        link.write_text("no link")
        place.put(b"right", file)
    assert link.is_symlink()
    assert store.read(COMMIT, file) == b"right"


@pytest.mark.parametrize("removed", ["", "blobs", "snapshots"])
def test_a_folder_that_is_removed_meanwhile_is_made_again(store: RepoStore, removed: str) -> None:
    files = [described(f"build/v/{name}.py", name.encode()) for name in "ab"]
    with store.placing(COMMIT) as place:
        place.put(b"a", files[0])
        shutil.rmtree(store.folder / removed)
        place.put(b"b", files[1])
    assert store.has(COMMIT, files[1])
    assert store.read(COMMIT, files[1]) == b"b"


@pytest.mark.parametrize("linked", ["blobs", "snapshots", f"snapshots/{COMMIT}/build/v"])
def test_a_link_that_is_planted_meanwhile_leads_nowhere(store: RepoStore, tmp_path: Path, linked: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    files = [described(f"build/v/{name}.py", name.encode()) for name in "ab"]
    with store.placing(COMMIT) as place:
        place.put(b"a", files[0])
        (store.folder / linked).rename(tmp_path / "moved")
        (store.folder / linked).symlink_to(victim)
        if placing._IN_FOLDERS:
            place.put(b"b", files[1])
        else:
            with pytest.raises(InvalidRepository, match="is a link; expected a folder"):
                place.put(b"b", files[1])
    assert list(victim.iterdir()) == []
    with pytest.raises(InvalidRepository, match="is a link; expected a folder"), store.placing(COMMIT) as place:
        place.put(b"b", files[1])
    assert list(victim.iterdir()) == []


@pytest.mark.skipif(not placing._IN_FOLDERS, reason="files cannot be named within an open folder here")
@pytest.mark.parametrize("linked", ["", "snapshots", f"snapshots/{COMMIT}", f"snapshots/{COMMIT}/build"])
def test_a_folder_that_becomes_a_link_after_its_check_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: str
) -> None:
    store = RepoStore(tmp_path / "cache", "kernel", "acme/relu")
    file = described("build/v/a.py", b"a")
    victim = tmp_path / "victim"
    checked = placing.make_folders

    def swapped(folder: Path, cache: Path) -> None:
        checked(folder, cache)
        place = store.folder / linked
        if folder.name == "v" and not place.is_symlink():
            place.rename(victim)
            place.symlink_to(victim)

    monkeypatch.setattr(placing, "make_folders", swapped)
    with pytest.raises((StoreError, InvalidRepository)), store.placing(COMMIT) as place:
        place.put(b"a", file)
    assert not list(victim.rglob("a.py"))


@pytest.mark.skipif(not placing._IN_FOLDERS, reason="files cannot be named within an open folder here")
def test_a_folder_that_becomes_a_link_while_a_file_is_replaced_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RepoStore(tmp_path / "cache", "kernel", "acme/relu")
    folder, victim = store.snapshot(COMMIT) / "build" / "v", tmp_path / "victim"
    for each, content in ((folder, "changed"), (victim, "mine")):
        each.mkdir(parents=True)
        (each / "a.py").write_text(content)
    checks = 0
    checked = placing.make_folders

    def swapped(made: Path, cache: Path) -> None:
        nonlocal checks
        checked(made, cache)
        checks += made == folder
        if checks == 2:
            folder.rename(tmp_path / "before")
            folder.symlink_to(victim)

    monkeypatch.setattr(placing, "make_folders", swapped)
    with store.placing(COMMIT) as place:
        place.put(b"a", described("build/v/a.py", b"a"))
    assert (victim / "a.py").read_text() == "mine"
    assert (folder / "a.py").read_bytes() == b"a"
    assert not list(store.folder.glob("blobs/*.incomplete"))


def test_a_thread_that_was_cancelled_writes_nothing_later(store: RepoStore) -> None:
    place = Placing(store.cache, store.folder, COMMIT)
    with place:
        pass
    with pytest.raises(Cancelled):
        place.put(b"a", described("a.py", b"a"))
    assert not store.folder.exists()
