"""`kernels cache`: what it prints, what it asks before it removes, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub
from tuned_models import measured

from kernels import install_kernel
from kernels.models.lockfile import Lock, Pin
from kernels.models.requirement import Requirement


@pytest.fixture
def commits(
    hub: TestHub, new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> tuple[str, str]:
    """Two commits of acme/relu, the second the head of v1; the command runs in an empty folder."""
    found = []
    for seed in ("first", "second"):
        hub.make_repo("acme/relu", seed=seed, digest=True)
        new_process()
        install_kernel("acme/relu", version=1)
        found.append(hub.commit("acme/relu"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return found[0], found[1]


def in_cache(cache: Path) -> set[str]:
    return {path.name for path in cache.glob("kernels--*/snapshots/*")}


def lock(path: Path, commit: str) -> Path:
    path.write_bytes(Lock((Pin(Requirement("acme/relu", version=1), commit),)).to_bytes())
    return path


def test_the_list_has_a_line_for_each_commit(kernels: Callable[..., Any], hub: TestHub, commits: Any) -> None:
    result = kernels("cache")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == [
        "Repository", "Commit", "Branches", "Build", "State", "Size", "Frees", "Downloaded", "Used", "Hub",
    ]  # fmt: skip
    [newer] = [line for line in lines if commits[1][:12] in line]
    assert newer.split()[:5] == ["acme/relu", commits[1][:12], "v1", "torch-cpu", "complete"]
    assert newer.endswith(hub.url)
    assert any(commits[0][:12] in line and " - " in line for line in lines)
    assert lines[-1].startswith("2 commits, ")


def test_a_pinned_commit_of_a_carried_folder_has_its_address(
    hub: TestHub, kernels: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore")
    hub.make_repo("acme/relu", variants=["torch-cpu"])
    carried = tmp_path / "carried"
    assert kernels("download", "acme/relu", "--version", 1, "--to", carried).exit_code == 0
    monkeypatch.setenv("KERNELS_HUB", str(carried))
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / "node"))
    assert kernels("download", "acme/relu", "--revision", hub.commit()).exit_code == 0
    [line] = [line for line in kernels("cache").stdout.splitlines() if hub.commit()[:12] in line]
    assert line.endswith(carried.as_uri())


def test_json_has_all_of_it(kernels: Callable[..., Any], hub: TestHub, commits: Any, isolated_env: Path) -> None:
    answer = json.loads(kernels("cache", "list", "--json").stdout)
    assert answer["cache"] == str(isolated_env)
    found = {each["commit"]: each for each in answer["commits"]}
    assert set(found) == set(commits)
    new = found[commits[1]]
    assert (new["repo_id"], new["branches"], new["hubs"]) == ("acme/relu", ["v1"], [hub.url])
    assert [(each["variant"], each["complete"]) for each in new["builds"]] == [("torch-cpu", True)]
    assert 0 < new["frees"] <= new["size"] < answer["size"]


def test_the_size_is_summed_up_by_repository(kernels: Callable[..., Any], commits: Any) -> None:
    result = kernels("cache", "size")
    assert result.stdout.splitlines()[1].split()[:2] == ["acme/relu", "2"]


@pytest.mark.parametrize("action", ["list", "size", "prune", "verify"])
def test_a_repository_of_which_nothing_is_here_is_an_error_that_names_the_nearest(
    kernels: Callable[..., Any], commits: Any, isolated_env: Path, action: str
) -> None:
    result = kernels("cache", action, "--repo", "acme/rleu")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: acme/rleu is not in the cache {isolated_env}. Did you mean 'acme/relu'?\n"


def test_help_has_the_options_of_each_action_apart(
    kernels: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    page = kernels("cache", "prune", "--help").stdout
    prune, verify = page.index("Options of prune"), page.index("Options of verify")
    assert prune < page.index("--older-than") < page.index("--yes") < verify < page.index("--repair")
    assert page.index("--repo") < prune


def test_an_empty_cache_is_said_to_be(kernels: Callable[..., Any], isolated_env: Path) -> None:
    assert kernels("cache").stdout == f"0 commits, 0 B in {isolated_env}\n"
    assert kernels("cache", "prune").stdout.endswith("Nothing to remove.\n")
    assert kernels("cache", "verify").exit_code == 0


def test_pruning_asks_nobody_and_removes_nothing_without_yes(
    kernels: Callable[..., Any], commits: Any, isolated_env: Path
) -> None:
    result = kernels("cache", "prune")
    assert result.exit_code == 1
    assert "1 commit to remove" in result.stdout
    assert result.stdout.endswith(
        "Nothing was removed.\nStandard input is not a terminal. To remove without confirmation: --yes\n"
    )
    assert in_cache(isolated_env) == set(commits)


@pytest.mark.skipif(os.name == "nt", reason="no terminals of this kind on Windows")
@pytest.mark.parametrize(("answer", "left"), [("y", 1), ("n", 2)])
def test_at_a_terminal_it_asks(commits: Any, isolated_env: Path, answer: str, left: int) -> None:
    import pty

    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "kernels", "cache", "prune"], stdin=follower, stdout=subprocess.PIPE, stderr=follower
    )
    os.close(follower)
    os.write(leader, f"{answer}\n".encode())
    output, _ = process.communicate(timeout=120)
    os.close(leader)
    assert process.returncode == (0 if answer == "y" else 1)
    assert b"Remove them?" not in output
    assert len(in_cache(isolated_env)) == left


def test_with_yes_what_nothing_names_goes(kernels: Callable[..., Any], commits: Any, isolated_env: Path) -> None:
    result = kernels("cache", "prune", "--yes")
    assert result.exit_code == 0
    assert "head of v1" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("Removed 1 commit, freed ")
    assert in_cache(isolated_env) == {commits[1]}


@pytest.mark.parametrize("where", ["option", "project", "below the project"])
def test_what_a_lock_pins_stays(
    kernels: Callable[..., Any], commits: Any, isolated_env: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lock(Path("gpu.lock" if where == "option" else "kernels.lock").absolute(), commits[0])
    Path("pyproject.toml").write_text("")
    if where == "below the project":
        Path("src").mkdir()
        monkeypatch.chdir("src")
    result = kernels("cache", "prune", "--all", "--yes", *(["--lockfile", path] if where == "option" else []))
    assert result.exit_code == 0, result.stderr
    assert in_cache(isolated_env) == {commits[0]}


def test_json_shows_the_plan_and_removes_only_with_yes(
    kernels: Callable[..., Any], commits: Any, isolated_env: Path
) -> None:
    answer = json.loads(kernels("cache", "prune", "--json").stdout)
    assert [each["commit"] for each in answer["remove"]] == [commits[0]]
    assert [each["why"] for each in answer["kept"]] == ["head of v1"]
    assert answer["removed"] is None
    assert in_cache(isolated_env) == set(commits)
    answer = json.loads(kernels("cache", "prune", "--json", "--yes").stdout)
    assert answer["removed"] == [commits[0]]
    assert in_cache(isolated_env) == {commits[1]}


def test_verify_names_what_changed_and_repairs_it(
    kernels: Callable[..., Any], commits: Any, new_process: Callable[[], None]
) -> None:
    assert kernels("cache", "verify").exit_code == 0
    path = install_kernel("acme/relu", version=1) / "layers.py"
    whole, facts = path.read_bytes(), path.stat()
    path.resolve().write_bytes(b"#" + whole[1:])
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))  # so that no identity gives it away
    result = kernels("cache", "verify")
    assert result.exit_code == 1
    assert "build/torch-cpu/layers.py" in result.stdout
    assert result.stdout.endswith("kernels cache verify --repair\n")
    answer = json.loads(kernels("cache", "verify", "--repo", "acme/relu", "--repair", "--json").stdout)
    assert {each["commit"]: each["changed"] for each in answer["commits"]}[commits[1]] == ["build/torch-cpu/layers.py"]
    new_process()
    install_kernel("acme/relu", version=1)
    assert path.read_bytes() == whole
    assert kernels("cache", "verify").exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [["list", "--repair"], ["verify", "--yes"], ["size", "--all"], ["prune", "--older-than", "-1"], ["clean"]],
    ids=lambda arguments: " ".join(arguments),
)
def test_options_that_an_action_has_not_are_wrong_arguments(
    kernels: Callable[..., Any], isolated_env: Path, arguments: list[str]
) -> None:
    assert kernels("cache", *arguments).exit_code == 2


def test_a_repository_that_none_can_be_and_a_lock_that_is_none_are_errors(
    kernels: Callable[..., Any], commits: Any, isolated_env: Path
) -> None:
    assert kernels("cache", "--repo", "relu").exit_code == 1
    Path("bad.lock").write_text("{")
    assert kernels("cache", "prune", "--lockfile", "bad.lock", "--yes").exit_code == 1
    assert in_cache(isolated_env) == set(commits)


def test_what_a_killed_mirror_run_left_is_counted_and_removed_and_a_run_at_work_is_left_alone(
    kernels: Callable[..., Any], hub: TestHub, isolated_env: Path, tmp_path: Path
) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-cuda"], files={"big.bin": "x" * 1_000_000})
    hub.delay("torch-cuda/__init__", 60)
    root = isolated_env / ".locks" / "kernels-mirroring"
    command = [sys.executable, "-m", "kernels", "mirror", str(tmp_path / "mirror"), "--publisher", "acme"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not list((tmp_path / "mirror").glob("archives/*/*.zst")) and time.monotonic() < deadline:
            time.sleep(0.02)
        (folder,) = root.iterdir()
        (folder / "left").write_bytes(b"x" * 1_000_000)
        os.utime(folder, (time.time() - 3 * 86400,) * 2)
        assert json.loads(kernels("cache", "--json").stdout)["leftovers"] == []
        assert kernels("cache", "prune", "--yes").exit_code == 0
        assert (folder / "left").exists()
    finally:
        process.kill()
        process.wait()
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (time.time() - 3 * 86400,) * 2, follow_symlinks=False)
    (root / "young").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine").write_text("mine")
    (root / "link").symlink_to(tmp_path / "elsewhere")
    assert json.loads(kernels("cache", "--json").stdout)["leftovers"] == [str(folder)]
    plan = kernels("cache", "prune")
    assert "1 leftover to remove: 1.0 MB" in plan.stdout
    assert folder.exists()
    done = kernels("cache", "prune", "--yes")
    assert done.stdout.splitlines()[-1] == "Removed 0 commits, freed 1.0 MB."
    assert sorted(path.name for path in root.iterdir()) == ["link", "young"]
    assert (tmp_path / "elsewhere" / "mine").exists()


# autotune


def records(cache: Path) -> list[Path]:
    return sorted(cache.glob(".locks/kernels-autotune/*"))


def test_decisions_of_autotune_are_shown(kernels: Callable[..., Any], isolated_env: Path) -> None:
    measured()
    assert kernels("cache").stdout.splitlines()[-1] == (
        "2 decisions of autotune; to show or remove them: kernels cache autotune"
    )
    lines = kernels("cache", "autotune").stdout.splitlines()
    assert lines[0].split() == ["Layer", "Class", "Device", "Torch", "Type", "Mode", "Kernel", "Serves"]
    [other] = [line for line in lines if line.startswith("other ")]
    assert other.endswith("float32  INFERENCE  Wrong   never: the kernel fails: ValueError: no such shape")
    listed = json.loads(kernels("cache", "--json").stdout)["autotune"]
    alone = json.loads(kernels("cache", "autotune", "--repo", "Wrong", "--json").stdout)
    assert alone["removed"] is None
    [decision] = alone["decisions"]
    assert decision in listed
    assert (decision["kernels"], decision["facts"]["class"].rpartition(".")[2]) == (["Wrong"], "Other")
    assert [str(path) for path in records(isolated_env)] == [each["file"] for each in listed]


def test_decisions_of_one_kernel_or_all_are_removed(kernels: Callable[..., Any], isolated_env: Path) -> None:
    measured()
    for refused in (("autotune", "--remove"), ("autotune", "--remove", "--json"), ("prune", "--yes")):
        kernels("cache", *refused)
        assert len(records(isolated_env)) == 2
    assert "Did you mean 'Wrong'?" in kernels("cache", "autotune", "--repo", "Worng", "--remove", "--yes").stderr
    assert kernels("cache", "autotune", "--repo", "Wrong", "--remove", "--yes").stdout.endswith("Removed 1 decision.\n")
    [left] = records(isolated_env)
    assert b'"Fast"' in left.read_bytes()
    answer = json.loads(kernels("cache", "autotune", "--remove", "--yes", "--json").stdout)
    assert answer["removed"] == [str(left)]
    assert records(isolated_env) == []
    assert kernels("cache", "list", "--remove").exit_code == 2


def test_a_damaged_decision_is_shown_and_removed(kernels: Callable[..., Any], isolated_env: Path) -> None:
    measured()
    path = records(isolated_env)[0]
    path.chmod(0o644)
    path.write_text("{")
    (path.parent / "folder.json").mkdir()
    assert kernels("cache").exit_code == 0
    result = kernels("cache", "autotune")
    assert result.exit_code == 0
    assert f"ignored: {path.name} is damaged, or of another user" in result.stdout
    unknown = dict.fromkeys(("facts", "kernels", "serves", "out"))
    assert {"file": str(path), **unknown} in json.loads(kernels("cache", "--json").stdout)["autotune"]
    result = kernels("cache", "autotune", "--remove", "--yes")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (1, "Removed 2 decisions.")
    assert [each.name for each in records(isolated_env)] == ["folder.json"]


@pytest.mark.skipif(os.name == "nt", reason="links need a right there")
def test_decisions_behind_a_link_stay(kernels: Callable[..., Any], isolated_env: Path, tmp_path: Path) -> None:
    measured()
    folder = isolated_env / ".locks" / "kernels-autotune"
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert kernels("cache", "autotune", "--remove", "--yes").stdout.startswith("0 decisions")
    assert len(list((tmp_path / "elsewhere").iterdir())) == 2
