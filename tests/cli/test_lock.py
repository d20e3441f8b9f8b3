"""`kernels lock` pins everything that a project needs, changes nothing that need not change, and says what it did."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub
from logged import warned

from kernels.models.lockfile import Lock, hashes_path
from kernels.models.requirement import Requirement
from kernels.sources import memory
from kernels.trust.content import BuildContent

Run = Callable[..., Any]
OLD_HASH = "sha256-" + "ab" * 32


@pytest.fixture(autouse=True)
def _each_run_asks_as_a_new_process() -> None:
    memory.forget()


@pytest.fixture
def lock(kernels: Run) -> Run:
    """`kernels lock`, as a process of its own would run it."""

    def run(*arguments: object) -> Any:
        memory.forget()
        return kernels("lock", *arguments)

    return run


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    asks(folder, '"acme/relu" = 1')
    return folder


def asks(project: Path, *lines: str) -> None:
    (project / "pyproject.toml").write_text("\n".join(["[tool.kernels.dependencies]", *lines, ""]))


def pins(project: Path) -> dict[str, str]:
    return {str(pin.requirement): pin.commit for pin in Lock.read(project / "kernels.lock").pins}


def files(project: Path) -> set[str]:
    return {path.name for path in project.iterdir()}


# What is locked


def test_the_whole_tree_is_locked_over_builds_for_every_machine(hub: TestHub, lock: Run, project: Path) -> None:
    hub.make_repo("acme/base")
    hub.make_repo("acme/base", version=2)
    hub.make_repo("acme/dev", revision="dev")
    hub.make_repo("acme/cuda-only", variants=["torch213-cxx11-cu130-x86_64-linux"], depends=[("acme/dev", "dev")])
    hub.make_repo("acme/relu", variants=["torch-cpu"], depends=[("acme/base", 1)])
    hub.make_repo("acme/relu", variants=["torch-cuda"], depends=[("acme/base", 2), ("acme/cuda-only", 1)])
    done = lock(project)
    assert (done.exit_code, done.stderr) == (0, "Warning: acme/base version 1 is used; version 2 is the newest.\n")
    assert pins(project) == {
        "acme/base version 1": hub.commit("acme/base", "v1"),
        "acme/base version 2": hub.commit("acme/base", "v2"),
        "acme/cuda-only version 1": hub.commit("acme/cuda-only"),
        "acme/dev at dev": hub.commit("acme/dev", "dev"),
        "acme/relu version 1": hub.commit("acme/relu"),
    }
    assert done.stdout.endswith(f"Locked 5 kernels in {project / 'kernels.lock'}\n")
    assert files(project) == {"pyproject.toml", "kernels.lock"}
    assert hub.count(r"/resolve/.*(__init__|layers)\.py") == 0


def test_the_file_is_the_one_that_the_existing_client_writes(hub: TestHub, lock: Run, project: Path) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu"])
    assert lock(project / "pyproject.toml").exit_code == 0
    assert (project / "kernels.lock").read_text() == (
        '[\n  {\n    "dependency": {\n      "repo-id": "acme/relu",\n      "version": 1\n    },\n'
        '    "lock": {\n      "commit": "' + hub.commit() + '"\n    }\n  }\n]'
    )


def test_every_step_of_a_move_is_locked(hub: TestHub, lock: Run, project: Path) -> None:
    hub.make_repo("acme/relu", variants=[], redirect="acme/newer")
    hub.make_repo("acme/newer", variants=[], status={"kind": "redirect", "destination": "acme/new", "revision": "dev"})
    hub.make_repo("acme/new", revision="dev", depends=[("acme/base", 1)])
    hub.make_repo("acme/base")
    assert lock(project).exit_code == 0
    assert pins(project) == {
        "acme/base version 1": hub.commit("acme/base"),
        "acme/new at dev": hub.commit("acme/new", "dev"),
        "acme/newer version 1": hub.commit("acme/newer"),
        "acme/relu version 1": hub.commit("acme/relu"),
    }


def test_a_commit_that_the_project_names_is_locked_as_it_is(hub: TestHub, lock: Run, project: Path) -> None:
    hub.make_repo()
    asks(project, f'"acme/relu" = {{ revision = "{hub.commit()}" }}')
    assert lock(project).exit_code == 0
    assert pins(project) == {f"acme/relu at {hub.commit()}": hub.commit()}
    assert hub.count("/refs$") == 1  # whether a branch leads to it


def test_a_build_that_cannot_be_loaded_is_mentioned(hub: TestHub, lock: Run, project: Path) -> None:
    hub.make_repo("acme/base")
    hub.make_repo("acme/relu", variants=["torch-cuda"], depends=[("acme/base", 1)])
    hub.make_repo("acme/relu", variants={"torch-cpu": {"metadata.json": "no metadata"}})
    with warned("1 of its 2 builds cannot be loaded: torch-cpu"):
        assert lock(project).exit_code == 0
    assert list(pins(project)) == ["acme/base version 1", "acme/relu version 1"]


def test_an_empty_table_is_locked_as_nothing(hub: TestHub, lock: Run, project: Path) -> None:
    asks(project)
    assert lock(project).exit_code == 0
    assert (project / "kernels.lock").read_bytes() == b"[]"
    assert hub.requests == []


# What stays


def test_what_is_locked_stays_until_an_upgrade_is_asked_for(hub: TestHub, lock: Run, project: Path) -> None:
    for name in ("base", "relu", "norm"):
        hub.make_repo(f"acme/{name}", depends=[("acme/base", 1)] if name == "relu" else [])
    asks(project, '"acme/relu" = 1', '"acme/norm" = 1')
    lock(project)
    first = pins(project)
    for name in ("base", "relu", "norm"):
        hub.make_repo(f"acme/{name}", depends=[("acme/base", 1)] if name == "relu" else [], seed="newer")

    hub.clear()
    done = lock(project)
    assert done.stdout == f"{project / 'kernels.lock'} matches the project: 3 kernels. Nothing was written.\n"
    assert pins(project) == first
    assert hub.requests == []

    assert lock(project, "--upgrade-repo", "acme/base").exit_code == 0
    assert pins(project) == first | {"acme/base version 1": hub.commit("acme/base")}

    done = lock(project, "--upgrade")
    assert pins(project) == {f"acme/{name} version 1": hub.commit(f"acme/{name}") for name in ("base", "norm", "relu")}
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:3]] == [
        ["changed", "acme/norm"],
        ["changed", "acme/relu"],
    ]


def test_what_nobody_needs_any_more_goes_and_what_is_new_comes(hub: TestHub, lock: Run, project: Path) -> None:
    hub.make_repo("acme/base")
    hub.make_repo("acme/relu", depends=[("acme/base", 1)])
    hub.make_repo("acme/norm")
    lock(project)
    asks(project, '"acme/norm" = 1')
    assert lock(project).exit_code == 0
    assert list(pins(project)) == ["acme/norm version 1"]


def test_a_file_that_does_not_change_is_not_touched(hub: TestHub, lock: Run, project: Path) -> None:
    hub.make_repo()
    lock(project, "--hashes")
    file = project / "kernels.lock"
    # As git may have checked it out.
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n") + b"\r\n")
    for path in (file, hashes_path(file)):
        os.utime(path, (1_000_000, 1_000_000))
    for options in ([], ["--upgrade"], ["--hashes"], ["--check"]):
        assert "matches the project" in lock(project, *options).stdout
    assert [path.stat().st_mtime for path in (file, hashes_path(file))] == [1_000_000, 1_000_000]


def test_an_older_lock_keeps_its_commits_and_hashes_in_todays_format(hub: TestHub, lock: Run, project: Path) -> None:
    hub.make_repo()
    commit = hub.commit()
    lock(project)  # so that the cache has the commit, which the Hub loses
    hub.make_repo(seed="newer")
    variants = {"torch-cpu": {"hash": OLD_HASH, "hash_type": "git_lfs_concat"}}
    older = [{"repo_id": "acme/relu", "sha": commit, "variants": variants}]
    (project / "kernels.lock").write_text(json.dumps(older))
    assert lock(project, "--check").exit_code == 1
    done = lock(project)
    assert done.exit_code == 0, done.stderr
    assert "in the current format" in done.stdout
    lock_now = Lock.read(project / "kernels.lock")
    assert (lock_now.older, pins(project)) == (False, {"acme/relu version 1": commit})
    assert lock_now.hashes["acme/relu", commit]["torch-cpu"].value == OLD_HASH
    assert "Nothing was written" in lock(project).stdout


def test_an_older_locks_commit_of_another_version_is_not_kept(hub: TestHub, lock: Run, project: Path) -> None:
    hub.make_repo()
    hub.make_repo(version=2)
    (project / "kernels.lock").write_text(json.dumps([{"repo_id": "acme/relu", "sha": hub.commit()}]))
    asks(project, '"acme/relu" = 2')
    done = lock(project)
    assert (done.exit_code, pins(project)) == (0, {"acme/relu version 2": hub.commit(revision="v2")})


def test_another_file_than_the_projects_is_locked(hub: TestHub, lock: Run, project: Path, tmp_path: Path) -> None:
    hub.make_repo()
    file = tmp_path / "locks" / "gpu.lock"
    assert lock(project, "--lockfile", file, "--hashes").exit_code == 0
    assert files(file.parent) == {"gpu.lock", "gpu.hashes.json"}
    assert files(project) == {"pyproject.toml"}


def test_a_link_to_a_lock_of_the_project_stays_one(hub: TestHub, lock: Run, project: Path) -> None:
    hub.make_repo()
    (project / "shared.lock").write_bytes(b"[]")
    (project / "kernels.lock").symlink_to("shared.lock")
    assert lock(project).exit_code == 0
    assert (project / "kernels.lock").is_symlink()
    assert list(pins(project)) == ["acme/relu version 1"]


# Check


def test_check_shows_the_difference_writes_nothing_and_ends_with_1(hub: TestHub, lock: Run, project: Path) -> None:
    for name in ("base", "norm", "relu"):
        hub.make_repo(f"acme/{name}")
    asks(project, '"acme/relu" = 1', '"acme/base" = 1')
    lock(project)
    before = (project / "kernels.lock").read_bytes()
    hub.make_repo("acme/relu", seed="newer")
    asks(project, '"acme/relu" = 1', '"acme/norm" = 1')
    done = lock(project, "--check", "--upgrade-repo", "acme/relu")
    assert done.exit_code == 1
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:4]] == [
        ["removed", "acme/base"],
        ["added", "acme/norm"],
        ["changed", "acme/relu"],
    ]
    again = f"kernels lock {project} --upgrade-repo acme/relu"
    assert done.stdout.endswith(f"does not match the project. Update it: {again}\n")
    assert (project / "kernels.lock").read_bytes() == before


def test_check_without_a_lock_would_add_everything(hub: TestHub, lock: Run, project: Path) -> None:
    hub.make_repo()
    done = lock(project, "--check", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout) == {
        "lockfile": str(project / "kernels.lock"),
        "changed": True,
        "written": False,
        "changes": [{"kind": "added", "what": "acme/relu version 1", "before": None, "after": hub.commit()}],
        "kernels": [{"repo_id": "acme/relu", "version": 1, "revision": None, "commit": hub.commit()}],
    }
    assert files(project) == {"pyproject.toml"}


def test_a_lock_that_matches_is_checked_without_a_request_also_offline(
    hub: TestHub, lock: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/base", variants=["torch-cpu", "torch-cuda"])
    hub.make_repo(variants=["torch-cpu", "torch-cuda"], depends=[("acme/base", 1)])
    lock(project, "--hashes")
    hub.clear()
    assert lock(project, "--check", "--hashes").exit_code == 0
    assert hub.requests == []
    hub.down()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert lock(project, "--check").exit_code == 0


def test_on_another_machine_a_check_asks_once_whether_the_branches_lead_to_the_commits(
    hub: TestHub, lock: Run, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo(variants=["torch-cpu", "torch-cuda"])
    lock(project)
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / "other"))
    hub.clear()
    assert lock(project, "--check").exit_code == 0
    assert (hub.count("/refs$"), hub.count("/overview$"), hub.count("/tree/"), hub.count("/resolve/")) == (1, 1, 1, 2)


# Hashes


def test_hashes_of_every_build_are_those_of_its_files(hub: TestHub, lock: Run, project: Path) -> None:
    hub.make_repo("acme/base", variants=["torch-cpu"], digest=True)
    hub.make_repo(variants=["torch-cpu", "torch-cuda"], depends=[("acme/base", 1)])
    done = lock(project, "--hashes")
    assert done.exit_code == 0, done.stderr
    hashes = Lock.read(project / "kernels.lock").hashes
    assert {key: dict(variants) for key, variants in hashes.items()} == {
        (repo_id, hub.commit(repo_id)): {
            path.name: BuildContent(path).pinned_hash("sha256sum")
            for path in sorted((hub.root / repo_id / "v1" / "build").iterdir())
        }
        for repo_id in ("acme/base", "acme/relu")
    }


def test_a_file_of_hashes_is_kept_in_step(hub: TestHub, lock: Run, project: Path) -> None:
    hub.make_repo()
    lock(project, "--hashes")
    hub.make_repo(seed="newer")
    assert lock(project, "--upgrade").exit_code == 0
    assert list(Lock.read(project / "kernels.lock").hashes) == [("acme/relu", hub.commit())]
    hashes_path(project / "kernels.lock").write_text('{"format": 1, "kernels": []}')
    done = lock(project, "--check")
    assert (done.exit_code, "added" in done.stdout, "1 build" in done.stdout) == (1, True, True)


def test_a_hash_that_is_not_that_of_what_is_listed_is_reported_and_stays_until_it_is_told_to_go(
    hub: TestHub, lock: Run, project: Path
) -> None:
    hub.make_repo()
    lock(project, "--hashes")
    beside = hashes_path(project / "kernels.lock")
    right = beside.read_bytes()
    [variant] = json.loads(right)["kernels"][0]["variants"].values()
    wrong = right.replace(variant["hash"].encode(), OLD_HASH.encode())
    beside.write_bytes(wrong)
    assert "Nothing was written" in lock(project).stdout
    done = lock(project, "--check", "--hashes")
    assert done.exit_code == 1
    assert done.stdout.splitlines()[1].split() == [
        *f"differs hash of acme/relu at {hub.commit()[:12]}, torch-cpu".split(),
        OLD_HASH.removeprefix("sha256-")[:12],
        variant["hash"].removeprefix("sha256-")[:12],
    ]
    assert f"kernels lock {project} --rehash" in done.stdout
    for options in (["--hashes"], ["--upgrade"], ["--upgrade-repo", "acme/relu"]):
        assert "Nothing was written. To accept what is listed now: kernels lock --rehash" in failed(
            lock(project, *options)
        )
    assert beside.read_bytes() == wrong
    assert lock(project, "--rehash").exit_code == 0
    assert beside.read_bytes() == right
    assert lock(project, "--check", "--hashes").exit_code == 0


@pytest.mark.parametrize(
    "content", ["<<<<<<< HEAD", "[]", '{"format": 2, "kernels": []}'], ids=["merge", "list", "format"]
)
def test_a_broken_file_of_hashes_is_made_anew_as_its_error_says(
    hub: TestHub, lock: Run, project: Path, content: str
) -> None:
    hub.make_repo()
    lock(project, "--hashes")
    beside = hashes_path(project / "kernels.lock")
    right = beside.read_bytes()
    beside.write_text(content)
    assert "Lock again: kernels lock --hashes" in failed(lock(project))
    assert lock(project, "--check", "--hashes").exit_code == 1
    assert beside.read_text() == content
    done = lock(project, "--hashes")
    assert done.stdout.endswith(f"Pinned the hashes of 1 kernel in {beside}\n"), done.stderr
    assert beside.read_bytes() == right


def test_hashes_of_builds_that_a_mirror_does_not_carry_are_kept(
    hub: TestHub, lock: Run, kernels: Run, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo(variants=["torch-cpu", "torch-cuda"])
    lock(project, "--hashes")
    before = hashes_path(project / "kernels.lock").read_bytes()
    carried = tmp_path / "carried"
    done = kernels("download", project, "--target", "torch2.9-cpu-x86_64-linux", "--to", carried)
    assert done.exit_code == 0, done.stderr
    monkeypatch.setenv("KERNELS_HUB", str(carried))
    assert len(list(carried.glob("archives/*/*"))) == 1
    for options in ([], ["--hashes"], ["--upgrade"], ["--rehash"]):
        assert "matches the project" in lock(project, *options).stdout
    assert hashes_path(project / "kernels.lock").read_bytes() == before


# Where, and told how


def test_the_command_that_a_check_names_is_the_one_that_mends_it(
    hub: TestHub, lock: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo()
    monkeypatch.chdir(project)
    options = ["--hashes", "--lockfile", "my gpu.lock", "--trust-remote-code"]
    [*_, said] = lock("--check", *options).stdout.splitlines()
    again = "kernels lock --hashes --lockfile 'my gpu.lock' --trust-remote-code"
    assert said == f"my gpu.lock does not match the project. Update it: {again}"
    assert lock(*shlex.split(again)[2:]).exit_code == 0
    assert lock("--check", *options).exit_code == 0
    (project / "my gpu.hashes.json").unlink()
    [*_, said] = lock("--check", *options).stdout.splitlines()
    assert said.startswith("my gpu.hashes.json does not match the project.")


def test_below_a_project_the_project_is_meant(
    hub: TestHub, lock: Run, kernels: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo()
    below = project / "src" / "model"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert lock().exit_code == 0
    assert pins(project) == {"acme/relu version 1": hub.commit()}
    assert "matches the project" in lock("--check").stdout
    assert files(below) == set()
    done = kernels("download", "--target", "torch2.9-cpu-x86_64-linux")
    assert (done.exit_code, "acme/relu" in done.stdout) == (0, True), done.stderr


# What cannot be locked


def failed(done: Any) -> str:
    assert done.exit_code == 1
    said = [line for line in done.stderr.splitlines() if not line.startswith("Warning: ")]
    assert [line.startswith("Error: ") for line in said] == [True]
    assert done.stdout == ""
    return str(done.stderr)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["", '"acme/rellu" = 1'], "pyproject.toml: "),
        (['"acme/rellu" = 1'], "has no repository acme/rellu"),
        (['"acme" = 1'], "`repo_id` is 'acme'"),
        (['"acme/relu" = 7'], "acme/relu has no version 7; it has 1"),
        (['"acme/relu" = { revision = "dev" }'], "no branch, tag or commit 'dev'"),
        (['"acme/relu" = { revision = "eb6132c" }'], "A commit needs all of its 40 digits."),
        (['"acme/relu" = "1"'], "`version` is '1' (str)"),
    ],
    ids=["file", "typo", "no repository", "version", "revision", "shortened", "type"],
)
def test_what_is_wrong_with_the_table_is_one_line_and_changes_nothing(
    hub: TestHub, lock: Run, project: Path, lines: list[str], said: str
) -> None:
    hub.make_repo()
    lock(project)
    before = (project / "kernels.lock").read_bytes()
    asks(project, *lines)
    assert said in failed(lock(project))
    assert (project / "kernels.lock").read_bytes() == before
    assert files(project) == {"pyproject.toml", "kernels.lock"}


def test_a_folder_that_is_no_project_is_one_line(lock: Run, tmp_path: Path, isolated_env: Path) -> None:
    assert "is no project" in failed(lock(tmp_path))
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    assert "no table [tool.kernels.dependencies]" in failed(lock(tmp_path))


@pytest.mark.parametrize("content", [b"<<<<<<< HEAD\n[]", b"[1]"], ids=["merge", "no lock"])
def test_a_broken_lock_is_left_alone_until_everything_is_asked_for_anew(
    hub: TestHub, lock: Run, project: Path, content: bytes
) -> None:
    hub.make_repo()
    (project / "kernels.lock").write_bytes(content)
    assert "kernels lock --upgrade" in failed(lock(project))
    assert (project / "kernels.lock").read_bytes() == content
    assert lock(project, "--upgrade").exit_code == 0
    assert list(pins(project)) == ["acme/relu version 1"]


def test_a_commit_that_is_gone_is_named_with_the_command_that_helps(hub: TestHub, lock: Run, project: Path) -> None:
    hub.make_repo()
    entry = {"dependency": {"repo-id": "acme/relu", "version": 1}, "lock": {"commit": "f" * 40}}
    (project / "kernels.lock").write_text(json.dumps([entry]))
    for options in ([], ["--check"]):
        message = failed(lock(project, *options))
        assert f"pins acme/relu to commit {'f' * 12}." in message
        assert "kernels lock --upgrade-repo acme/relu" in message
    assert lock(project, "--upgrade-repo", "acme/relu").exit_code == 0
    assert pins(project) == {"acme/relu version 1": hub.commit()}


def test_an_upgrade_of_what_nobody_needs_is_an_error(hub: TestHub, lock: Run, project: Path) -> None:
    hub.make_repo()
    assert "acme/norm cannot be upgraded" in failed(lock(project, "--upgrade-repo", "acme/norm"))
    assert "`repo_id` is 'norm'" in failed(lock(project, "--upgrade-repo", "norm"))
    assert files(project) == {"pyproject.toml"}


@pytest.mark.parametrize(
    "relu", [{"depends": [("stranger/base", 1)]}, {"variants": [], "redirect": "stranger/base"}], ids=["needs", "moved"]
)
def test_an_untrusted_publisher_is_not_locked_unless_one_asks_for_it(
    hub: TestHub, lock: Run, project: Path, relu: dict[str, Any]
) -> None:
    hub.make_repo("stranger/base")
    hub.make_repo(**relu)
    assert "'stranger' is not one that" in failed(lock(project))
    assert files(project) == {"pyproject.toml"}
    assert hub.count("stranger/base/resolve") == 0
    assert lock(project, "--trust-remote-code").exit_code == 0
    assert len(pins(project)) == 2


@pytest.mark.parametrize("locked", [True, False])
def test_why_nothing_can_be_asked_is_said(
    hub: TestHub, lock: Run, project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, locked: bool
) -> None:
    hub.make_repo()
    if locked:
        lock(project)
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / "another"))
    hub.down()
    assert "Connection refused" in failed(lock(project, "--check"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE" in failed(lock(project, "--check"))


@pytest.mark.parametrize("options", [["--upgrade"], ["--upgrade-repo", "acme/relu"]], ids=lambda it: it[-1])
def test_an_upgrade_without_the_hub_is_an_error_whatever_the_cache_knows(
    hub: TestHub, lock: Run, project: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    hub.make_repo()
    lock(project)
    first = pins(project)
    hub.make_repo(seed="newer")
    hub.down()
    assert "did not answer" in failed(lock(project, *options))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "was not asked (HF_HUB_OFFLINE=1)" in failed(lock(project, *options))
    assert pins(project) == first


def test_dependencies_in_a_circle_are_shown(hub: TestHub, lock: Run, project: Path) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu"], depends=[("acme/base", 1)])
    hub.make_repo("acme/base", variants=["torch-cuda"], depends=[("acme/relu", 1)])
    assert "lead in a circle: acme/relu -> acme/base -> acme/relu" in failed(lock(project))


def test_metadata_that_cannot_be_had_is_an_error_and_no_shorter_lock(
    hub: TestHub, lock: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo("acme/base")
    hub.make_repo(variants=["torch-cpu", "torch-cuda"], depends=[("acme/base", 1)])
    hub.fail("torch-cuda/metadata.json")
    assert "503" in failed(lock(project))
    assert files(project) == {"pyproject.toml"}
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "metadata.json" in failed(lock(project))


def test_a_folder_in_place_of_a_hub_has_nothing_to_pin(
    hub: TestHub, lock: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.make_repo()
    monkeypatch.setenv("KERNELS_HUB", str(hub.root))
    monkeypatch.setenv("KERNELS_TRUSTED_PUBLISHERS", "acme")
    assert "has no commits" in failed(lock(project))


def test_a_lock_whose_folder_is_a_file_is_one_line(hub: TestHub, lock: Run, project: Path) -> None:
    hub.make_repo()
    assert "Cannot write" in failed(lock(project, "--lockfile", project / "pyproject.toml" / "kernels.lock"))


# Renamed on the Hub


def test_a_renamed_repository_is_locked_under_both_names(hub: TestHub, lock: Run, project: Path) -> None:
    hub.make_repo("acme/new")
    answer = {"Location": f"{hub.url}/api/kernels/acme/new/refs"}
    hub.fail("/api/kernels/acme/relu/refs$", status=307, headers=answer)
    done = lock(project)
    assert done.exit_code == 0, done.stderr
    commit = hub.commit("acme/new")
    assert pins(project) == {"acme/new version 1": commit, "acme/relu version 1": commit}


def test_the_former_name_of_a_repository_is_trusted_or_refused_too(hub: TestHub, lock: Run, project: Path) -> None:
    asks(project, '"stranger/relu" = 1')
    hub.make_repo("acme/new")
    answer = {"Location": f"{hub.url}/api/kernels/acme/new/refs"}
    hub.fail("/api/kernels/stranger/relu/refs$", status=307, headers=answer)
    assert "'stranger' is not one that" in failed(lock(project))
    assert lock(project, "--trust-remote-code").exit_code == 0


def test_a_repository_keeps_its_commit_when_it_is_renamed(hub: TestHub, lock: Run, project: Path) -> None:
    hub.make_repo("acme/new")
    commit = hub.commit("acme/new")
    entry = {"dependency": {"repo-id": "acme/relu", "version": 1}, "lock": {"commit": commit}}
    (project / "kernels.lock").write_text(json.dumps([entry]))
    answer = {"Location": f"{hub.url}/api/kernels/acme/new/tree/{commit}?recursive=true&expand=false"}
    hub.fail("/api/kernels/acme/relu/tree/", status=307, headers=answer)
    done = lock(project)
    assert done.exit_code == 0, done.stderr
    assert pins(project) == {"acme/new version 1": commit, "acme/relu version 1": commit}
    assert hub.count("/acme/new/refs$") == 1  # whether a branch leads to it
    assert Requirement("acme/relu", version=1) in {pin.requirement for pin in Lock.read(project / "kernels.lock").pins}
