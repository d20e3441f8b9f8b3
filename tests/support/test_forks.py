"""A forked process waits for no lock of a thread that it does not have."""

from __future__ import annotations

import os
import threading

import pytest

from kernels.support.forks import ForkLock, after_fork

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


def test_a_lock_that_another_thread_holds_is_free_in_a_fork() -> None:
    lock, held, let_go = ForkLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            let_go.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    child = os.fork()
    if not child:
        os._exit(0 if lock.acquire(timeout=0) else 1)
    assert not lock.acquire(timeout=0)
    let_go.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_fork_in_the_middle_of_a_block_ends_the_block() -> None:
    lock = ForkLock()
    with lock:
        child = os.fork()
    if not child:
        with lock:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_function_is_called_in_each_fork() -> None:
    called = []
    after_fork(lambda: called.append(True))
    child = os.fork()
    if not child:
        os._exit(0 if called else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not called
