"""`kernels explain`, `versions` and `info` over a Hub, a folder and a path."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub, make_repo

from kernels import cli, get_kernel
from kernels.errors import IncompatibleClient, MissingPythonDependency, UnsupportedPythonDependency
from kernels.models.lockfile import Lock, Pin
from kernels.models.requirement import Requirement

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


def test_explain_is_a_check_for_scripts(relu: TestHub, kernels: Callable[..., Any]) -> None:
    fits, fits_not = (("explain", "acme/relu", "--version", version, "--target", HOPPER) for version in (2, 1))
    assert [kernels(*fits).exit_code, kernels(*fits, "--check").exit_code] == [0, 0]
    assert [kernels(*fits_not).exit_code, kernels(*fits_not, "--check").exit_code] == [0, 1]
    assert kernels(*fits_not, "--check").stdout == kernels(*fits_not).stdout
    assert json.loads(kernels(*fits_not, "--check", "--json").stdout)["chosen"] is None


def test_what_a_carried_folder_lacks_is_said_with_the_way_to_add_it(
    hub: TestHub, kernels: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore")
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-cuda"])
    commit, carried = hub.commit(), tmp_path / "carried"
    cpu = ("--target", "torch2.9-cpu-x86_64-linux")
    assert kernels("download", "acme/relu", "--version", 1, *cpu, "--to", carried).exit_code == 0
    monkeypatch.setenv("KERNELS_HUB", str(carried))
    result = kernels("explain", "acme/relu", "--version", 1, "--target", HOPPER)
    assert result.stdout.splitlines()[-2:] == [
        "The mirror's origin has a build that suits by its name.",
        "To add it, where its origin can be reached: "
        f"kernels download acme/relu --revision {commit} --target '{HOPPER}' --to DIR",
    ]
    (tmp_path / "kernels.lock").write_bytes(Lock((Pin(Requirement("acme/relu", version=1), commit),)).to_bytes())
    monkeypatch.setenv("KERNELS_LOCKFILE", str(tmp_path / "kernels.lock"))
    result = kernels("download", "acme/relu", "--target", HOPPER)
    assert result.exit_code == 1
    assert result.stderr.rstrip().endswith(
        "To add it, in the project, and where its origin can be reached: "
        f"kernels download acme/relu --target '{HOPPER}' --to DIR"
    )


def test_explain_takes_a_lockfile(relu: TestHub, kernels: Callable[..., Any], tmp_path: Path) -> None:
    commit = relu.commit("acme/relu", "v2")
    lock = tmp_path / "app.lock"
    lock.write_bytes(Lock((Pin(Requirement("acme/relu", version=2), commit),)).to_bytes())
    found = json.loads(kernels("explain", "acme/relu", "--lockfile", lock, "--target", HOPPER, "--json").stdout)
    assert (found["commit"], found["lock"]) == (commit, str(lock))
    for arguments, says in (
        (["acme/gelu"], f"acme/gelu is not locked: {lock} does not list it"),
        (["acme/relu", "--version", "1"], "pins version 2"),
        (["."], ". is a folder, which no lockfile pins"),
    ):
        result = kernels("explain", *arguments, "--lockfile", lock)
        assert (result.exit_code, says in result.stderr) == (1, True), result.stderr


def test_explain_says_where_get_kernel_would_refuse_the_publisher(hub: TestHub, kernels: Callable[..., Any]) -> None:
    hub.make_repo("acme/relu", variants=["torch-universal"], metadata={"kernels-minver": "0.1.0"})
    trusted = kernels("explain", "acme/relu", "--version", 1, "--check")
    assert (trusted.exit_code, "trust" in trusted.stdout, "would fail" in trusted.stdout) == (0, False, False)
    hub.make_repo("stranger/relu", version=1, variants=["torch-universal"])
    refused = kernels("explain", "stranger/relu", "--version", 1)
    assert refused.exit_code == 0
    assert refused.stdout.splitlines()[-1] == (
        "The publisher or commit is not trusted: get_kernel needs trust_remote_code=['stranger/relu'] to load it."
    )


@pytest.mark.parametrize(
    ("needs", "here", "there"),
    [
        ({"python_depends": ["helion"]}, MissingPythonDependency, False),
        ({"python_depends": ["requests"]}, UnsupportedPythonDependency, True),
        ({"metadata": {"kernels-minver": "99.0.0"}}, IncompatibleClient, False),
    ],
)
def test_explain_says_what_the_chosen_build_needs_in_the_words_of_the_error(
    hub: TestHub, kernels: Callable[..., Any], needs: dict[str, Any], here: type[Exception], there: bool
) -> None:
    hub.make_repo("acme/relu", variants=["torch-universal"], **needs)
    with pytest.raises(here) as caught:
        get_kernel("acme/relu", version=1)
    unmet = str(caught.value).removeprefix("Build torch-universal of acme/relu ")
    this = ("explain", "acme/relu", "--version", 1)
    shown = kernels(*this)
    assert shown.exit_code == 0
    assert "chosen" in table(shown.stdout)["torch-universal"]
    assert shown.stdout.endswith(f"\n\nLoading it would fail: it {unmet}\n")
    said = json.loads(kernels(*this, "--json").stdout)
    assert (said["chosen"], said["unmet"]) == ("torch-universal", unmet)
    assert kernels(*this, "--check").exit_code == 1
    other = kernels(*this, "--target", HOPPER, "--check")
    assert ("Loading it would fail" in other.stdout, other.exit_code) == (there, int(there))


def test_a_folders_builds_are_explained_and_a_folder_has_one_version(
    tmp_path: Path, isolated_env: Path, kernels: Callable[..., Any]
) -> None:
    folder = make_repo(tmp_path, "acme/relu", variants=["torch-cuda", "torch-rocm"])
    result = kernels("explain", folder, "--target", HOPPER)
    assert result.exit_code == 0, result.stderr
    assert table(result.stdout)["torch-cuda"].split()[1] == "chosen"
    for command, option in (("explain", "--version"), ("info", "--version"), ("info", "--revision")):
        refused = kernels(command, folder, option, 1)
        assert (refused.exit_code, "has one version only" in refused.stderr) == (1, True)
    versions = kernels("versions", folder)
    assert (versions.exit_code, f"`kernels info {folder}`" in versions.stderr) == (1, True)


@pytest.mark.parametrize("command", ["info", "check", "benchmark", "explain"])
def test_a_name_that_is_no_folder_and_no_repository_is_said_to_be_neither(
    kernels: Callable[..., Any], command: str
) -> None:
    result = kernels(command, "no-such-folder")
    assert result.exit_code == 1
    assert "There is no folder 'no-such-folder' here, and it is no repository's name" in result.stderr


def test_a_missing_repository_names_the_token_of_the_hub_that_was_asked(
    hub: TestHub, kernels: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    monkeypatch.setenv("KERNELS_HUB", hub.url)
    result = kernels("info", "acme/none")
    assert result.exit_code == 1
    assert "KERNELS_HUB_TOKEN" in result.stderr


@pytest.mark.parametrize(
    ("target", "chosen", "reason"),
    [(HOPPER, STABLE, "the best that fits"), (TURING, "torch-cuda", "the only one that fits")],
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
        assert "rejected  CUDA capability 7.5" in lines[COMPILED]
    else:
        assert f"accepted  fits, but {STABLE} is preferred" in lines[COMPILED]


def test_explain_for_programs_says_the_same(relu: TestHub, kernels: Callable[..., Any], tmp_path: Path) -> None:
    from kernels.resolver.target import Target

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


def test_explain_says_where_a_plugins_backend_comes_from(
    relu: TestHub, kernels: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "npu.json"
    file.write_text('{"npu": {"name": "npu", "device_string": "npu", "kernel_guidance": "Use the cube units."}}')
    command = ("explain", "acme/relu", "--version", 2, "--target", "torch2.9-cann8.2-aarch64-linux")
    assert "Backend cann" not in kernels(*command).stdout
    with monkeypatch.context() as patch:
        patch.setenv("KERNELS_BACKENDS_JSON", str(file))
        assert f"Backend cann: built in; declared in {file}" in kernels(*command).stdout
        origins = json.loads(kernels(*command, "--json").stdout)["backend_origins"]
    assert origins == [{"kind": "built-in", "place": ""}, {"kind": "declared", "place": str(file)}]


def test_explain_says_which_devices_the_chosen_build_leaves_out(relu: TestHub, kernels: Callable[..., Any]) -> None:
    shown = kernels("explain", "acme/relu", "--version", 2, "--target", f"{HOPPER}+sm_75").stdout
    assert "does not cover device 1 (7.5)" in table(shown)[STABLE]


def test_explain_says_when_nothing_suits(relu: TestHub, kernels: Callable[..., Any]) -> None:
    relu.list_files("acme/empty", ["README.md"])
    result = kernels("explain", "acme/relu", "--version", 1, "--target", HOPPER)
    assert result.exit_code == 0
    assert "No build fits." in result.stdout
    assert "rejected" in table(result.stdout)["torch-cpu"]
    assert result.stdout.endswith("\nVersion 2 has a build that suits: version=2.\n")
    machine = "torch2.13-metal-aarch64-darwin26.0"
    assert kernels("explain", "acme/relu", "--version", 1, "--target", machine).stdout.endswith(
        '\nTry the build for cpu with `backend="cpu"` (`--backend cpu`).\n'
    )
    assert "It has no builds." in kernels("explain", "acme/empty", "--version", 1).stdout


def test_what_would_help_is_what_the_error_of_a_download_says(
    hub: TestHub, kernels: Callable[..., Any], tmp_path: Path
) -> None:
    hub.make_repo("acme/relu", variants=["torch213-cxx11-cu126-x86_64-linux"], archs=["8.0", "9.0"])
    helps, target = "Try an environment with cuda 12.6.", "torch2.13-cu130-x86_64-linux+sm_90"
    shown = kernels("explain", "acme/relu", "--version", 1, "--target", target)
    assert shown.stdout.splitlines()[-1] == helps
    refused = kernels("download", "acme/relu", "--version", 1, "--target", target, "--to", tmp_path / "carried")
    assert refused.stderr.splitlines()[-1].endswith(helps)


def test_explain_takes_a_revision_and_a_backend(relu: TestHub, kernels: Callable[..., Any]) -> None:
    commit = relu.commit("acme/relu", "v1")
    shown = kernels("explain", "acme/relu", "--revision", commit, "--backend", "cpu")
    assert "chosen" in table(shown.stdout)["torch-cpu"]
    refused = kernels("explain", "acme/relu", "--version", 1, "--revision", commit)
    assert (refused.exit_code, "not both" in refused.stderr) == (1, True)
    refused = kernels("explain", "acme/relu", "--version", 1, "--backend", "abacus")
    assert (refused.exit_code, "'abacus'" in refused.stderr) == (1, True)


@pytest.mark.parametrize("target", ["x" * 5000, "a\0b", "/"])
def test_explain_of_a_target_that_is_neither_a_string_for_one_nor_a_file_says_so(
    kernels: Callable[..., Any], target: str
) -> None:
    result = kernels("explain", "acme/relu", "--target", target)
    assert (result.exit_code, "`target`" in result.stderr) == (1, True)


# versions


def test_versions_lists_commit_date_builds_and_what_fits(relu: TestHub, kernels: Callable[..., Any]) -> None:
    result = kernels("versions", "acme/relu")
    assert result.exit_code == 0
    lines = table(result.stdout)
    assert lines["1"].split()[1] == relu.commit("acme/relu", "v1")[:12]
    assert lines["1"].split()[3:] == ["1", "torch-cpu"]
    assert lines["2"].split()[3:] == ["4", "none"]
    assert lines["3"].split()[3:] == ["1", "torch-universal", "acme/gelu"]
    assert list(lines)[-3:] == ["3", "2", "1"]


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


def test_versions_beyond_the_newest_50_are_counted_and_not_looked_at(hub: TestHub, kernels: Callable[..., Any]) -> None:
    commit = hub.make_repo("acme/relu") and hub.commit("acme/relu")
    many = [{"name": f"v{number}", "targetCommit": commit} for number in range(1, 61)]
    hub.replace("/acme/relu/refs", lambda body: json.dumps({"branches": many, "tags": []}).encode())
    hub.clear()
    title, *_, last = kernels("versions", "acme/relu").stdout.splitlines()
    assert len(hub.requests) < 5 * 50
    assert title == "acme/relu: the newest 50; 10 older versions are not shown"
    assert last.split()[0] == "11"
    said = json.loads(kernels("versions", "acme/relu", "--json").stdout)
    assert [each["version"] for each in said if not each["looked_at"]] == list(range(10, 0, -1))
    assert all(each["commit"] == commit for each in said)


# info


def test_a_universal_build_made_on_an_unknown_backend_is_described(hub: TestHub, kernels: Callable[..., Any]) -> None:
    hub.make_repo("acme/relu", variants=["torch-universal"], metadata={"backend": {"type": "abacus"}})
    for command in (["info", "--version", 1], ["explain", "--version", 1], ["versions"]):
        result = kernels(*command, "acme/relu")
        assert (result.exit_code, result.stderr) == (0, "")
        assert "torch-universal" in result.stdout


def test_a_build_of_very_many_architectures_does_not_fill_the_screen(hub: TestHub, kernels: Callable[..., Any]) -> None:
    archs = [f"{major}.{minor}" for major in range(1, 51) for minor in range(10)]
    hub.make_repo("acme/relu", variants=["torch-cuda"], archs=archs)
    shown = kernels("info", "acme/relu", "--version", 1).stdout
    assert shown.count(" and 460 more") == 2
    assert json.loads(kernels("info", "acme/relu", "--version", 1, "--json").stdout)["archs"]["cuda"] == archs


def test_info_describes_a_repository(relu: TestHub, kernels: Callable[..., Any]) -> None:
    result = kernels("info", "acme/relu", "--version", 2)
    assert result.exit_code == 0
    for line in (
        "Repository: acme/relu",
        "Revision: v2",
        "License: Apache-2.0",
        "Upstream: https://example.org/relu",
        "Minimum client: 0.17.0",
        "Python packages: einops",
        "Kernels: acme/base version 1",
        "  acme/other at main",
        "Backends: cpu, cuda",
        "Torch: 2.8+, 2.9",
        "Architectures: cuda: 8.0, 9.0a",
        "Fits here: none (`kernels explain` says why)",
    ):
        assert line in result.stdout.splitlines(), line
    builds = table(result.stdout)
    assert "2.8+" in builds[STABLE]
    assert " no " in builds[STABLE]


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
    assert f"Path: {folder}" in shown
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


@pytest.mark.parametrize(("kernel", "says"), [("./absent", "absent"), ("acme/absent", "acme/absent")])
def test_what_does_not_exist_is_one_line(hub: TestHub, kernels: Callable[..., Any], kernel: str, says: str) -> None:
    result = kernels("info", kernel)
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert says in result.stderr


# as processes


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}


def test_text_that_the_locale_lacks_is_shown_as_well_as_can_be(
    hub: TestHub, kernels_process: Callable[..., Any]
) -> None:
    hub.make_repo("acme/relu", variants=["torch-cpu", "torch-\u6838-cpu"], metadata={"license": "\u6838 \U0001f600"})
    shown = kernels_process("info", "acme/relu", "--version", 1, **ASCII)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "License: ? ?" in shown.stdout.splitlines()
    assert "torch-?-cpu" in shown.stdout
    said = kernels_process("info", "acme/relu", "--version", 1, "--json", **ASCII)
    assert (said.returncode, said.stderr) == (0, "")
    assert json.loads(said.stdout)["license"] == "\u6838 \U0001f600"


@pytest.mark.parametrize("arguments", [["backends"], ["backends", "--json"]])
def test_a_closed_standard_output_is_a_quiet_failure(isolated_env: Path, arguments: list[str]) -> None:
    command = shlex.join([sys.executable, "-m", "kernels", *arguments])
    env = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(["/bin/sh", "-c", f"{command} >&-"], env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_warning_with_control_characters_does_not_steer_the_terminal() -> None:
    assert cli._format_warning(UserWarning("moved to \x1b[2J\nnext")) == "Warning: moved to \\x1b[2J\nnext\n"


def test_warnings_go_to_standard_error_and_json_stands_alone(
    relu: TestHub, kernels_process: Callable[..., Any]
) -> None:
    done = kernels_process("explain", "acme/relu", "--version", 1, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["revision"] == "v1"
    assert done.stderr == "Warning: acme/relu version 1 is used; version 3 is the newest.\n"


def test_a_folder_replaces_a_hub(
    tmp_path: Path, kernels: Callable[..., Any], isolated_env: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_repo(tmp_path / "hub", "acme/relu", version=1)
    make_repo(tmp_path / "hub", "acme/relu", version=2)
    monkeypatch.setenv("KERNELS_HUB", str(tmp_path / "hub"))
    done = kernels("versions", "acme/relu", "--json")
    assert [(each["version"], each["commit"], each["fits"]) for each in json.loads(done.stdout)] == [
        (2, "v2", "torch-cpu"),
        (1, "v1", "torch-cpu"),
    ]
