"""Ctrl-C during a download: it ends at once, prints no traceback of a thread, and keeps what has arrived."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hub import TestHub

from kernels import install_kernel

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")

#: Every file of more than a kilobyte is a large one, which is continued.
_LARGE = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background has Ctrl-C ignored
from kernels.sources import download
download.IN_MEMORY = 1000
"""
_INSTALL = _LARGE + "from kernels import install_kernel; install_kernel(sys.argv[1], version=1)"
_COMMAND = _LARGE + "from kernels.cli import main; main()"

DATA = os.urandom(3_000_000)
ARRIVED = 2_000_000

#: Much more than the second that it takes, for a busy machine, and much less than the wait for the next byte.
SECONDS = 60.0
_NEXT_BYTE_SECONDS = "600"


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def run(code: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, "HF_HUB_DOWNLOAD_TIMEOUT": _NEXT_BYTE_SECONDS},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def relu(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> TestHub:
    """A kernel with a large file of which two thirds arrive."""
    from kernels.sources import download

    monkeypatch.setattr(download, "IN_MEMORY", 1000)
    hub.make_repo("acme/relu", variants={"torch-cpu": {"data.bin": DATA}})
    hub.stall("relu/.*data.bin", keep=ARRIVED)
    return hub


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def partial(cache: Path, size: int = ARRIVED) -> list[Path]:
    """The partial files that have grown so far."""
    found = []
    for path in cache.rglob("*.incomplete"):
        with suppress(OSError):  # other temporary files come and go
            found += [path] * (path.stat().st_size >= size)
    return found


def interrupted(process: subprocess.Popen[str], number: signal.Signals = signal.SIGINT) -> tuple[int, str]:
    """The status and the errors of a process that a signal ends in time."""
    begun = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=240)
    assert time.monotonic() - begun < SECONDS
    return process.returncode, errors


def continues(hub: TestHub, cache: Path) -> None:
    """The next call asks for the rest alone, and leaves nothing else behind."""
    hub.heal()
    hub.requests.clear()
    folder = install_kernel("acme/relu", version=1)
    assert (folder / "data.bin").read_bytes() == DATA
    asked = [each.headers.get("range") for each in hub.requests if "data.bin" in each.path]
    assert asked == [f"bytes={ARRIVED}-"] * len(asked)
    assert asked
    assert not list(cache.rglob("*.incomplete"))
    assert not list(cache.rglob("*.held"))


def test_a_call_ends_with_keyboard_interrupt_and_the_next_one_continues(
    relu: TestHub, start: Callable[..., subprocess.Popen[str]], isolated_env: Path
) -> None:
    process = start(_INSTALL, "acme/relu")
    wait_until(lambda: bool(partial(isolated_env)))
    status, errors = interrupted(process)
    assert status == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert errors.count("Traceback (most recent call last)") == 1
    assert "Exception in thread" not in errors
    [kept] = isolated_env.rglob("*.incomplete")
    assert kept.read_bytes() == DATA[:ARRIVED]
    assert kept.name.endswith(".left.incomplete")
    continues(relu, isolated_env)


def test_a_command_ends_with_status_130_and_one_line(
    relu: TestHub, start: Callable[..., subprocess.Popen[str]], isolated_env: Path
) -> None:
    process = start(_COMMAND, "download", "acme/relu", "--version", "1")
    wait_until(lambda: bool(partial(isolated_env)))
    assert interrupted(process) == (130, "Interrupted.\n")
    continues(relu, isolated_env)


def test_eight_kernels_at_once_end_together(
    hub: TestHub, start: Callable[..., subprocess.Popen[str]], isolated_env: Path
) -> None:
    names = [f"acme/kernel{number}" for number in range(8)]
    for name in names:
        hub.make_repo(name, variants={"torch-cpu": {"data.bin": DATA, "second.bin": name.encode() + DATA}})
    hub.stall(r"kernel\d/.*\.bin", keep=ARRIVED)
    process = start(_COMMAND, "download", *names, "--version", "1")
    wait_until(lambda: len(partial(isolated_env)) == 16)
    assert interrupted(process) == (130, "Interrupted.\n")
    assert len(list(isolated_env.rglob("*.left.incomplete"))) == 16


