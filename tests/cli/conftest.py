"""The command line, run in this process or as one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kernels.cli import app

__all__ = ["kernels", "kernels_process", "said_of_bad_input"]


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


@pytest.fixture
def said_of_bad_input(
    kernels: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Run a command in a folder with a file, `kept/notes`, and return the one line in which it refuses its input."""

    def run(*arguments: object) -> str:
        folder = tmp_path / "work"
        (folder / "kept").mkdir(parents=True)
        (folder / "kept" / "notes").write_text("mine")
        monkeypatch.chdir(folder)
        done = kernels(*arguments)
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr.startswith("Error: ")
        assert done.stderr.count("\n") == 1
        assert sorted(path.name for path in folder.rglob("*")) == ["kept", "notes"]
        return str(done.stderr)

    return run
