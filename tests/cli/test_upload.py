"""`kernels upload` says what it publishes, and is one line and status 1 when it does not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub, make_repo
from huggingface_hub.utils import get_session
from writable_hub import TOKEN, WritableHub


@pytest.fixture
def hub(writable_hub: WritableHub) -> WritableHub:
    return writable_hub


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    return make_repo(tmp_path / "work", "acme/relu", variants=["torch-cpu", "torch-cuda"])


def test_it_says_each_step_and_where_the_kernel_is(kernels: Callable[..., Any], hub: TestHub, kernel: Path) -> None:
    done = kernels("upload", kernel, "--repo-id", "acme/relu")
    commit, page = hub.commit("acme/relu", "v1"), hub.commit("acme/relu", "main")
    assert (done.exit_code, done.stdout.splitlines()) == (
        0,
        [
            f"acme/relu, branch v1, at {hub.url}: 2 builds",
            "Sending 7 files, deleting 0 paths",
            f"Published acme/relu, branch v1, as commit {commit}",
            f"Updated the card on main, as commit {page}",
        ],
    )
    again = kernels("upload", kernel, "--repo-id", "acme/relu")
    assert again.stdout.splitlines()[1:] == [f"No change since commit {commit}: nothing was sent."]


def test_json_is_one_document_with_every_file(
    kernels: Callable[..., Any], hub: TestHub, kernel: Path, tmp_path: Path
) -> None:
    kernels("upload", kernel, "--repo-id", "acme/relu")
    (kernel / "build" / "torch-cpu" / "__pycache__").mkdir()
    init = kernel / "build" / "torch-cpu" / "__init__.py"
    init.write_text(init.read_text() + "# more\n")
    (kernel / "build" / "torch-cuda").rename(tmp_path / "torch-cuda")
    before = hub.commit("acme/relu", "v1")
    upload = ["upload", kernel, "--repo-id", "acme/relu", "--no-check", "--remove-variants", "--json"]
    dry = kernels(*upload, "--dry-run")
    assert hub.commit("acme/relu", "v1") == before
    done = kernels(*upload)
    document = json.loads(done.stdout)
    assert done.exit_code == 0
    assert done.stderr.splitlines()[0] == f"acme/relu, branch v1, at {hub.url}: 1 build"
    assert document.pop("card") == {
        "path": "README.md",
        "origin": "generated",
        "state": "changed",
        "main_commit": hub.commit("acme/relu", "main"),
    }
    cpu, cuda = document.pop("variants")
    assert (cpu["name"], cpu["state"], [each["path"] for each in cpu["changed"]]) == (
        "torch-cpu", "changed", ["build/torch-cpu/__init__.py"],
    )  # fmt: skip
    assert cpu["bytes"] == init.stat().st_size
    assert [each["path"] for each in cpu["unchanged"]] == [
        "build/torch-cpu/layers.py",
        "build/torch-cpu/metadata.json",
    ]
    assert (cuda["name"], cuda["state"], len(cuda["deleted"])) == ("torch-cuda", "deleted", 3)
    assert document["skipped"] == [{"path": "build/torch-cpu/__pycache__/", "reason": "bytecode"}]
    assert (document["commit"], document["changed"], document["dry_run"]) == (
        hub.commit("acme/relu", "v1"),
        True,
        False,
    )
    planned = json.loads(dry.stdout)
    assert (planned["commit"], planned["dry_run"], planned["variants"]) == (before, True, [cpu, cuda])


def test_a_dry_run_needs_neither_a_token_nor_a_repository(
    kernels: Callable[..., Any], hub: TestHub, kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KERNELS_HUB_TOKEN")
    done = kernels("upload", kernel, "--repo-id", "acme/relu", "--dry-run")
    assert done.exit_code == 0
    assert "Would send 7 files, would delete 0 paths" in done.stdout
    assert "  added: build/torch-cpu/__init__.py (" in done.stdout
    assert {each.method for each in hub.requests} == {"GET"}


def test_an_error_is_in_the_document_too(kernels: Callable[..., Any], hub: TestHub, kernel: Path) -> None:
    done = kernels("upload", kernel, "--json")
    assert done.exit_code == 1
    error = json.loads(done.stdout)["error"]
    assert error["type"] == "RequestError"
    assert done.stderr == f"Error: {error['message']}\n"


def test_a_pipe_gets_no_progress_bars(hub: TestHub, kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_DISABLE_PROGRESS_BARS")
    (kernel / "build" / "torch-cpu" / "data.bin").write_bytes(bytes(11_000_000))
    command = [sys.executable, "-m", "kernels", "upload", str(kernel), "--repo-id", "acme/relu", "--no-check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Sending 8 files" in done.stdout


def test_what_goes_and_a_pull_request_are_named(kernels: Callable[..., Any], hub: TestHub, kernel: Path) -> None:
    kernels("upload", kernel, "--repo-id", "acme/relu")
    (kernel / "build" / "torch-cuda").rename(kernel / "torch-cuda")
    kept = kernels("upload", kernel, "--repo-id", "acme/relu", "--keep-variants")
    assert "nothing was sent" in kept.stdout
    done = kernels("upload", kernel, "--repo-id", "acme/relu", "--create-pr", "--remove-variants")
    assert "  deleted: build/torch-cuda/\n" in done.stdout
    assert done.stdout.endswith(f"Opened {hub.url}/kernels/acme/relu/discussions/1\n")


def test_another_branch_and_a_private_repository_can_be_asked_for(
    kernels: Callable[..., Any], hub: TestHub, kernel: Path
) -> None:
    done = kernels("upload", kernel, "--repo-id", "acme/relu", "--branch", "next", "--private")
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, f"acme/relu, branch next, at {hub.url}: 2 builds")
    assert "build/torch-cpu/metadata.json" in hub.catalog.commit("acme/relu", "next").files
    refs = f"{hub.url}/api/kernels/acme/relu/refs"
    assert get_session().get(refs).status_code == 404
    answer = get_session().get(refs, headers={"Authorization": f"Bearer {TOKEN}"})
    assert [branch["name"] for branch in answer.json()["branches"]] == ["main", "next"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["absent"], "which is not a folder"),
        (["{kernel}"], "--repo-id org/name"),
        (["{kernel}", "--repo-id", "acme/relu", "--branch", "v7"], "the builds have version 1"),
    ],
)
def test_an_error_is_one_line(
    kernels: Callable[..., Any], hub: TestHub, kernel: Path, arguments: list[str], said: str
) -> None:
    done = kernels("upload", *[argument.format(kernel=kernel) for argument in arguments])
    assert done.exit_code == 1
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("where", ["/commit/", "/lfs-upload/"])
def test_an_interrupted_upload_publishes_nothing_and_can_be_run_again(
    kernels: Callable[..., Any], hub: TestHub, kernel: Path, where: str
) -> None:
    for name in ("torch-cpu", "torch-cuda"):
        (kernel / "build" / name / "data.so").write_bytes(name.encode() + bytes(100))
    hub.hang(where)
    command = [sys.executable, "-m", "kernels", "upload", str(kernel), "--repo-id", "acme/relu", "--no-check"]
    process = subprocess.Popen(command, env=dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        while not hub.count(where) and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)  # no answer is waited for
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Run the same command again" in said
    assert ("Nothing was published." in said) == (where == "/lfs-upload/")
    assert list(hub.catalog.commit("acme/relu", "v1").files) == []
    hub.heal()
    assert kernels("upload", kernel, "--repo-id", "acme/relu", "--no-check").exit_code == 0


def test_kernels_serve_takes_what_kernels_upload_publishes(
    kernels: Callable[..., Any], hub: TestHub, kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "root").mkdir()
    command = [sys.executable, "-u", "-m", "kernels", "serve", str(tmp_path / "root"), "--port", "0", "--writable"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        monkeypatch.setenv("KERNELS_HUB", url)
        assert kernels("upload", kernel, "--repo-id", "acme/relu").exit_code == 0
        assert (tmp_path / "root" / "acme" / "relu" / "v1" / "build" / "torch-cpu" / "metadata.json").is_file()
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_writing_without_a_token_is_refused(
    kernels: Callable[..., Any], hub: TestHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KERNELS_HUB_TOKEN")
    done = kernels("serve", hub.root, "--writable")
    assert (done.exit_code, "--writable needs a token" in done.stderr) == (1, True)