def test_a_process_that_waits_for_another_ones_download_ends(
    relu: TestHub, start: Callable[..., subprocess.Popen[str]], isolated_env: Path
) -> None:
    first = start(_INSTALL, "acme/relu")
    wait_until(lambda: bool(partial(isolated_env)))
    second = start("print('here', flush=True)\n" + _COMMAND, "download", "acme/relu", "--version", "1")
    assert second.stdout is not None
    assert second.stdout.readline() == "here\n"
    listed = relu.count("/refs$")
    wait_until(lambda: relu.count("/refs$") > listed)
    time.sleep(0.5)
    assert second.poll() is None
    assert interrupted(second) == (130, "Interrupted.\n")
    assert first.poll() is None
    interrupted(first)
    continues(relu, isolated_env)


def test_a_wait_between_tries_ends(
    hub: TestHub, start: Callable[..., subprocess.Popen[str]], isolated_env: Path
) -> None:
    hub.make_repo("acme/relu")
    hub.fail("layers.py", status=429, headers={"Retry-After": "60"})
    process = start(_COMMAND, "download", "acme/relu", "--version", "1")
    wait_until(lambda: hub.count("layers.py") > 0)
    time.sleep(0.2)
    status, errors = interrupted(process)
    assert (status, errors.splitlines()[-1]) == (130, "Interrupted.")
    assert "Traceback" not in errors


_KERNELIZE = (
    _LARGE
    + """
from torch import nn
from kernels import LayerRepository, Mode, kernelize, use_kernel_forward_from_hub, use_kernel_mapping
@use_kernel_forward_from_hub("SiluAndMul")
class SiluAndMul(nn.Module):
    def forward(self, x):
        return x
model = nn.Sequential(SiluAndMul())
mapping = {"SiluAndMul": {"cpu": LayerRepository(repo_id="acme/relu", layer_name="SiluAndMul", version=1)}}
before = model[0].forward
try:
    with use_kernel_mapping(mapping):
        kernelize(model, mode=Mode.INFERENCE, device="cpu")
except KeyboardInterrupt:
    assert model[0].forward == before
    sys.exit("interrupted")
"""
)


def test_kernelize_ends_and_changes_nothing(
    relu: TestHub, start: Callable[..., subprocess.Popen[str]], isolated_env: Path
) -> None:
    process = start(_KERNELIZE)
    wait_until(lambda: bool(partial(isolated_env)))
    assert interrupted(process) == (1, "interrupted\n")
    continues(relu, isolated_env)


def test_after_a_termination_the_next_call_continues(
    relu: TestHub, start: Callable[..., subprocess.Popen[str]], isolated_env: Path
) -> None:
    process = start(_INSTALL, "acme/relu")
    wait_until(lambda: bool(partial(isolated_env)))
    assert interrupted(process, signal.SIGTERM) == (-signal.SIGTERM, "")
    [left] = partial(isolated_env)
    a_minute_ago = time.time() - 61
    os.utime(left, (a_minute_ago, a_minute_ago))
    relu.heal()
    relu.requests.clear()
    assert (install_kernel("acme/relu", version=1) / "data.bin").read_bytes() == DATA
    ranges = {each.headers.get("range") for each in relu.requests if "data.bin" in each.path}
    assert ranges == {f"bytes={ARRIVED}-"}


@pytest.mark.parametrize("other", ["writer", "name"])
def test_a_partial_file_that_is_written_or_known_elsewhere_is_left_alone(
    relu: TestHub, isolated_env: Path, other: str
) -> None:
    relu.heal()
    commit = relu.catalog.commit("acme/relu")
    [listed] = [file for file in commit.files.values() if "data.bin" in file.path]
    blobs = isolated_env / "kernels--acme--relu" / "blobs"
    blobs.mkdir(parents=True)
    left = blobs / f"{listed.oid}.01234567{'' if other == 'writer' else '.left'}.incomplete"
    left.write_bytes(DATA[:ARRIVED])
    if other == "name":
        os.link(left, isolated_env / "another name")
    identity = left.stat().st_ino
    folder = install_kernel("acme/relu", version=1)
    assert (folder / "data.bin").read_bytes() == DATA
    assert (folder / "data.bin").stat().st_ino != identity
    assert left.read_bytes() == DATA[:ARRIVED]
    assert not [each for each in relu.requests if "range" in each.headers]
