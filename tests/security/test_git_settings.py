"""A checkout whose git settings name programs: no command that promises to run nothing runs one of them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernels.authoring.compile import build_kernel
from kernels.authoring.scaffold import new_kernel
from kernels.cli import app
from kernels.models.metadata import Metadata

pytestmark = pytest.mark.skipif(
    os.name == "nt" or shutil.which("git") is None,
    reason="the settings name programs of a POSIX system; git reads them",
)

#: Commands on a folder, with the options that keep them from running the kernel's code.
COMMANDS = (
    ("check", "--static"),
    ("card",),
    ("upload", "--dry-run"),
    ("build", "--list"),
    ("build", "--dry-run"),
    ("wheel",),
    ("info",),
    ("benchmark",),  # it finds no benchmark, and `test` no such build: after both were compared with the sources
    ("test", "--variant", "torch-none"),
)

IDENTITY = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false")


def git(folder: Path, *arguments: str) -> str:
    options = ("-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main", *IDENTITY)
    command = ["git", "-C", str(folder), *options, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path) -> str:
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "all")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def kernel(tmp_path: Path, isolated_env: Path) -> Path:
    """A kernel under git, with a build; git compares the content of its files when it is asked for their state."""
    folder = new_kernel("norm", tmp_path / "norm", backends=["cpu"], noarch=True, repo_id="acme/norm")
    shutil.rmtree(folder / "benchmarks")
    build_kernel(folder, folder)
    (folder / ".gitattributes").write_text("*.py filter=x diff=x merge=x ident\n*.toml filter=a=b.c\n")
    commit(folder)
    return folder


@pytest.fixture
def trap(tmp_path: Path) -> str:
    """A command that leaves a mark."""
    script = tmp_path / "trap"
    script.write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran'\n")
    script.chmod(0o755)
    return str(script)


def name_programs(folder: Path, trap: str, file: str = "config") -> None:
    """Name the trap in each setting that can name a program."""
    for setting in (
        *(f"filter.{name}.{step}" for name in ("x", "a=b.c") for step in ("clean", "smudge", "process")),
        *("core.fsmonitor", "core.sshCommand", "core.askPass", "core.pager", "core.editor", "core.gitProxy"),
        *("core.alternateRefsCommand", "diff.external", "diff.x.textconv", "diff.x.command", "merge.x.driver"),
        *("gpg.program", "gpg.ssh.program", "credential.helper", "uploadpack.packObjectsHook", "sequence.editor"),
        *("interactive.diffFilter", "pager.log", "pager.status", "trailer.x.command", "remote.origin.uploadpack"),
        *(f"alias.{name}" for name in ("status", "log", "ls-tree", "ls-files", "rev-list", "rev-parse")),
    ):
        git(
            folder,
            "config",
            "--file",
            str(git_folder(folder) / file),
            setting,
            f"!{trap}" if "alias" in setting else trap,
        )
    hooks = git_folder(folder) / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-index-change", "reference-transaction", "fsmonitor-watchman", "pre-auto-gc"):
        shutil.copy(trap, hooks / name)
    for setting in ("log.showSignature", "submodule.recurse", "fetch.recurseSubmodules"):
        git(folder, "config", "--file", str(git_folder(folder) / file), setting, "true")


def git_folder(folder: Path) -> Path:
    found = folder / ".git"
    return found if found.is_dir() else folder / found.read_text().removeprefix("gitdir: ").strip()


def settings(kernel: Path, trap: str) -> None:
    name_programs(kernel, trap)


def included(kernel: Path, trap: str) -> None:
    name_programs(kernel, trap, "more")
    (kernel / ".git" / "more").rename(kernel / "more.txt")
    with (kernel / ".git" / "config").open("a") as file:
        file.write('[includeIf "gitdir:/"]\n\tpath = ../more.txt\n')


def worktree_settings(kernel: Path, trap: str) -> None:
    git(kernel, "config", "extensions.worktreeConfig", "true")
    git(kernel, "config", "core.repositoryFormatVersion", "1")
    name_programs(kernel, trap, "config.worktree")


def git_elsewhere(kernel: Path, trap: str) -> None:
    (kernel / ".git").rename(kernel / "objects of it")
    (kernel / ".git").write_text("gitdir: objects of it\n")
    git(kernel, "config", "core.worktree", str(kernel))
    name_programs(kernel, trap)


def bare(kernel: Path, trap: str) -> None:
    """An ordinary clone is enough: the folder itself is a repository."""
    name_programs(kernel, trap)
    for path in (kernel / ".git").iterdir():
        shutil.move(path, kernel / path.name)
    (kernel / ".git").rmdir()
    subprocess.run(["git", "config", "--file", str(kernel / "config"), "core.worktree", "."], check=True)
    git(kernel, "config", "core.bare", "false")
    commit_of_everything = kernel.parent / "outer"
    commit_of_everything.mkdir()
    shutil.move(kernel, commit_of_everything / "kernel")
    subprocess.run(["git", "-C", str(commit_of_everything), "init", "-q"], check=True)
    shutil.move(commit_of_everything / "kernel", kernel)
    shutil.move(commit_of_everything / ".git", kernel.parent / ".git")


def partial_clone(kernel: Path, trap: str, *missing: str) -> None:
    for name in missing or ("HEAD:build.toml", "HEAD:torch-ext/norm"):
        id = git(kernel, "rev-parse", name)
        (kernel / ".git" / "objects" / id[:2] / id[2:]).unlink()
    for name, value in {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.url": f"ext::{trap} %S",
        "remote.origin.promisor": "true",
        "protocol.allow": "always",
        "protocol.ext.allow": "always",
    }.items():
        git(kernel, "config", name, value)


def partial_clone_without_its_tree(kernel: Path, trap: str) -> None:
    partial_clone(kernel, trap, "HEAD^{tree}")


def submodule(kernel: Path, trap: str) -> None:
    library = kernel.parent / "library"
    library.mkdir()
    (library / "a.py").write_text("a = 1\n")
    (library / ".gitattributes").write_text("*.py filter=x\n")
    commit(library)
    git(kernel, "submodule", "--quiet", "add", str(library), "third_party/library")
    git(kernel, "commit", "-qm", "library")
    name_programs(kernel / "third_party" / "library", trap)


CHECKOUTS = [
    settings,
    included,
    worktree_settings,
    git_elsewhere,
    bare,
    partial_clone,
    partial_clone_without_its_tree,
    submodule,
]


@pytest.mark.parametrize("make", CHECKOUTS)
def test_no_command_runs_a_program_that_a_checkout_names(
    kernel: Path, trap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path, str], None]
) -> None:
    make(kernel, trap)
    ran = tmp_path / "ran"
    ran.unlink(missing_ok=True)
    for path in kernel.rglob("*"):
        if path.is_file():
            os.utime(path, (1, 1))  # git's index has another time
    monkeypatch.chdir(kernel)
    monkeypatch.setenv("KERNELS_HUB", "http://127.0.0.1:9")
    monkeypatch.setenv("KERNELS_HUB_TOKEN", "hf_token")
    for command in COMMANDS:
        CliRunner().invoke(app, [command[0], str(kernel), *command[1:]], prog_name="kernels")
        assert not ran.exists(), command
    subprocess.run(["git", "-C", str(kernel), "status"], capture_output=True, timeout=60, check=False)
    subprocess.run(["git", "-C", str(kernel), "cat-file", "-p", "HEAD:build.toml"], capture_output=True, check=False)
    assert ran.exists(), "the checkout is harmless: it shows nothing"


def test_a_repository_that_the_environment_names_is_not_asked(
    kernel: Path, trap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.py").write_text("a = 1\n")
    commit(other)
    name_programs(other, trap)
    (tmp_path / "ran").unlink(missing_ok=True)
    head = git(kernel, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    assert provenance(kernel) == (head, False)
    assert not (tmp_path / "ran").exists()


def test_a_program_called_git_in_the_current_folder_is_not_run(
    kernel: Path, trap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(trap, kernel / "git")
    monkeypatch.chdir(kernel)
    monkeypatch.setenv("PATH", f".{os.pathsep}{os.pathsep}{os.environ['PATH']}")
    CliRunner().invoke(app, ["build", str(kernel), "--list"], prog_name="kernels")
    assert not (tmp_path / "ran").exists()


def test_an_endless_tree_ends(kernel: Path, isolated_env: Path) -> None:
    """Folders that contain the same folder many times: git lists them for ever."""
    blob = subprocess.run(
        ["git", "-C", str(kernel), "hash-object", "-w", "--stdin"], input="", capture_output=True, text=True, check=True
    ).stdout.strip()
    entry = f"100644 blob {blob}"
    for _ in range(9):
        tree = "".join(f"{entry}\t{number}\n" for number in range(30))
        made = subprocess.run(
            ["git", "-C", str(kernel), "mktree"], input=tree, capture_output=True, text=True, check=True
        ).stdout.strip()
        entry = f"040000 tree {made}"
    git(kernel, "update-ref", "HEAD", git(kernel, "commit-tree", "-m", "bomb", made))
    assert provenance(kernel)[1]


def provenance(kernel: Path) -> tuple[str, bool]:
    """The commit that a build names, and whether it says that the sources had changes."""
    [variant] = build_kernel(kernel, kernel)
    found = Metadata.read_from_file(variant / "metadata.json").provenance
    assert found is not None
    assert found.kernel is not None
    return found.kernel.commit, bool(found.kernel.dirty)


def edited(kernel: Path) -> None:
    (kernel / "build.toml").write_text((kernel / "build.toml").read_text() + "# changed\n")


def removed(kernel: Path) -> None:
    (kernel / ".gitattributes").unlink()


def added(kernel: Path) -> None:
    (kernel / "new.h").write_text("")


def added_to_the_index(kernel: Path) -> None:
    added(kernel)
    git(kernel, "add", "new.h")


def made_a_link(kernel: Path) -> None:
    (kernel / "build.toml").rename(kernel / ".hidden")
    (kernel / "build.toml").symlink_to(".hidden")


def moved_behind_a_link(kernel: Path) -> None:
    (kernel / "tests").rename(kernel / ".tests")
    (kernel / "tests").symlink_to(".tests")


def index_destroyed(kernel: Path) -> None:
    (kernel / ".git" / "index").write_bytes(b"nothing")


def tree_destroyed(kernel: Path) -> None:
    id = git(kernel, "rev-parse", "HEAD:torch-ext/norm")
    (kernel / ".git" / "objects" / id[:2] / id[2:]).unlink()


@pytest.mark.parametrize(
    "change",
    [edited, removed, added, added_to_the_index, made_a_link, moved_behind_a_link, index_destroyed, tree_destroyed],
)
def test_what_differs_from_the_commit_or_cannot_be_compared_counts_as_changed(
    kernel: Path, change: Callable[[Path], None]
) -> None:
    head = git(kernel, "rev-parse", "HEAD")
    assert provenance(kernel) == (head, False)
    change(kernel)
    assert provenance(kernel) == (head, True)


def touched(kernel: Path) -> None:
    for path in kernel.rglob("*"):
        os.utime(path, (1, 1))


def ignored(kernel: Path) -> None:
    (kernel / ".git" / "info").mkdir(exist_ok=True)
    (kernel / ".git" / "info" / "exclude").write_text("notes.txt\n")
    (kernel / "notes.txt").write_text("mine")


def other_line_endings(kernel: Path) -> None:
    """As git for Windows checks files out."""
    path = kernel / "build.toml"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


@pytest.mark.parametrize("change", [touched, ignored, other_line_endings])
def test_what_a_checkout_may_change_is_no_change(kernel: Path, change: Callable[[Path], None]) -> None:
    head = git(kernel, "rev-parse", "HEAD")
    change(kernel)
    assert provenance(kernel) == (head, False)


def test_the_content_of_a_file_in_lfs_is_compared_with_its_pointer(kernel: Path) -> None:
    content = b"weights\0" * 1000
    pointer = (
        "version https://git-lfs.github.com/spec/v1\n"
        f"oid sha256:{hashlib.sha256(content).hexdigest()}\nsize {len(content)}\n"
    )
    (kernel / "table.bin").write_text(pointer)
    head = commit(kernel)
    assert provenance(kernel) == (head, False)
    (kernel / "table.bin").write_bytes(content)
    assert provenance(kernel) == (head, False)
    (kernel / "table.bin").write_bytes(content + b"1")
    assert provenance(kernel) == (head, True)


def test_a_submodule_is_compared_with_the_commit_that_is_recorded(kernel: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    (library / "build").mkdir(parents=True)
    (library / "a.h").write_text("// a\n")
    (library / "build" / "b.h").write_text("// b\n")
    commit(library)
    git(kernel, "submodule", "--quiet", "add", str(library), "third_party/library")
    git(kernel, "commit", "-qm", "library")
    head, inside = git(kernel, "rev-parse", "HEAD"), kernel / "third_party" / "library"
    assert provenance(kernel) == (head, False)
    (inside / "build" / "b.h").write_text("// changed\n")
    assert provenance(kernel) == (head, True)
    git(inside, "commit", "-qam", "changed")
    assert provenance(kernel) == (head, True)
    git(inside, "checkout", "-q", "HEAD~1")
    assert provenance(kernel) == (head, False)
    git(kernel, "submodule", "--quiet", "deinit", "--all", "--force")
    assert provenance(kernel) == (head, False)
    (inside / "c.h").write_text("// another one\n")
    assert provenance(kernel) == (head, True)
