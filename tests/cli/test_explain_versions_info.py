"""`kernels explain`, `versions` and `info` over a Hub, a folder and a path."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub, make_repo

HOPPER = "torch2.9-cu128-x86_64-linux+sm_90"
TURING = "torch2.9-cu128-x86_64-linux+sm_75"
COMPILED = "torch29-cxx11-cu126-x86_64-linux"
STABLE = "torch-stable-abi28-cu126-x86_64-linux"


@pytest.fixture
def relu(hub: TestHub) -> TestHub:
    """`acme/relu`: version 1 for CPUs, version 2 for CUDA, compiled for two capabilities, version 3 moved."""
    hub.make_repo("acme/relu", version=1, variants=["torch-cpu"])
    hub.make_repo(
        "acme/relu",
        version=2,
        variants=[COMPILED, STABLE],
        archs=["8.0", "9.0a"],
        depends=[("acme/base", 1), ("acme/other", "main")],
        python_depends=["einops"],
        metadata={"upstream": "https://example.org/relu", "kernels-minver": "0.17.0"},
    )
    hub.make_repo("acme/relu", version=2, variants=["torch-cuda", "torch29-cpu-x-y-z"])
    hub.make_repo("acme/relu", version=3, variants=[], redirect="acme/gelu")
    hub.make_repo("acme/gelu", version=3, variants=["torch-universal"])
    return hub


def table(text: str) -> dict[str, str]:
    """The lines of a table by their first word."""
    return {line.split()[0]: line for line in text.splitlines() if line.strip()}


# explain


@pytest.mark.filterwarnings("ignore:acme/relu version 2 is used")
@pytest.mark.parametrize(
    ("target", "chosen", "reason"),
    [(HOPPER, STABLE, "the best of those that suit"), (TURING, "torch-cuda", "the only one that suits")],
)
def test_explain_shows_the_verdict_on_every_build_for_another_machine(
    relu: TestHub, kernels: Callable[..., Any], target: str, chosen: str, reason: str
) -> None:
    result = kernels("explain", "acme/relu", "--version", 2, "--target", target)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"acme/relu version 2 (commit {relu.commit('acme/relu', 'v2')[:12]}) for {target}")
    lines = table(result.stdout)
    assert f"chosen    {reason}" in lines[chosen]
    assert "rejected" in lines["torch29-cpu-x-y-z"]
    assert all(lines[variant].endswith("B") for variant in (COMPILED, STABLE, "torch-cuda"))
    if target == TURING:
        assert "rejected  capability 7.5" in lines[COMPILED]
    else:
        assert f"accepted  suits, but {STABLE} is preferred" in lines[COMPILED]


@pytest.mark.filterwarnings("ignore:acme/relu version 2 is used")
def test_explain_for_programs_says_the_same(relu: TestHub, kernels: Callable[..., Any], tmp_path: Path) -> None:
    from kernels.target import Target

    described = tmp_path / "target.json"
    described.write_bytes(Target.parse(HOPPER).to_json())
    said = json.loads(kernels("explain", "acme/relu", "--version", 2, "--target", described, "--json").stdout)
    assert said["repo_id"] == "acme/relu"
    assert said["revision"] == "v2"
    assert said["commit"] == relu.commit("acme/relu", "v2")
    assert said["target"] == HOPPER
    assert (said["backend"], said["device"], said["chosen"]) == ("cuda", 0, STABLE)
    sizes = {row["variant"]: row["size"] for row in said["variants"]}
    folder = relu.root / "acme" / "relu" / "v2" / "build"
    assert sizes == {
        path.name: sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) for path in folder.iterdir()
    }
    assert [row["verdict"] for row in said["variants"]].count("chosen") == 1


@pytest.mark.filterwarnings("ignore:acme/relu version 2 is used")
def test_explain_says_which_devices_the_chosen_build_leaves_out(relu: TestHub, kernels: Callable[..., Any]) -> None:
    shown = kernels("explain", "acme/relu", "--version", 2, "--target", f"{HOPPER}+sm_75").stdout
    assert "does not cover device 1 (7.5)" in table(shown)[STABLE]


@pytest.mark.filterwarnings("ignore:acme/relu version 1 is used")
def test_explain_says_when_nothing_suits(relu: TestHub, kernels: Callable[..., Any]) -> None:
    relu.list_files("acme/empty", ["README.md"])
    result = kernels("explain", "acme/relu", "--version", 1, "--target", HOPPER)
    assert result.exit_code == 0
    assert "No build suits." in result.stdout
    assert "rejected" in table(result.stdout)["torch-cpu"]
    assert "It has no builds." in kernels("explain", "acme/empty", "--version", 1).stdout


@pytest.mark.filterwarnings("ignore:acme/relu version 1 is used")
def test_explain_takes_a_revision_and_a_backend(relu: TestHub, kernels: Callable[..., Any]) -> None:
    commit = relu.commit("acme/relu", "v1")
    shown = kernels("explain", "acme/relu", "--revision", commit, "--backend", "cpu")
    assert "chosen" in table(shown.stdout)["torch-cpu"]
    refused = kernels("explain", "acme/relu", "--version", 1, "--revision", commit)
    assert (refused.exit_code, "not both" in refused.stderr) == (1, True)
    refused = kernels("explain", "acme/relu", "--version", 1, "--backend", "abacus")
    assert (refused.exit_code, "'abacus'" in refused.stderr) == (1, True)


# versions


@pytest.mark.filterwarnings("ignore:acme/relu has moved")
def test_versions_lists_commit_date_builds_and_what_fits(relu: TestHub, kernels: Callable[..., Any]) -> None:
    result = kernels("versions", "acme/relu")
    assert result.exit_code == 0
    lines = table(result.stdout)
    assert lines["1"].split()[1] == relu.commit("acme/relu", "v1")[:12]
    assert lines["1"].split()[3:] == ["1", "torch-cpu"]
    assert lines["2"].split()[3:] == ["4", "none"]
    assert lines["3"].split()[3:] == ["1", "torch-universal", "acme/gelu"]
    assert list(lines)[-3:] == ["3", "2", "1"]


@pytest.mark.filterwarnings("ignore:acme/relu has moved")
def test_versions_for_programs_has_everything_in_full(relu: TestHub, kernels: Callable[..., Any]) -> None:
    newest, second, oldest = json.loads(kernels("versions", "acme/relu", "--json").stdout)
    assert newest["moved_to"] == "acme/gelu"
    assert second["builds"] == sorted([COMPILED, STABLE, "torch-cuda", "torch29-cpu-x-y-z"])
    assert second["fits"] is None
    assert (oldest["version"], oldest["branch"], oldest["commit"]) == (1, "v1", relu.commit("acme/relu", "v1"))
    assert oldest["date"].startswith("20")


def test_versions_of_a_repository_without_any_says_so(hub: TestHub, kernels: Callable[..., Any]) -> None:
    hub.make_repo("acme/old", version=None, revision="main")
    assert "acme/old has no versions" in kernels("versions", "acme/old").stdout
    assert kernels("versions", "acme/old", "--json").stdout == "[]\n"


def test_versions_shows_a_broken_version_beside_the_good_ones(hub: TestHub, kernels: Callable[..., Any]) -> None:
    hub.make_repo("acme/relu", version=1)
    hub.make_repo("acme/relu", version=2, variants=[], status="kind = 'unheard of'")
    lines = table(kernels("versions", "acme/relu").stdout)
    assert "torch-cpu" in lines["1"]
    assert "unheard of" in lines["2"]


# info


@pytest.mark.filterwarnings("ignore:acme/relu version 2 is used")
def test_info_describes_a_repository(relu: TestHub, kernels: Callable[..., Any]) -> None:
    result = kernels("info", "acme/relu", "--version", 2)
    assert result.exit_code == 0
    for line in (
        "Repository       acme/relu",
        "Revision         v2",
        "License          Apache-2.0",
        "Upstream         https://example.org/relu",
        "Minimum client   0.17.0",
        "Python packages  einops",
        "Kernels          acme/base version 1",
        "                 acme/other at main",
        "Backends         cpu, cuda",
        "Torch            2.8+, 2.9",
        "Architectures    cuda: 8.0, 9.0a",
        "Fits here        none (`kernels explain` says why)",
    ):
        assert f"{line} " in result.stdout + " ", line
    builds = table(result.stdout)
    assert "2.8+" in builds[STABLE]
    assert " no " in builds[STABLE]


@pytest.mark.filterwarnings("ignore:acme/relu version 2 is used")
def test_info_for_programs_has_the_keys_other_clients_have_and_more(relu: TestHub, kernels: Callable[..., Any]) -> None:
    said = json.loads(kernels("info", "acme/relu", "--revision", "v2", "--json").stdout)
    assert {key: said[key] for key in list(said)[:10]} == {
        "repo_id": "acme/relu",
        "revision": "v2",
        "name": "relu",
        "version": 2,
        "kernels_minver": "0.17.0",
        "license": "Apache-2.0",
        "upstream": "https://example.org/relu",
        "source": None,
        "python_depends": ["einops"],
        "backends": ["cpu", "cuda"],
    }
    assert said["commit"] == relu.commit("acme/relu", "v2")
    assert said["kernel_depends"][0] == {"repo_id": "acme/base", "version": 1, "revision": None}
    assert said["torch_versions"] == ["2.8+", "2.9"]
    assert said["archs"] == {"cuda": ["8.0", "9.0a"]}
    assert said["size"] == sum(build["size"] for build in said["builds"])
    assert {build["variant"]: build["fits"] for build in said["builds"]}[COMPILED] is False


def test_info_describes_a_folder(tmp_path: Path, kernels: Callable[..., Any], isolated_env: Path) -> None:
    folder = make_repo(tmp_path, "acme/relu", variants=["torch-cpu", "torch-cuda"])
    said = json.loads(kernels("info", folder, "--json").stdout)
    assert (said["path"], "repo_id" in said, "revision" in said) == (str(folder), False, False)
    assert (said["backends"], said["fits"]) == (["cpu", "cuda"], "torch-cpu")
    shown = kernels("info", folder).stdout
    assert f"Path             {folder}" in shown
    assert "chosen" in table(shown)["torch-cpu"]


def test_info_of_a_build_without_valid_metadata_shows_what_can_be_known(
    tmp_path: Path, kernels: Callable[..., Any], isolated_env: Path
) -> None:
    folder = make_repo(tmp_path, "acme/relu", variants={"torch-cpu": {"metadata.json": "[]"}, "spoon-cpu": {}})
    said = json.loads(kernels("info", folder, "--json").stdout)
    assert said["name"] == "relu"
    reasons = {build["variant"]: build["reason"] for build in said["builds"]}
    assert "not valid metadata" in reasons["torch-cpu"]
    assert "not a variant's name" in reasons["spoon-cpu"]
    assert said["fits"] is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--version", "1"], "`version` 1 of"),
        (["--revision", "main"], "`revision` 'main' of"),
    ],
)
def test_a_folder_has_no_versions(tmp_path: Path, kernels: Callable[..., Any], arguments: list[str], says: str) -> None:
    result = kernels("info", make_repo(tmp_path, "acme/relu"), *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert says in result.stderr


@pytest.mark.parametrize(("kernel", "says"), [("./absent", "absent"), ("acme/absent", "acme/absent")])
def test_what_does_not_exist_is_one_line(hub: TestHub, kernels: Callable[..., Any], kernel: str, says: str) -> None:
    result = kernels("info", kernel)
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert says in result.stderr


# as processes


def test_warnings_go_to_standard_error_and_json_stands_alone(
    relu: TestHub, kernels_process: Callable[..., Any]
) -> None:
    done = kernels_process("explain", "acme/relu", "--version", 1, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["revision"] == "v1"
    assert done.stderr == "Warning: acme/relu version 1 is used; version 3 is the newest.\n"


def test_a_folder_stands_in_for_a_hub(tmp_path: Path, kernels_process: Callable[..., Any], isolated_env: Path) -> None:
    make_repo(tmp_path / "hub", "acme/relu", version=1)
    make_repo(tmp_path / "hub", "acme/relu", version=2)
    done = kernels_process("versions", "acme/relu", "--json", KERNELS_HUB=str(tmp_path / "hub"))
    assert [(each["version"], each["commit"], each["fits"]) for each in json.loads(done.stdout)] == [
        (2, "v2", "torch-cpu"),
        (1, "v1", "torch-cpu"),
    ]
