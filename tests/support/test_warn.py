"""Warnings in the log: each message once."""

from __future__ import annotations

import subprocess
import sys

from logged import logged

from kernels.support.logs import logger, warn_once

LOG = logger("kernels.example")


def test_a_warning_is_logged_once() -> None:
    with logged() as records:
        for _ in range(3):
            warn_once(LOG, "one")
        warn_once(LOG, "another")
        warn_once(LOG, "one")
    assert [each.getMessage() for each in records] == ["one", "another"]
    assert {(each.levelname, each.name, each.pathname) for each in records} == {("WARNING", LOG.name, __file__)}


def test_a_program_that_configured_nothing_sees_warnings_on_standard_error() -> None:
    code = (
        "from kernels.support import logs\n"
        "log = logs.logger('kernels.example')\n"
        "log.info('unseen')\n"
        "for _ in range(2): logs.warn_once(log, 'seen')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "seen\n")
