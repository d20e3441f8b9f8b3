"""Files are hashed on all cores, and by the calling thread where another one would be in its way."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from kernels.support import hashing
from kernels.support.hashing import feed_file, git_blob_hasher, on_every_core


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "_cores", lambda: 4)


def threads_of(sizes: list[int]) -> list[str]:
    """The thread that works on each of files of these sizes."""
    return on_every_core(lambda _: threading.current_thread().name, sizes, lambda size: size)


def test_small_files_need_no_other_thread_however_many_there_are() -> None:
    assert set(threads_of([1000] * 10_000)) == {threading.current_thread().name}
    assert set(threads_of([60_000] * 10)) == {threading.current_thread().name}
    assert threads_of([]) == []
    assert threads_of([2**30]) == [threading.current_thread().name]


def test_small_files_beside_large_ones_are_one_piece_of_work() -> None:
    threads = threads_of([1000, 2**24] * 8 + [1000] * 1000)
    small = {name for name, size in zip(threads, [1000, 2**24] * 8 + [1000] * 1000, strict=True) if size == 1000}
    assert len(small) == 1
    assert all(name.startswith("kernels-hash") for name in threads)


@pytest.mark.parametrize(
    "sizes", [[1], [1, 2**21, 5, 2**20, 2**19, 3, 2**19, 2**19], [2**20] * 5, [20_000] * 300, [0, 2**40, 2**20]]
)
def test_every_file_has_its_own_result(sizes: list[int]) -> None:
    assert on_every_core(lambda item: item, list(enumerate(sizes)), lambda item: item[1]) == list(enumerate(sizes))


def test_the_error_of_a_file_is_raised() -> None:
    def work(size: int) -> None:
        if size == 2**22:
            raise OSError("no")

    with pytest.raises(OSError, match="no"):
        on_every_core(work, [2**21, 2**22, 2**21], lambda size: size)


@pytest.mark.parametrize("size", [0, 1, 2**20 - 1, 2**20, 2**20 + 1, 3 * 2**20])
def test_a_file_of_any_size_is_hashed_whole(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    path = tmp_path / "file"
    path.write_bytes(content)
    assert feed_file(path, lambda _: hashlib.sha256()).digest() == hashlib.sha256(content).digest()


def test_a_file_that_grew_is_not_what_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")

    def start(size: int) -> hashing._Hash:
        with path.open("ab") as file:
            file.write(b" and after")
        return git_blob_hasher(size)

    before = git_blob_hasher(6)
    before.update(b"before")
    assert feed_file(path, start).digest() != before.digest()
