"""Which files are requested before their build is chosen, and how they are handed over."""

from __future__ import annotations

import threading
from pathlib import Path

from kernels.cache.repo_store import RepoStore
from kernels.models.snapshot import RepoFile
from kernels.sources.files_ahead import MAX_BYTES, MAX_FILES, FilesAhead, small_files

COMMIT = "c" * 40


def listed(name: str, content: bytes) -> RepoFile:
    file = RepoFile(f"build/torch-cpu/{name}", len(content), "0" * 40)
    hasher = file.hasher()
    hasher.update(content)
    return RepoFile(file.path, file.size, hasher.hexdigest())


def of_size(number: int, size: int) -> RepoFile:
    return RepoFile(f"build/torch-cpu/{number}.py", size, f"{number:040x}")


def test_no_more_files_than_bounded_are_requested() -> None:
    assert len(small_files([of_size(number, 1) for number in range(100_000)])) == MAX_FILES


def test_no_more_bytes_than_bounded_are_requested() -> None:
    chosen = small_files([of_size(number, size) for number, size in enumerate((MAX_BYTES, 2**50, 10, MAX_BYTES - 10))])
    assert [file.size for file in chosen] == [10, MAX_BYTES - 10]


def test_a_content_is_requested_once() -> None:
    assert len(small_files([RepoFile(f"build/torch-cpu/{number}.py", 0, "e" * 40) for number in range(9)])) == 1


def test_what_is_taken_is_in_the_snapshot_and_the_lock_is_free(tmp_path: Path) -> None:
    store = RepoStore(tmp_path, "kernel", "acme/relu")
    contents = {listed("a.py", b"a"): b"a", listed("b.py", b"b"): b"b"}
    lock = store.lock("work")
    assert lock.acquire_at_once()
    ahead = FilesAhead("acme/relu", list(contents), contents.__getitem__, lock)
    assert ahead.take()
    ahead.drop()  # too late
    assert not store.lock("work").acquire_at_once()
    assert ahead.put_into(store, COMMIT, contents) == set(contents)
    ahead.end()
    assert store.missing(COMMIT, contents) == []
    assert store.lock("work").acquire_at_once()


def test_what_is_dropped_cannot_be_taken_and_nothing_of_it_is_on_disk(tmp_path: Path) -> None:
    store = RepoStore(tmp_path, "kernel", "acme/relu")
    lock, answer = store.lock("work"), threading.Event()
    assert lock.acquire_at_once()

    def request(file: RepoFile) -> bytes:
        answer.wait(60)
        return b"a"

    ahead = FilesAhead("acme/relu", [listed("a.py", b"a")], request, lock)
    ahead.drop()
    answer.set()
    assert not ahead.take()
    assert store.lock("work").acquire_at_once()
    assert not (store.folder / "blobs").exists()
