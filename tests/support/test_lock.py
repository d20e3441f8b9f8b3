"""One process at a time, also where a file system has no `flock`; that is made here by a `flock` that says so."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from kernels.errors import StoreError
from kernels.support import lock as lock_module
from kernels.support.lock import LockHeld, WorkLock, exclusively
from kernels.support.tasks import side_by_side


@pytest.fixture(params=["flock", "no flock"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A lock's file, with `flock` and without."""
    if request.param == "no flock":
        no_flock(monkeypatch)
    return tmp_path / "work.lock"


def no_flock(monkeypatch: pytest.MonkeyPatch, number: int = errno.ENOLCK) -> None:
    fcntl = pytest.importorskip("fcntl")

    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


def left_by_a_process(marker: Path, host: str = "") -> None:
    """Leave the marker of a process that was killed, on this machine or another."""
    code = "import os, socket, sys\n"
    if host:
        code += f"socket.gethostname = lambda: {host!r}\n"
    code += "from filelock import SoftFileLease\n"
    code += (
        f"held = SoftFileLease(sys.argv[1], lease_duration={lock_module._LEASE_SECONDS})\nheld.acquire()\nos._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(marker)], check=True)
    assert marker.is_file()


def test_one_holds_it_and_the_next_has_it_after(path: Path, recwarn: pytest.WarningsRecorder) -> None:
    held, waiting = WorkLock(path, seconds=60), WorkLock(path, seconds=60)
    held.acquire()
    with pytest.raises(LockHeld):
        waiting.acquire(seconds=0)
    held.release()
    waiting.acquire(seconds=0)
    waiting.release()
    waiting.release()
    assert not recwarn.list


def test_it_is_that_of_filelock(tmp_path: Path) -> None:
    lock, other = WorkLock(tmp_path / "work.lock", seconds=60), FileLock(tmp_path / "work.lock")
    lock.acquire()
    with pytest.raises(Timeout):
        other.acquire(timeout=0)
    lock.release()
    with other:
        assert not lock.try_acquire()
    assert lock.try_acquire()
    lock.release()


def test_a_lock_that_another_holds_for_too_long_is_an_error(path: Path) -> None:
    held, waiting = exclusively(WorkLock(path)), exclusively(WorkLock(path, seconds=0.1))
    with held, pytest.raises(StoreError, match=r"Another process holds the lock .*work\.lock.*delete it"):
        waiting.__enter__()


def test_a_second_attempt_to_hold_it_does_not_release_it(path: Path) -> None:
    lock = WorkLock(path, seconds=60)
    lock.acquire()
    assert not lock.try_acquire()
    assert not WorkLock(path, seconds=60).try_acquire()
    lock.release()
    assert lock.try_acquire()
    lock.release()


def test_a_link_in_the_place_of_its_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "work.lock").symlink_to(tmp_path / "elsewhere")
    assert not WorkLock(tmp_path / "work.lock", seconds=60).try_acquire()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_neither_has_nor_keeps_nor_releases_what_its_parent_holds(tmp_path: Path) -> None:
    lock, other = (WorkLock(tmp_path / "work.lock", seconds=60) for _ in range(2))
    lock.acquire()
    released, release = os.pipe()
    tried, try_ = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(release)
        lock.release()
        before = other.try_acquire()
        os.write(try_, b"x")
        os.read(released, 1)  # until the parent has released it
        os._exit(0 if (before, other.try_acquire()) == (False, True) else 1)
    os.read(tried, 1)
    assert not other.try_acquire()
    lock.release()
    for number in (release, released, tried, try_):
        os.close(number)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_threads_take_turns(path: Path) -> None:
    at_work, most = [0], [0]

    def work() -> None:
        with exclusively(WorkLock(path)):
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
        with exclusively(WorkLock(path)):
            assert (tmp_path / "work.lock.held").is_file()
    assert not (tmp_path / "work.lock.held").exists()


def test_the_marker_of_a_process_that_was_killed_holds_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_flock(monkeypatch)
    left_by_a_process(tmp_path / "work.lock.held")
    WorkLock(tmp_path / "work.lock").acquire(seconds=1)


def test_the_marker_of_another_machines_process_expires(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_flock(monkeypatch)
    monkeypatch.setattr(lock_module, "_LEASE_SECONDS", 0.5)
    left_by_a_process(tmp_path / "work.lock.held", host="elsewhere")
    with pytest.raises(LockHeld):
        WorkLock(tmp_path / "work.lock").acquire(seconds=0)
    with exclusively(WorkLock(tmp_path / "work.lock", seconds=10)):
        pass
    assert not (tmp_path / "work.lock.held").exists()


def test_a_holder_keeps_the_lock_for_as_long_as_it_lives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_flock(monkeypatch)
    monkeypatch.setattr(lock_module, "_LEASE_SECONDS", 0.3)
    with exclusively(WorkLock(tmp_path / "work.lock")), pytest.raises(LockHeld):
        WorkLock(tmp_path / "work.lock").acquire(seconds=1)


def test_waiting_ends_when_the_work_is_cancelled(path: Path) -> None:
    waiting = threading.Event()

    def work(first: bool) -> None:
        if first:
            waiting.wait(10)
            raise ZeroDivisionError
        waiting.set()
        WorkLock(path).acquire()

    with exclusively(WorkLock(path)), pytest.raises(ZeroDivisionError):
        side_by_side(work, [True, False], at_once=2, name="test")
    deadline = time.monotonic() + 10
    while any(thread.name.startswith("kernels-test") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_folder_that_cannot_be_written_is_an_error_that_says_so(path: Path) -> None:
    path.write_text("a file where a folder is needed")
    with pytest.raises(StoreError, match="KERNELS_CACHE"), exclusively(WorkLock(path / "work.lock")):
        pass


def test_a_disk_that_is_full_leaves_no_lock_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_flock(monkeypatch)

    def write(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(StoreError, match="Free some space"), exclusively(WorkLock(tmp_path / "work.lock")):
        pass
    assert not (tmp_path / "work.lock.held").exists()


@pytest.mark.parametrize("name", ["ENOLCK", "ENOSYS", "ENOTSUP", "EOPNOTSUPP"])
def test_each_error_that_says_that_there_is_no_flock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    no_flock(monkeypatch, getattr(errno, name))
    with exclusively(WorkLock(tmp_path / "work.lock")):
        assert (tmp_path / "work.lock.held").is_file()


def test_another_error_of_flock_is_raised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_flock(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        WorkLock(tmp_path / "work.lock").acquire()
