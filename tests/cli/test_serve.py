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
from typing import Any

import pytest
from hub import make_repo

from kernels.cli.serve import _count_repositories
from kernels.server import HubServer

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
    process = start(str(tmp_path), "--port", "0", "--trusted", "acme")
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


def until_it_serves(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    lines = []
    while not lines or not lines[-1].startswith("Press Ctrl-C"):
        lines.append(process.stdout.readline())
        assert lines[-1], lines
    return "".join(lines)


def test_what_is_probably_not_meant_is_said_at_the_start(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    make_repo(tmp_path, "acme/relu")
    for folder in ("acme/relu/my branch", "acme/bad name", "two words", "acme/relu/.git", ".cache"):
        (tmp_path / folder / "build").mkdir(parents=True)
    said = until_it_serves(start(str(tmp_path), "--port", "0", "--trusted", "acem", "--trusted", "acme"))
    assert "Note: --trusted acem: there is no such publisher. Did you mean 'acme'?\n" in said
    assert (
        "Note: not served, because no publisher, repository or branch can have this name: "
        "'acme/bad name', 'acme/relu/my branch', 'two words'\n"
    ) in said
    assert said.count("Note:") == 2


@pytest.mark.parametrize(("token", "says"), [("", "Nothing needs a token."), ("t", "need the token.")])
def test_a_hub_on_all_addresses_prints_one_that_others_can_use(
    tmp_path: Path,
    start: Callable[..., subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
    token: str,
    says: str,
) -> None:
    make_repo(tmp_path, "acme/relu")
    monkeypatch.setenv("KERNELS_HUB_TOKEN", token)
    said = until_it_serves(start(str(tmp_path), "--port", "0", "--host", "0.0.0.0"))
    url = said.splitlines()[0].split()[-1]
    assert "0.0.0.0" not in said
    assert f"KERNELS_HUB={url}\n" in said
    assert f"Note: every machine that reaches {url} can read the repositories." in said
    assert says in said
    with urllib.request.urlopen(f"{url}/api/kernels/acme/relu/refs", timeout=30) as answer:
        assert [branch["name"] for branch in json.load(answer)["branches"]] == ["v1"]


def test_clients_are_told_of_the_public_url(tmp_path: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start(str(tmp_path), "--port", "0", "--public-url", "https://hub.test/kernels/")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    assert lines[0].split()[-1].startswith("http://127.0.0.1:")
    assert [line.strip().partition("=")[2] for line in lines[1:]] == ["https://hub.test/kernels"] * 2


@pytest.mark.parametrize(
    ("root", "options", "says"),
    [
        (".", ["--public-url", "hub.test"], "`public_url`"),
        ("absent", [], "absent"),
        (".", ["--port", "{taken}"], "Choose another port; 0 takes a free one."),
    ],
    ids=["public url", "root", "port"],
)
def test_what_cannot_be_served_is_one_line(
    kernels: Callable[..., Any], tmp_path: Path, root: str, options: list[str], says: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = kernels("serve", tmp_path / root, "--port", 0, *(option.format(taken=port) for option in options))
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert says in result.stderr


@pytest.mark.parametrize(
    ("file", "writable", "says"),
    [
        (
            "my-kernel/build/torch-cpu/metadata.json",
            False,
            "none; the layout is ROOT/<org>/<name>/<version>/build/<variant>",
        ),
        ("build.toml", False, "none; this is the folder of a single kernel, which `kernels upload` publishes"),
        ("README.md", True, "none yet"),
    ],
    ids=["another layout", "sources", "to publish to"],
)
def test_a_folder_without_repositories_is_said_to_have_none(
    tmp_path: Path, file: str, writable: bool, says: str
) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).touch()
    assert _count_repositories(HubServer(tmp_path).catalog, writable) == says
