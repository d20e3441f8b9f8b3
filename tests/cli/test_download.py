"""`kernels download`: what it says, where it exits, and what it shows while it works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub
from logged import warned

from kernels.models.lockfile import Lock, Pin
from kernels.models.requirement import Requirement

HOPPER = "torch2.9-cu128-x86_64-linux+sm_90"
CPU = "torch2.9-cpu-x86_64-linux"
APPLE = "torch2.9-metal-aarch64-darwin"


@pytest.fixture
def relu(hub: TestHub) -> TestHub:
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-cuda"])
    return hub


@pytest.fixture
def project(relu: TestHub, tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    pin = Pin(Requirement("acme/relu", version=1), relu.commit())
    (folder / "kernels.lock").write_bytes(Lock((pin,)).to_bytes())
    return folder


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.split("\n\n")[0].splitlines()[1:]]


def test_the_table_names_kernel_commit_build_size_and_machine(kernels: Callable[..., Any], relu: TestHub) -> None:
    done = kernels("download", "acme/relu", "--version", 1, "--target", HOPPER, "--target", CPU)
    assert done.exit_code == 0, done.stderr
    commit = relu.commit()[:12]
    assert [[*row[:3], *row[5:]] for row in rows(done.stdout)] == [
        ["acme/relu", commit, "torch-cpu", CPU, "downloaded"],
        ["acme/relu", commit, "torch-cuda", HOPPER, "downloaded"],
    ]
    assert done.stdout.splitlines()[-1].startswith("Downloaded 2 builds of 2, ")
    assert done.stderr == ""


def test_a_second_run_does_nothing_and_says_so(
    kernels: Callable[..., Any], relu: TestHub, new_process: Callable[[], None]
) -> None:
    kernels("download", "acme/relu", "--version", 1, "--all-variants")
    relu.clear()
    new_process()
    done = kernels("download", "acme/relu", "--version", 1, "--all-variants")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "Nothing to do: 2 builds are present.")
    assert relu.count("/resolve/") == 0


@pytest.mark.parametrize("way", ["folder", "here", "lockfile", "pyproject.toml", "KERNELS_LOCKFILE"])
def test_a_project_is_its_lock(
    kernels: Callable[..., Any], relu: TestHub, project: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.chdir(project if way == "here" else project.parent)
    (project / "pyproject.toml").write_text('[tool.kernels.dependencies]\n"acme/relu" = 1\n')
    if way == "KERNELS_LOCKFILE":
        monkeypatch.setenv("KERNELS_LOCKFILE", "project/kernels.lock")
    arguments = {
        "folder": ["project"],
        "lockfile": ["--lockfile", "project/kernels.lock"],
        "pyproject.toml": ["project/pyproject.toml"],
    }.get(way, [])
    done = kernels("download", *arguments)
    assert (done.exit_code, [row[2] for row in rows(done.stdout)]) == (0, ["torch-cpu"]), done.stderr
    assert relu.count("/refs") == 1  # whether a branch leads to the commit


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "kernels.lock does not exist. Write it with: kernels lock ."),
        (["."], "kernels.lock does not exist. Write it with: kernels lock ."),
        (["--lockfile", "absent"], "absent: No such file or directory."),
        ([".", "acme/relu"], "give either one project or repositories"),
        (["acme/relu", "--target", "nofile.json"], "`target` is 'nofile.json': file not found."),
        (["pyproject.toml", "acme/relu"], "give either one project or repositories"),
        (["acme/relu", "--target", "torch2.9-cu128-linux"], "Expected torch<version>-<accelerator>-<cpu>-<os>"),
        (["acme/relu", "--target", "torch2.9-cud128-x86_64-linux"], "is not a known accelerator"),
        (["acme/relu", "--target", "torch2.9-cu128-x86_64-linux+nine"], "'nine' is no architecture of cuda"),
        (["acme/relu", "--version", "1", "--revision", "v1"], "not both"),
        (["acme/relu", "--to", "kept"], "kept is not empty"),
        (["acme/relu", "--version", "7"], "has no version 7; it has 1"),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(
    said_of_bad_input: Callable[..., str], relu: TestHub, arguments: list[str], says: str
) -> None:
    assert says in said_of_bad_input("download", *arguments)


def test_what_the_project_beside_a_lock_asks_for_and_the_lock_does_not_pin_is_mentioned(
    kernels: Callable[..., Any], project: Path
) -> None:
    (project / "pyproject.toml").write_text('[tool.kernels.dependencies]\n"acme/relu" = 1\n"acme/norm" = 2\n')
    with warned(r"depends on acme/norm version 2, which .*kernels\.lock does not pin"):
        assert kernels("download", project).exit_code == 0


def test_a_lock_of_no_kernels_is_told(kernels: Callable[..., Any], isolated_env: Path, tmp_path: Path) -> None:
    (tmp_path / "kernels.lock").write_bytes(b"[]")
    done = kernels("download", tmp_path)
    assert (done.exit_code, done.stdout) == (0, "Nothing to do: the lockfile pins no kernels.\n")


def test_a_backend_that_is_not_here_points_to_other_machines(
    kernels: Callable[..., Any], relu: TestHub, on_the_processor: None
) -> None:
    done = kernels("download", "acme/relu", "--version", 1, "--backend", "xpu")
    assert (done.exit_code, done.stderr.endswith("For another machine: --target.\n")) == (1, True), done.stderr


def test_what_has_no_build_is_named_with_the_machine_and_why(kernels: Callable[..., Any], relu: TestHub) -> None:
    done = kernels("download", "acme/relu", "--version", 1, "--target", APPLE, "--target", CPU)
    assert done.exit_code == 1
    assert [row[2] for row in rows(done.stdout)] == ["torch-cpu"]
    [error] = done.stderr.splitlines()
    assert error.startswith(f"Error: No build of acme/relu version 1 (commit {relu.commit()[:12]}) suits {APPLE}, ")
    assert "torch-cuda" in error
    assert (error.count("acme/relu"), error.count(APPLE), "this machine" in error) == (1, 1, False)
    assert done.stdout.splitlines()[-1].startswith("Downloaded 1 build, ")
    assert done.stdout.endswith("; 1 failed.\n")
    again = kernels("download", "acme/relu", "--version", 1, "--target", APPLE, "--target", CPU)
    assert again.stdout.splitlines()[-1] == "1 build is present; 1 failed."


def test_what_no_architecture_covers_is_said_without_arguments_that_a_command_does_not_have(
    kernels: Callable[..., Any], hub: TestHub
) -> None:
    hub.make_repo("acme/relu", variants=["torch-cuda"], archs=["9.0"])
    done = kernels("download", "acme/relu", "--version", 1, "--target", HOPPER.replace("sm_90", "sm_75"))
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "sm_75, backend cuda: torch-cuda: " in done.stderr
    assert not any(word in done.stderr for word in ("device=", "check_arch", "this machine"))


def test_json_has_builds_and_failures(kernels: Callable[..., Any], relu: TestHub, tmp_path: Path) -> None:
    done = kernels(
        *("download", "acme/relu", "--version", 1, "--target", APPLE, "--target", CPU, "--to", tmp_path / "to"),
        "--json",
    )
    found = json.loads(done.stdout)
    [build], [failure] = found["builds"], found["failures"]
    [archive] = (tmp_path / "to/archives").glob("*/*")
    size = sum(path.stat().st_size for path in (relu.root / "acme/relu/v1/build/torch-cpu").iterdir())
    assert build == {
        "repo_id": "acme/relu",
        "commit": relu.commit(),
        "variant": "torch-cpu",
        "size": size,
        "targets": [CPU],
        "path": str(archive),
        "new": True,
    }
    assert (failure["kernel"], failure["target"]) == ("acme/relu version 1", APPLE)


def test_a_target_may_be_a_file(kernels: Callable[..., Any], relu: TestHub, tmp_path: Path) -> None:
    from kernels import Target

    (tmp_path / "h100.json").write_bytes(Target.parse(HOPPER).to_json())
    done = kernels("download", "acme/relu", "--version", 1, "--target", tmp_path / "h100.json")
    assert [row[2] for row in rows(done.stdout)] == ["torch-cuda"], done.stderr


def test_a_publisher_that_is_not_trusted_needs_a_word(kernels: Callable[..., Any], hub: TestHub) -> None:
    hub.make_repo("eve/relu")
    refused = kernels("download", "eve/relu", "--version", 1)
    assert (refused.exit_code, "is refused: its publisher" in refused.stderr) == (1, True)
    assert kernels("download", "eve/relu", "--version", 1, "--trust-remote-code").exit_code == 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such terminals")
@pytest.mark.parametrize("hidden", [False, True])
def test_progress_is_shown_on_a_terminal_alone(relu: TestHub, hidden: bool) -> None:
    import pty

    relu.delay("layers", 1.5)
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "HF_HUB_DISABLE_PROGRESS_BARS": "1" if hidden else "0"}
    command = [sys.executable, "-m", "kernels", "download", "acme/relu", "--version", "1"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=slave) as process:
        os.close(slave)
        shown = b""
        while True:
            try:
                more = os.read(master, 65536)
            except OSError:  # on Linux, how a terminal says that nobody writes any more
                break
            if not more:
                break
            shown += more
        assert process.stdout is not None
        answer = process.stdout.read()
    os.close(master)
    assert process.returncode == 0, shown
    assert b"Downloaded 1 build of 1" in answer
    assert (b"Downloading acme/relu" in shown, b"files" in shown) == (not hidden, not hidden)
    assert b"/?" not in shown  # no size is shown before it is known
