"""A build that is downloaded before it is chosen waits at a gate, and nothing of it is written before."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kernels.errors import StoreError
from kernels.models.snapshot import RepoFile
from kernels.sources import download
from kernels.sources.ahead import Ahead, worth_requesting
from kernels.sources.download import Gate
from kernels.sources.progress import report, watched
from kernels.support.lock import WorkLock
from kernels.support.tasks import Cancelled

FILES = [RepoFile("a.py", 1, "1" * 40)]
MIB = 2**20


@pytest.mark.parametrize(
    ("sizes", "chosen"),
    [
        ([], []),
        ([1, 2, 3], [1, 2, 3]),
        ([5 * MIB, 10, 7 * MIB], [7 * MIB, 5 * MIB, 10]),
        ([each * MIB for each in range(1, 8)], [7 * MIB, 6 * MIB, 5 * MIB, 4 * MIB]),
        ([400_000] * 12, [400_000] * 10),
        (range(100), list(range(64))),
    ],
    ids=["none", "small", "large first", "four large", "4 MiB of small", "64 small"],
)
def test_the_files_that_are_requested_before_their_build_is_chosen(sizes: list[int], chosen: list[int]) -> None:
    files = [RepoFile(f"{number}.so", size, f"{number:040x}") for number, size in enumerate(sizes)]
    assert [file.size for file in worth_requesting(files)] == chosen


def test_files_of_one_content_are_taken_together() -> None:
    files = [RepoFile(name, 3, "1" * 40) for name in ("a.py", "b.py")]
    assert worth_requesting(files) == files


def test_a_gate_is_claimed_or_closed_once() -> None:
    closed: list[str] = []
    gate = Gate(lambda: closed.append("closed"))
    assert gate.claim()
    gate.close()
    gate.open()
    gate.wait()
    assert closed == []
    other = Gate(lambda: closed.append("closed"))
    other.close()
    other.close()
    assert not other.claim()
    with pytest.raises(Cancelled):
        other.wait()
    assert closed == ["closed"]


def test_who_waits_too_long_closes_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "WAIT_SECONDS", 0.0)
    closed: list[str] = []
    with pytest.raises(Cancelled):
        Gate(lambda: closed.append("closed")).wait()
    assert closed == ["closed"]


class Work:
    """A download that waits at the gate, then writes; or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.begun, self.ended, self.written, self.error = threading.Event(), threading.Event(), False, error

    def __call__(self, gate: Gate) -> None:
        self.begun.set()
        try:
            if self.error is not None:
                raise self.error
            gate.wait()
            self.written = True
        finally:
            self.ended.set()


def test_what_is_dropped_is_not_written_and_its_lock_is_free(tmp_path: Path) -> None:
    lock, work = WorkLock(tmp_path / "build.lock", seconds=1), Work()
    lock.acquire()
    ahead = Ahead("acme/relu", FILES, lock, work)
    assert work.begun.wait(20)
    ahead.drop()
    assert work.ended.wait(20)
    assert not work.written
    assert not ahead.take()
    assert WorkLock(tmp_path / "build.lock", seconds=1).try_acquire()


def test_what_is_taken_is_written_and_keeps_its_lock_until_the_end(tmp_path: Path) -> None:
    lock, work = WorkLock(tmp_path / "build.lock", seconds=1), Work()
    lock.acquire()
    ahead = Ahead("acme/relu", FILES, lock, work)
    assert ahead.take()
    ahead.drop()
    assert not work.written
    ahead.finish()
    assert work.written
    assert not WorkLock(tmp_path / "build.lock", seconds=1).try_acquire()
    ahead.end()
    assert WorkLock(tmp_path / "build.lock", seconds=1).try_acquire()


def test_the_error_of_a_download_is_that_of_who_takes_it(tmp_path: Path) -> None:
    lock, work = WorkLock(tmp_path / "build.lock", seconds=1), Work(StoreError("no room"))
    lock.acquire()
    ahead = Ahead("acme/relu", FILES, lock, work)
    assert ahead.take()
    with pytest.raises(StoreError, match="no room"):
        ahead.finish()
    ahead.end()


def test_what_arrives_of_a_download_that_is_taken_is_reported_to_who_takes_it(tmp_path: Path) -> None:
    lock, begun = WorkLock(tmp_path / "build.lock", seconds=1), threading.Event()
    lock.acquire()

    def download(gate: Gate) -> None:
        report(0, 30)
        begun.set()
        gate.wait()
        report(0, 40)

    ahead = Ahead("acme/relu", [RepoFile("a.so", 100, "1" * 40)], lock, download)
    assert begun.wait(20)
    assert ahead.take()
    seen: list[tuple[int, int]] = []
    with watched(lambda files, size: seen.append((files, size))):
        ahead.finish()
    ahead.end()
    assert seen == [(0, 40), (1, 60)]
