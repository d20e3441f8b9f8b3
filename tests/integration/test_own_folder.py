"""An author changes sources: no command takes the builds for those of the sources before they are, nor loses others."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub
from typer.testing import CliRunner
from writable_hub import WritableHub

from kernels.authoring.compile import build_kernel, build_variants
from kernels.authoring.compile.sources.workspace import find_workspace, read_sources
from kernels.authoring.scaffold import new_kernel
from kernels.cli import app
from kernels.errors import RequestError

REPO = "acme/norm"


@pytest.fixture
def kernels(isolated_env: Path) -> Callable[..., Any]:
    def run(*arguments: object) -> Any:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="kernels")

    return run


@pytest.fixture
def hub(writable_hub: WritableHub) -> WritableHub:
    return writable_hub


@pytest.fixture
def kernel(tmp_path: Path, isolated_env: Path) -> Path:
    """A kernel with builds for two backends, one of which this machine lacks, and with a short test."""
    folder = new_kernel("norm", tmp_path / "norm", backends=["cpu", "cuda"], noarch=True, repo_id=REPO)
    _short_test(folder)
    build_kernel(folder, folder)
    return folder


def _short_test(folder: Path) -> None:
    [test] = (folder / "tests").iterdir()
    test.write_text(
        f"from kernels import get_kernel\n\n\ndef test_it():\n    get_kernel({REPO!r}, version=1, backend='cpu')\n"
    )


def _change(folder: Path, name: str = "torch-ext/norm/layers.py", text: str = "# changed\n") -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    with (folder / name).open("a") as file:
        file.write(text)


def _findings(done: Any, step: str) -> dict[str, tuple[str, str]]:
    return {
        each["variant"]: (finding["verdict"], finding["what"])
        for each in json.loads(done.stdout)["variants"]
        for finding in each["findings"]
        if finding["step"] == step
    }


def test_what_the_sources_no_longer_give_is_neither_tried_nor_checked_nor_published(
    kernels: Callable[..., Any], hub: TestHub, kernel: Path
) -> None:
    assert kernels("upload", kernel).exit_code == 0
    head = hub.commit(REPO, "v1")
    assert set(_findings(kernels("check", kernel, "--static", "--json"), "sources").values()) == {
        ("ok", "the build is up to date")
    }
    _change(kernel)
    advice = f"`kernels build {kernel}` rebuilds what this machine can build"

    tried = kernels("test", kernel, "--", "-q")
    assert (tried.exit_code, tried.stdout) == (1, "")
    assert (
        tried.stderr == f"Error: torch-cpu: the sources have changed since this build. {advice}, and so does --build.\n"
    )

    checked = kernels("check", kernel, "--static", "--json")
    assert checked.exit_code == 1
    wrong = ("failed", f"the sources have changed since this build: {advice}")
    assert _findings(checked, "sources") == {"torch-cpu": wrong, "torch-cuda": wrong}

    refused = kernels("upload", kernel)
    assert refused.exit_code == 1
    assert f"torch-cpu, torch-cuda: the sources have changed since this build. {advice}" in refused.stderr
    assert hub.commit(REPO, "v1") == head

    measured = kernels("benchmark", kernel, "--iterations", 1, "--warmup", 0, "--json")
    assert f"torch-cpu: the sources have changed since this build; {advice}" in json.loads(measured.stdout)["notes"]

    assert kernels("test", kernel, "--build", "--", "-q").exit_code == 0
    assert kernels("upload", kernel).exit_code == 0
    assert hub.commit(REPO, "v1") != head


def test_upload_builds_first_where_told_to_or_publishes_what_is_there(
    kernels: Callable[..., Any], hub: TestHub, kernel: Path
) -> None:
    _change(kernel)
    assert kernels("upload", kernel, "--no-check").exit_code == 0
    before = hub.catalog.commit(REPO, "v1").files["build/torch-cpu/layers.py"].source.read_text()
    assert "# changed" not in before
    assert kernels("upload", kernel, "--build").exit_code == 0
    assert "# changed" in hub.catalog.commit(REPO, "v1").files["build/torch-cpu/layers.py"].source.read_text()
    _change(kernel, text="def broken(:\n")
    failed = kernels("upload", kernel, "--build")
    assert failed.exit_code == 1
    assert "torch-ext/norm/layers.py" in failed.stderr
    assert "not valid Python" in failed.stderr


def test_after_a_build_that_failed_the_last_one_is_not_that_of_the_sources(
    kernels: Callable[..., Any], hub: TestHub, kernel: Path
) -> None:
    _change(kernel, text="def broken(:\n")
    assert kernels("build", kernel).exit_code == 1
    for command in ("test", "upload"):
        done = kernels(command, kernel)
        assert (done.exit_code, "layers.py:" in done.stderr) == (1, True), done.stderr
    assert _findings(kernels("check", kernel, "--static", "--json"), "sources")["torch-cpu"][0] == "failed"


@pytest.mark.parametrize(
    "name",
    [
        "tests/test_norm.py",
        "benchmarks/benchmark_norm.py",
        "media/norm_dark.svg",
        "README.md",
        "docs/notes.md",
        "cpu.json",
    ],
)
def test_what_no_build_is_made_of_may_change(kernels: Callable[..., Any], kernel: Path, name: str) -> None:
    _change(kernel, name)
    done = kernels("check", kernel, "--static", "--json")
    assert set(_findings(done, "sources").values()) == {("ok", "the build is up to date")}
    listed = json.loads(kernels("build", kernel, "--list", "--json").stdout)["variants"]
    reason = "only tests, benchmarks or texts have changed, and with them the id"
    assert {each["reason"] for each in listed} == {reason}


@pytest.mark.parametrize("name", ["torch-ext/norm/notes.md", "data/cpu.json", "norm_cpu/norm.cpp"])
def test_what_a_build_can_be_made_of_may_not(kernels: Callable[..., Any], kernel: Path, name: str) -> None:
    _change(kernel, name)
    assert _findings(kernels("check", kernel, "--static", "--json"), "sources")["torch-cpu"][0] == "failed"
    listed = json.loads(kernels("build", kernel, "--list", "--json").stdout)["variants"]
    assert {each["reason"] for each in listed} == {"the sources have changed"}


def test_a_build_made_elsewhere_of_the_same_sources_is_one_of_them(
    kernels: Callable[..., Any], kernel: Path, tmp_path: Path
) -> None:
    shutil.rmtree(kernel / ".kernels-build")
    done = kernels("check", kernel, "--static", "--json")
    assert set(_findings(done, "sources").values()) == {("ok", "the build is up to date")}
    _change(kernel, "README.md")  # nobody noted what it was made of
    assert _findings(kernels("check", kernel, "--static", "--json"), "sources")["torch-cpu"][0] == "failed"


def test_only_builds_that_fit_keep_tests_from_running(kernels: Callable[..., Any], kernel: Path) -> None:
    _change(kernel)
    build_kernel(kernel, kernel, backends=["cpu"])
    done = kernels("test", kernel, "--", "-q")
    assert (done.exit_code, "1 passed" in done.stdout) == (0, True), done.stderr


def test_a_version_or_a_backend_that_build_toml_no_longer_says_is_named(
    kernels: Callable[..., Any], hub: TestHub, kernel: Path
) -> None:
    toml = (kernel / "build.toml").read_text()
    (kernel / "build.toml").write_text(toml.replace("version = 1", "version = 2"))
    done = kernels("upload", kernel)
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "torch-cpu, torch-cuda: of version 1, while build.toml has version 2. `kernels build" in done.stderr
    (kernel / "build.toml").write_text(toml.replace('"cpu", "cuda"', '"cpu"'))
    build_kernel(kernel, kernel)
    done = kernels("upload", kernel)
    assert done.exit_code == 1
    assert "torch-cuda: for cuda, which build.toml does not list" in done.stderr
    assert hub.count("/api/repos/create") == 0


def test_a_folder_of_sources_without_builds_says_which_command_makes_them(
    kernels: Callable[..., Any], tmp_path: Path
) -> None:
    folder = new_kernel("norm", tmp_path / "norm", backends=["cpu"])
    for command in ("check", "benchmark"):
        done = kernels(command, folder)
        assert done.exit_code == 1
        assert f"kernels build {folder}" in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_build_that_was_edited_is_built_again_by_its_author(
    kernels: Callable[..., Any], hub: TestHub, kernel: Path
) -> None:
    _change(kernel / "build" / "torch-cpu", "layers.py")
    wanted = f"changed: 'layers.py'. `kernels build {kernel}` rebuilds it; changes belong in the sources."
    done = kernels("upload", kernel)
    assert (done.exit_code, wanted in done.stderr) == (1, True), done.stderr
    assert wanted in _findings(kernels("check", kernel, "--static", "--json"), "digest")["torch-cpu"][1]
    assert kernels("build", kernel).exit_code == 0
    assert kernels("upload", kernel).exit_code == 0


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "torch-ext/norm/layers.py",
            "import torch\ntorch.library.Library('aten', 'IMPL')\n",
            "torch-cpu: namespaces: layers.py, line ",
        ),
        ("benchmarks/benchmark_norm.py", "def broken(:\n", "benchmark_norm.py:"),
    ],
)
def test_what_a_check_fails_is_not_published(
    kernels: Callable[..., Any], hub: TestHub, kernel: Path, name: str, text: str, said: str
) -> None:
    _change(kernel, name, text)
    build_kernel(kernel, kernel)
    done = kernels("upload", kernel)
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert said in done.stderr
    assert "--no-check publishes the builds anyway" in done.stderr
    assert hub.count("/api/repos/create") == 0
    assert kernels("upload", kernel, "--no-check").exit_code == 0


def test_builds_of_a_backend_that_another_machine_builds_are_not_lost(
    kernels: Callable[..., Any], hub: TestHub, kernel: Path
) -> None:
    assert kernels("upload", kernel).exit_code == 0
    head = hub.commit(REPO, "v1")
    shutil.rmtree(kernel / "build" / "torch-cuda")
    done = kernels("upload", kernel)
    assert done.exit_code == 1
    assert "Note: no build here for cuda, which build.toml lists" in done.stdout
    assert "torch-cuda. Give --keep-variants to keep them, or --remove-variants to remove them." in done.stderr
    assert hub.commit(REPO, "v1") == head
    assert "nothing was sent" in kernels("upload", kernel, "--keep-variants").stdout
    both = kernels("upload", kernel, "--keep-variants", "--remove-variants")
    assert (both.exit_code, "exclude each other" in both.stderr) == (1, True)
    assert "deleted: build/torch-cuda/" in kernels("upload", kernel, "--remove-variants").stdout


def test_builds_of_a_backend_that_is_no_longer_listed_go(
    kernels: Callable[..., Any], hub: TestHub, kernel: Path
) -> None:
    assert kernels("upload", kernel).exit_code == 0
    toml = kernel / "build.toml"
    toml.write_text(toml.read_text().replace('"cpu", "cuda"', '"cpu"'))
    shutil.rmtree(kernel / "build")
    build_kernel(kernel, kernel)
    done = kernels("upload", kernel)
    assert (done.exit_code, "deleted: build/torch-cuda/" in done.stdout) == (0, True), done.stderr


def test_changes_that_are_not_committed_are_mentioned(kernels: Callable[..., Any], hub: TestHub, kernel: Path) -> None:
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "A kernel."]):
        subprocess.run(["git", "-C", str(kernel), *command], check=True)
    assert "uncommitted" not in kernels("build", kernel).stdout
    _change(kernel)
    assert "Note: the sources have uncommitted changes" in kernels("build", kernel).stdout
    done = kernels("upload", kernel)
    assert done.exit_code == 0
    assert "Note: torch-cpu, torch-cuda: built from sources with uncommitted changes" in done.stdout


# ---------------------------------------------------------------------------------------------------------------------
# Two source folders of one kernel
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def both(tmp_path: Path, isolated_env: Path) -> Path:
    """A kernel of two frameworks, the second of which is not built here: its folders share `build/`."""
    folder = tmp_path / "both"
    for name, noarch in (("noarch", True), ("compiled", False)):
        new_kernel("norm", folder / name, backends=["cpu"], noarch=noarch, repo_id=REPO)
        _short_test(folder / name)
    build_kernel(folder / "noarch", folder)
    return folder


def test_source_folders_that_share_their_builds_are_one_kernel(
    kernels: Callable[..., Any], hub: TestHub, both: Path
) -> None:
    for place, passed in ((both, "2 passed"), (both / "noarch", "1 passed")):
        done = kernels("test", place, "--", "-q")
        assert (done.exit_code, passed in done.stdout) == (0, True), done.stderr
    for place in (both, both / "compiled"):
        assert list(_findings(kernels("check", place, "--static", "--json"), "sources")) == ["torch-cpu"]
    found = json.loads(kernels("benchmark", both / "compiled", "--iterations", 1, "--warmup", 0, "--json").stdout)
    assert [each["verdict"] for each in found["outcomes"]] == ["ok", "ok"]
    assert kernels("upload", both).exit_code == 0
    assert "benchmarks/benchmark_norm.py" in hub.catalog.commit(REPO, "v1").files
    assert "nothing was sent" in kernels("upload", both / "noarch").stdout
    _change(both / "noarch")
    assert f"`kernels build {both}`" in kernels("test", both / "noarch").stderr
    assert "build.toml has the current edition" in kernels("build", both, "--update").stdout


@pytest.mark.compiler
def test_they_are_built_by_one_command(both: Path) -> None:
    found = list(build_variants(both, both))
    assert [each.state for each in found] == ["built", "up to date"]
    assert {each.path.parent for each in found if each.path} == {both / "build"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("version = 1", "version = 2"), r"differ in `general.version` \(compiled: 1, noarch: 2\)"),
        (('name = "norm"', 'name = "norn"'), "is missing"),
    ],
)
def test_source_folders_of_different_kernels_are_refused(both: Path, change: tuple[str, str], said: str) -> None:
    toml = both / "noarch" / "build.toml"
    toml.write_text(toml.read_text().replace(*change))
    with pytest.raises(RequestError, match=said):
        read_sources(both)


def test_two_folders_for_the_same_builds_are_refused(both: Path) -> None:
    shutil.copytree(both / "noarch", both / "python")
    with pytest.raises(RequestError, match=r"noarch and python in .* both have `\[torch-noarch\]` for cpu"):
        read_sources(both)


def test_benchmarks_of_one_name_and_other_content_are_refused(
    kernels: Callable[..., Any], hub: TestHub, both: Path
) -> None:
    _change(both / "noarch", "benchmarks/benchmark_norm.py")
    assert "differs from the file of that name in another source folder" in kernels("benchmark", both).stderr
    assert "would be published under one name" in kernels("upload", both).stderr


def test_a_folder_beside_others_of_other_kernels_is_a_kernel_of_its_own(both: Path, tmp_path: Path) -> None:
    other = new_kernel("other", both / "other", backends=["cpu"], noarch=True)
    project = find_workspace(other)
    assert project is not None
    assert project.folder == other


# ---------------------------------------------------------------------------------------------------------------------
# Mistakes that C++ ends the process for
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.compiler
def test_a_wrong_schema_is_said_in_torchs_own_words(kernels: Callable[..., Any], tmp_path: Path) -> None:
    reason = "Inferred operator schema for a C++ kernel function doesn't match the expected function schema."
    place = "registered at torch-ext/torch_binding.cpp:"
    folder = new_kernel("norm", tmp_path / "norm", backends=["cpu"], repo_id=REPO)
    binding = folder / "torch-ext" / "torch_binding.cpp"
    binding.write_text(binding.read_text().replace("relu(Tensor input) ->", "relu(Tensor input, int more) ->"))
    [variant] = build_kernel(folder, folder)
    ended = "an uncaught C++ exception ended the process (SIGABRT): "
    verdict, what = _findings(kernels("check", folder, "--json"), "loading")[variant.name]
    assert (verdict, what.startswith(f"{ended}{reason}"), place in what) == ("failed", True, True), what
    assert "frame #" not in what
    tried = kernels("test", folder, "--", "-q", "-p", "no:cacheprovider")
    assert tried.exit_code == 1
    assert f"Error: The tests crashed while loading {variant.name}. {ended}{reason}" in tried.stderr
    assert place in tried.stderr


# ---------------------------------------------------------------------------------------------------------------------
# What messages name
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["upload", "{k}", "--repo-id", "a/b", "--branch", "a b"], "`branch` is 'a b'; expected a branch's name"),
        (["upload", "{k}/build"], "did you mean the folder above it, {k}?\n"),
        (["upload", "{k}"], "{k}/build/oops: 'oops' is not a variant's name"),
        (["benchmark", "{k}", "--device", "xpu:3"], "`device` is 'xpu:3'; this machine"),
    ],
)
def test_messages_name_what_was_given(
    kernels: Callable[..., Any], hub: TestHub, kernel: Path, arguments: list[str], said: str
) -> None:
    if "oops" in said:
        (kernel / "build" / "oops").mkdir()
    done = kernels(*[argument.format(k=kernel) for argument in arguments])
    assert (done.exit_code, said.format(k=kernel) in done.stderr) == (1, True), done.stderr


def test_without_a_repository_the_option_is_named(kernels: Callable[..., Any], hub: TestHub, kernel: Path) -> None:
    (kernel / "build.toml").unlink()
    done = kernels("upload", kernel)
    assert (done.exit_code, "`repo_id`" in done.stderr, "give --repo-id org/name" in done.stderr) == (1, False, True)
