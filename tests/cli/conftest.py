"""The command line, run in this process or as one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from kernels.cli import app

__all__ = ["kernels", "kernels_process"]


@pytest.fixture
def kernels() -> Callable[..., Any]:
    """Run a command in this process; the result has `exit_code`, `stdout` and `stderr`."""

    def run(*arguments: object) -> Any:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="kernels")

    return run


@pytest.fixture
def kernels_process() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command in a process of its own, where it starts from nothing; `env` adds to the environment."""

    def run(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kernels", *map(str, arguments)]
        return subprocess.run(
            command, env=os.environ | env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
        )

    return run
