"""`kernels serve` prints where it is and how to use it, and ends cleanly when told to."""

from __future__ import annotations

import json
import signal
import socket
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
    lines = [process.stdout.readline() for _ in range(5)]
    url = lines[0].split()[-1]
    assert f"KERNELS_HUB={url}" in lines[1]
    assert f"HF_ENDPOINT={url}" in lines[2]
    assert lines[3].split(":")[1].strip() == "1"
    with urllib.request.urlopen(f"{url}/api/organizations/acme/overview", timeout=30) as answer:
        assert json.load(answer)["trustedKernelPublisher"] is True
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "Stopped.\n")


def test_clients_are_told_of_the_public_url(tmp_path: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start(str(tmp_path), "--port", "0", "--public-url", "https://hub.test/kernels/")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    assert lines[0].split()[-1].startswith("http://127.0.0.1:")
    assert [line.strip().partition("=")[2] for line in lines[1:]] == ["https://hub.test/kernels"] * 2


def test_a_public_url_that_is_none_is_refused(tmp_path: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start(str(tmp_path), "--port", "0", "--public-url", "hub.test")
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "`public_url` is 'hub.test'" in output


def test_a_root_that_is_no_folder_is_refused(tmp_path: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start(str(tmp_path / "absent"), "--port", "0")
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "absent" in output


def test_a_port_that_is_taken_names_the_way_to_a_free_one(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = start(str(tmp_path), "--port", str(taken.getsockname()[1]))
        output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "Port 0 takes a free one" in output


@pytest.mark.parametrize(
    ("arguments", "file", "said"),
    [
        (
            [],
            "my-kernel/build/torch-cpu/metadata.json",
            "none; the layout is ROOT/<org>/<name>/<version>/build/<variant>",
        ),
        ([], "build.toml", "none; this is the folder of a single kernel, which `kernels upload` publishes"),
        (["--writable", "--token", "secret"], None, "none yet"),
    ],
    ids=["another-layout", "sources", "to-publish-to"],
)
def test_a_folder_without_repositories_is_said_to_have_none(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]], arguments: list[str], file: str | None, said: str
) -> None:
    root = tmp_path / "root"
    if file is not None:
        (root / file).parent.mkdir(parents=True)
        (root / file).touch()
    process = start(str(root), "--port", "0", *arguments)
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    found = next(line for line in lines if "repositories with builds:" in line)
    assert found.partition(":")[2].strip() == said
    assert root.is_dir()
