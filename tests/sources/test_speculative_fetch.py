"""Which files are requested before their build is chosen, and how they are handed over."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kernels.cache.repo_store import RepoStore
from kernels.models.snapshot import RepoFile
from kernels.sources import speculative_fetch
from kernels.sources.speculative_fetch import (
    MAX_BYTES,
    MAX_FILES,
    MAX_LARGE,
    SpeculativeFetch,
    large_files,
    small_files,
)

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
    store = RepoStore(tmp_path, "acme/relu")
    contents = {listed("a.py", b"a"): b"a", listed("b.py", b"b"): b"b"}
    lock = store.lock("work")
    assert lock.try_acquire()
    ahead = SpeculativeFetch("acme/relu", list(contents), contents.__getitem__, lock)
    ahead.begin()
    assert ahead.take()
    ahead.drop()  # too late
    assert not store.lock("work").try_acquire()
    assert ahead.among(contents) == set(contents)
    ahead.put_into(store, COMMIT, contents)
    ahead.end()
    assert store.missing(COMMIT, contents) == []
    assert store.lock("work").try_acquire()


def test_what_is_dropped_cannot_be_taken_and_nothing_of_it_is_on_disk(tmp_path: Path) -> None:
    store = RepoStore(tmp_path, "acme/relu")
    lock, answer = store.lock("work"), threading.Event()
    assert lock.try_acquire()

    def request(file: RepoFile) -> bytes:
        answer.wait(60)
        return b"a"

    ahead = SpeculativeFetch("acme/relu", [listed("a.py", b"a")], request, lock)
    ahead.begin()
    ahead.drop()
    answer.set()
    assert not ahead.take()
    assert store.lock("work").try_acquire()
    assert not (store.folder / "blobs").exists()


def test_what_was_not_begun_is_not_waited_for(tmp_path: Path) -> None:
    store, file = RepoStore(tmp_path, "acme/relu"), listed("a.py", b"a")
    lock = store.lock("work")
    assert lock.try_acquire()
    ahead = SpeculativeFetch("acme/relu", [file], lambda file: b"a", lock)
    assert ahead.take()
    ahead.begin()  # too late
    assert ahead.among([file]) == set()
    ahead.put_into(store, COMMIT, [file])
    ahead.end()
    assert store.missing(COMMIT, [file]) == [file]
    assert store.lock("work").try_acquire()


def test_no_more_large_files_than_bounded_wait_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculative_fetch, "_waiting", threading.Semaphore(5))
    sent: list[int] = []

    def builds() -> list[SpeculativeFetch]:
        made = []
        for number in range(3):
            lock = RepoStore(tmp_path, "acme/relu").lock(f"work{number}")
            assert lock.try_acquire()
            large = large_files([of_size(each, 2**30) for each in range(100)])
            ahead = SpeculativeFetch(
                "acme/relu", [], lambda file: b"", lock, large=large, send=lambda files: sent.append(len(files))
            )
            ahead.begin()
            made.append(ahead)
        return made

    for _ in range(2):
        for each in builds():
            each.drop()
    assert sent == [MAX_LARGE, 5 - MAX_LARGE] * 2
