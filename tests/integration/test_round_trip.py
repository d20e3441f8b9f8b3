"""From nothing to a kernel in another process: init, build, check, test, upload, get_kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from writable_hub import TOKEN, WritableHub

pytest.importorskip("torch")

#: What a user of the published kernel runs, in a process that knows nothing of its sources.
USE = """
from kernels import get_kernel

kernel = get_kernel("acme/first-kernel", version=1, trust_remote_code=["acme/first-kernel"])
print(kernel.__name__, sorted(name for name in vars(kernel) if not name.startswith("_")))
"""


def run(*command: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize(
    "kind", [pytest.param(["--noarch"], id="noarch"), pytest.param([], id="compiled", marks=pytest.mark.compiler)]
)
def test_a_new_kernel_is_built_checked_tested_published_and_loaded_elsewhere(
    kind: list[str], tmp_path: Path, isolated_env: Path, quick_retries: list[float], new_process: Callable[[], None]
) -> None:
    with WritableHub(tmp_path / "hub") as hub:
        environment = {"KERNELS_HUB": hub.url, "KERNELS_HUB_TOKEN": TOKEN}

        def kernels(*arguments: str) -> str:
            return run("-m", "kernels", *arguments, folder=tmp_path, environment=environment)

        kernels("init", "first-kernel", "--backends", "cpu", "--repo-id", "acme/first-kernel", *kind)
        assert "built" in kernels("build", "first-kernel")
        assert "nothing failed" in kernels("check", "first-kernel")
        assert "passed" in kernels("test", "first-kernel")
        assert "Published acme/first-kernel, branch v1" in kernels("upload", "first-kernel")
        printed = run("-c", USE, folder=tmp_path / "hub", environment=environment)
        assert printed.startswith("_first_kernel_cpu_")
        assert "acme/first-kernel" in kernels("explain", "acme/first-kernel", "--version", "1")
