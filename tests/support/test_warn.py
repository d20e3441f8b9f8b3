"""Warnings in the log: once for each line that called this package."""

from __future__ import annotations

import subprocess
import sys

from hub import TestHub
from logged import logged

from kernels import get_kernel, has_kernel
from kernels.api import KernelRequest, get_kernels
from kernels.support.logs import logger
from kernels.support.warn import warn_once

LOG = logger("kernels.example")


def test_a_warning_is_logged_once_for_a_line() -> None:
    with logged() as records:
        for _ in range(3):
            warn_once(LOG, "one")
        warn_once(LOG, "another")
        warn_once(LOG, "one")
    assert [each.getMessage() for each in records] == ["one", "another", "one"]
    assert {(each.levelname, each.name, each.pathname) for each in records} == {("WARNING", LOG.name, __file__)}


def test_work_done_side_by_side_counts_for_the_line_that_called(hub: TestHub) -> None:
    for version in (1, 2):
        hub.make_repo("acme/base", version=version)
        hub.make_repo("acme/relu", version=version, depends=[("acme/base", 1)])
    with logged() as records:
        for _ in range(2):
            get_kernel("acme/relu", version=1)
        [*_] = get_kernels([KernelRequest("acme/gone"), KernelRequest("acme/relu"), KernelRequest("acme/relu")])
        has_kernel("acme/base")
    assert [each.getMessage().partition(" is used")[0] for each in records] == [
        "acme/relu version 1",
        "acme/base version 1",
        "acme/relu: version 2",
        "acme/base version 1",
        "acme/base: version 2",
    ]


def test_a_program_that_configured_nothing_sees_warnings_on_standard_error() -> None:
    code = (
        "from kernels.support import logs, warn\n"
        "log = logs.logger('kernels.example')\n"
        "log.info('unseen')\n"
        "for _ in range(2): warn.warn_once(log, 'seen')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "seen\n")
