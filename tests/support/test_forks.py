"""A fork waits for what other threads must not be in the middle of."""

from __future__ import annotations

import os
import threading

import pytest

from kernels.support.forks import no_fork_during

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def test_a_fork_waits_for_a_function_that_must_not_be_in_the_middle() -> None:
    begun, go_on, done = threading.Event(), threading.Event(), []

    @no_fork_during
    def connect() -> None:
        begun.set()
        go_on.wait(10)
        done.append(True)

    thread = threading.Thread(target=connect)
    thread.start()
    begun.wait()
    threading.Timer(0.05, go_on.set).start()
    child = os.fork()
    if not child:
        os._exit(0 if done else 1)
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
