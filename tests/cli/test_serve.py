"""`kernels serve` prints where it is and how to use it, and ends cleanly when told to."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub import make_repo

_CODE = "import typer; from kernels.cli.serve import serve; typer.run(serve)"


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-u", "-c", _CODE, *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_a_signal_and_exits_with_zero(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]], number: signal.Signals
) -> None:
    make_repo(tmp_path, "acme/relu")
    process = start(str(tmp_path), "--port", "0", "--trusted", "acme", "--trusted", "other")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(4)]
    url = lines[0].split()[-1]
    assert f"KERNELS_HUB={url}" in lines[1]
    assert f"HF_ENDPOINT={url}" in lines[2]
    with urllib.request.urlopen(f"{url}/api/organizations/acme/overview", timeout=30) as answer:
        assert json.load(answer)["trustedKernelPublisher"] is True
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "Stopped.\n")


def test_a_root_that_is_no_folder_is_refused(tmp_path: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start(str(tmp_path / "absent"), "--port", "0")
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "absent" in output
