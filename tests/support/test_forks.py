"""A fork during a first call leaves no process that hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hub import TestHub

from kernels.support.forks import no_fork_during

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

PROGRAM = """
import os, signal, sys, threading, time
from kernels import get_kernel

thread = threading.Thread(target=get_kernel, args=("acme/relu",), kwargs={"version": 1})
thread.start()
while sys.argv[1] not in sys.modules:  # an import of the first call, which has just begun
    time.sleep(0.0005)
child = os.fork()
if not child:
    signal.alarm(20)
    get_kernel("acme/relu", version=1)
    os._exit(0)
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("module", ["kernels.operations.load", "kernels.sources.hub_client"])
def test_a_fork_while_another_thread_imports_for_its_first_call_gets_the_kernel(
    hub: TestHub, tmp_path: Path, module: str
) -> None:
    hub.make_repo("acme/relu")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    command = [sys.executable, str(script), module]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ.copy(), timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


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
