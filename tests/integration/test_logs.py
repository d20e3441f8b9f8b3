"""What is logged: at which level, by which logger, and without what is secret."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hub import TestHub
from logged import logged
from packaging.version import Version
from typer.testing import CliRunner

from kernels import get_kernel, get_local_kernel, has_kernel
from kernels.cli import app
from kernels.errors import HubUnavailable
from kernels.support.lock import WorkLock, exclusively

TOKEN = "hf_" + "t0ken" * 7


def said(records: list[logging.LogRecord], name: str) -> list[str]:
    return [each.getMessage() for each in records if each.name == name]


def test_a_load_says_which_build_of_which_commit_from_where_and_why(hub: TestHub) -> None:
    hub.make_repo(variants=["torch-cpu", "torch-cuda"])
    with logged(logging.INFO) as records:
        module = get_kernel("acme/relu", version=1)
    commit = f"commit {hub.commit()[:12]}"
    assert said(records, "kernels.operations.load") == [
        f"acme/relu version 1 is loaded: build torch-cpu (the best of 2 for cpu) of {commit} (its branch v1) from the "
        f"Hub at {hub.url}, as {module.__name__}"
    ]
    [fetched] = said(records, "kernels.sources.cached")
    assert fetched.startswith(f"acme/relu: build torch-cpu of {commit} was fetched from {hub.url}: ")
    assert {each.levelno for each in records} == {logging.INFO}
    with logged(logging.INFO) as records:
        get_kernel("acme/relu", version=1)
    assert not records  # nothing happened


def test_a_folder_of_the_user_is_named(hub: TestHub) -> None:
    folder = hub.make_repo()
    with logged(logging.INFO) as records:
        get_local_kernel(folder)
    [text] = said(records, "kernels.operations.load")
    assert text.startswith(f"{folder / 'build' / 'torch-cpu'} is loaded: build torch-cpu (the only one) from ")


def test_what_the_cache_had_and_who_was_asked_is_logged_for_debugging(
    hub: TestHub, new_process: Callable[[], None]
) -> None:
    hub.make_repo(variants=["torch-cpu", "torch-cuda"])
    with logged(logging.DEBUG) as records:
        get_kernel("acme/relu", version=1)
    requests = [text.partition(" in ")[0] for text in said(records, "kernels.sources.http")]
    assert sorted(requests) == sorted(f"GET {hub.url}{asked.path}: 200" for asked in hub.requests)
    assert "acme/relu version 1: build torch-cuda is rejected: for cuda, not cpu" in said(
        records, "kernels.resolver.plan"
    )
    new_process()
    hub.clear()
    with logged(logging.DEBUG) as records:
        get_kernel("acme/relu", version=1)
    commit = f"commit {hub.commit()[:12]}"
    texts = [*said(records, "kernels.sources.asked"), *said(records, "kernels.sources.cached")]
    assert f"acme/relu: the files of {commit} are known" in texts
    assert f"acme/relu: build torch-cpu of {commit} is in the cache" in texts
    assert said(records, "kernels.trust.publishers")[0].startswith("acme is a trusted publisher, as the Hub said ")


def test_neither_a_token_nor_a_signature_is_logged(hub: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELS_HUB_TOKEN", TOKEN)
    hub.make_repo()
    target = f"{hub.url}/kernels/acme/relu/resolve/{hub.commit()}/build/torch-cpu/__init__.py?X-Amz-Signature=s3cret"
    hub.fail("__init__", status=302, headers={"Location": target}, times=1)
    with logged(logging.DEBUG) as records:
        get_kernel("acme/relu", version=1)
    text = "\n".join(each.getMessage() for each in records)
    assert "__init__.py: 302, a redirect" in text
    assert not any(secret in text for secret in (TOKEN, "s3cret", "Signature", "recursive="))


@pytest.mark.parametrize(("header", "level"), [({}, logging.DEBUG), ({"Retry-After": "60"}, logging.WARNING)])
def test_a_retry_is_for_debugging_and_a_long_wait_for_a_person(
    hub: TestHub, header: dict[str, str], level: int
) -> None:
    hub.make_repo()
    hub.fail("/refs", status=429, headers=header, times=1)
    with logged(logging.DEBUG) as records:
        assert has_kernel("acme/relu", version=1)
    [retry] = [each for each in records if "try 2 of 6 follows in" in each.getMessage()]
    assert retry.levelno == level
    assert retry.getMessage().endswith("Requests with a token have a higher limit.")
    refused = f"GET {hub.url}/api/kernels/acme/relu/refs: answered 429 in"
    assert any(each.getMessage().startswith(refused) for each in records)


def test_a_hub_that_does_not_answer_is_logged_with_each_try(hub: TestHub) -> None:
    hub.down()
    with logged(logging.DEBUG) as records, pytest.raises(HubUnavailable):
        get_kernel("acme/relu", version=1, trust_remote_code=True)
    tries = [text for text in said(records, "kernels.sources.http") if text.startswith("GET ")]
    assert len(tries) == 4
    assert all(": did not answer (ConnectError: " in text for text in tries)


def test_a_lock_that_is_waited_for_is_mentioned_once(tmp_path: Path) -> None:
    path = tmp_path / "work.lock"
    held = FileLock(path, thread_local=False)
    held.acquire()
    threading.Timer(1.3, held.release, kwargs={"force": True}).start()
    with logged(logging.INFO) as records, exclusively(WorkLock(path, seconds=30)):
        pass
    [text] = said(records, "kernels.support.lock")
    assert text.startswith(f"Waiting for the lock {path}, which another process holds")


@pytest.mark.parametrize(
    ("arguments", "levels"),
    [
        (["explain"], {"Warning"}),
        (["-v", "download"], {"Warning", "Info"}),
        (["download", "-v"], {"Warning", "Info"}),
        (["-vv", "download"], {"Warning", "Info", "Debug"}),
        (["-v", "download", "--verbose"], {"Warning", "Info", "Debug"}),
    ],
    ids=lambda words: " ".join(sorted(words) if isinstance(words, set) else words),
)
def test_a_command_prints_more_when_asked_for(hub: TestHub, arguments: list[str], levels: set[str]) -> None:
    hub.make_repo()
    hub.make_repo(version=2)
    done: Any = CliRunner().invoke(app, [*arguments, "acme/relu", "--version", "1"], prog_name="kernels")
    assert done.exit_code == 0, done.output
    assert {line.partition(": ")[0] for line in done.stderr.splitlines()} == levels
    assert "Warning: acme/relu version 1 is used; version 2 is the newest.\n" in done.stderr
    log = logging.getLogger("kernels")
    assert (log.handlers, log.level) == ([], logging.NOTSET)


STRICT = """
import torch
from torch import nn
from kernels import LayerRepository, get_kernel, kernelize, use_kernel_forward_from_hub, use_kernel_mapping

