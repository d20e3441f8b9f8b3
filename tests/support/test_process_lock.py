"""One process at a time, also where a file system has no `flock`; that is made here by a `flock` that says so."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from kernels.errors import StoreError
from kernels.support import process_lock
from kernels.support.process_lock import WorkLock, exclusively, lock_at, without_flock
from kernels.support.warn import KernelsWarning

WITHOUT = {name: getattr(errno, name) for name in ("ENOLCK", "ENOSYS", "ENOTSUP", "EOPNOTSUPP")}


@pytest.fixture(params=[None, *WITHOUT], ids=lambda name: name or "flock")
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A lock's file, with `flock` and for each error that says there is none."""
    if request.param is not None:
        no_flock(monkeypatch, WITHOUT[request.param])
    return tmp_path / "work.lock"


def no_flock(monkeypatch: pytest.MonkeyPatch, number: int = errno.ENOLCK) -> None:
    fcntl = pytest.importorskip("fcntl")

    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


def gone() -> int:
    """The number of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_one_holds_it_and_the_next_has_it_after(path: Path, recwarn: pytest.WarningsRecorder) -> None:
    held, waiting = WorkLock(path, seconds=60), WorkLock(path, seconds=60)
    held.acquire()
    with pytest.raises(Timeout):
        waiting.acquire(timeout=0)
    held.release()
    waiting.acquire(timeout=0)
    waiting.release()
    waiting.release()
    assert not recwarn.list


def test_threads_take_turns(path: Path) -> None:
    at_work, most = [0], [0]

    def work() -> None:
        with exclusively(lock_at(path)):
            at_work[0] += 1
            most[0] = max(most[0], at_work[0])
            time.sleep(0.01)
            at_work[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (at_work, most) == ([0], [1])


def test_processes_that_differ_in_flock_do_not_mind_each_others_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "work.lock"
    with FileLock(path), monkeypatch.context() as here:  # as another client, or a machine where it is there
        no_flock(here)
        with exclusively(lock_at(path)):
            assert (tmp_path / "work.lock.held").is_file()
    assert not (tmp_path / "work.lock.held").exists()


@pytest.mark.parametrize("holder", ["gone", "an earlier process of this number"])
def test_a_holder_of_this_machine_that_is_gone_holds_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, holder: str, recwarn: pytest.WarningsRecorder
) -> None:
    no_flock(monkeypatch)
    pid = gone() if holder == "gone" else os.getpid()
    (tmp_path / "work.lock.held").write_text(f"{pid} {socket.gethostname()} 0123456789abcdef")
    with exclusively(lock_at(tmp_path / "work.lock")):
        pass
    assert not (tmp_path / "work.lock.held").exists()
    assert not recwarn.list


@pytest.mark.parametrize(
    "content", [b"1 elsewhere 0123456789abcdef", b"", b"\xff\x00", b"no number here", b"9" * 5000 + b" elsewhere x"]
)
def test_a_holder_that_cannot_be_asked_counts_as_gone_after_a_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes
) -> None:
    no_flock(monkeypatch)
    monkeypatch.setattr(process_lock, "_HOLDER_SECONDS", 0.05)
    monkeypatch.setattr(process_lock, "_POLL_SECONDS", 0.01)
    (tmp_path / "work.lock.held").write_bytes(content)
    held = pytest.warns(KernelsWarning, match=r"work\.lock\.held has been held")
    with held as said, exclusively(lock_at(tmp_path / "work.lock")):
        pass
    assert len(str(said[0].message)) < 1000
    if content.startswith(b"1 "):
        assert "process 1 on 'elsewhere'" in str(said[0].message)


def test_holders_that_take_turns_are_at_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_flock(monkeypatch)
    monkeypatch.setattr(process_lock, "_HOLDER_SECONDS", 10.0)
    now = [0.0]
    marker = tmp_path / "work.lock.held"
    marker.write_text("1 elsewhere 0")

    def pause(seconds: float) -> None:
        now[0] += 4
        marker.write_text(f"{now[0]:.0f} elsewhere 0")  # another each time

    clock = type("Clock", (), {"monotonic": staticmethod(lambda: now[0])})
    monkeypatch.setattr(process_lock, "time", clock)
    monkeypatch.setattr(process_lock, "pause", pause)
    with pytest.raises(Timeout):
        WorkLock(tmp_path / "work.lock", seconds=60).acquire()
    assert now[0] >= 60


def test_what_another_took_over_is_not_released(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_flock(monkeypatch)
    lock = lock_at(tmp_path / "work.lock")
    lock.acquire()
    (tmp_path / "work.lock.held").write_text("1 elsewhere 0")
    lock.release()
    assert (tmp_path / "work.lock.held").read_text() == "1 elsewhere 0"


def test_a_folder_that_cannot_be_written_is_an_error_that_says_so(path: Path) -> None:
    path.write_text("a file where a folder is needed")
    with pytest.raises(StoreError, match="KERNELS_CACHE"), exclusively(lock_at(path / "work.lock")):
        pass


def test_a_disk_that_is_full_leaves_no_lock_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_flock(monkeypatch)

    def write(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(StoreError, match="Free some space"), exclusively(lock_at(tmp_path / "work.lock")):
        pass
    assert not (tmp_path / "work.lock.held").exists()


def test_other_errors_say_nothing_of_flock() -> None:
    assert not without_flock(OSError(errno.ENOSPC, "full"))
    assert not without_flock(Timeout("work.lock"))
    assert not without_flock(ValueError())