get_kernel("acme/relu", version=1)

@use_kernel_forward_from_hub("Relu")
class Relu(nn.Module):
    def forward(self, x):
        return x

with use_kernel_mapping({"Relu": {"cpu": LayerRepository("acme/relu", layer_name="Relu", version=1)}}):
    print(kernelize(nn.Sequential(Relu()), device="cpu", report=True).kernelized[0].kernel)
"""

LAYERS = "from torch import nn\n\n\nclass Relu(nn.Module):\n    def forward(self, x):\n        return x\n"


@pytest.mark.skipif(
    Version(version("huggingface-hub")) < Version("1.11"),
    reason="huggingface_hub 1.10 leaves a connection open",
)
def test_a_program_that_does_nothing_wrong_runs_with_warnings_as_errors(hub: TestHub) -> None:
    init = "from . import layers\n"
    for number in (1, 2):  # an outdated version is logged, no warning
        hub.make_repo(version=number, variants={"torch-cpu": {"__init__.py": init, "layers.py": LAYERS}})
    strict = [sys.executable, "-W", "error", "-X", "dev"]
    # Torch's own modules raise deprecations that are not the program's.
    own = [*strict, "-W", "ignore:::torch", "-c", STRICT]
    done = subprocess.run(own, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "acme/relu\n"), done.stderr
    assert done.stderr.splitlines() == ["acme/relu version 1 is used; version 2 is the newest."]
    command = [*strict, "-m", "kernels", "explain", "acme/relu", "--version", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
