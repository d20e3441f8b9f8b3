"""A folder of repositories as a Hub sees it: publishers, branches, commits."""

from __future__ import annotations

import os
import shutil
import subprocess
from datetime import datetime
from pathlib import Path

import pytest
from hub import make_repo

from kernels.errors import InvalidRepository, RepositoryNotFound, RequestError, RevisionNotFound
from kernels.server import Catalog, File
from kernels.server.snapshot import blob_oid, take_snapshot

REPO = "acme/relu"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "hub"
    make_repo(root, REPO, version=1)
    return root


def test_the_root_must_be_a_folder(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"`root` is .*absent"):
        Catalog(tmp_path / "absent")


def test_a_publisher_is_a_folder(root: Path) -> None:
    catalog = Catalog(root, trusted={"acme"}, users={"jane"})
    make_repo(root, "jane/gelu")
    acme, jane = catalog.publisher("acme"), catalog.publisher("jane")
    assert acme is not None
    assert jane is not None
    assert (acme.trusted, acme.person, acme.repositories) == (True, False, 1)
    assert (jane.trusted, jane.person) == (False, True)
    assert catalog.publisher("absent") is None
    assert catalog.publisher("..") is None


@pytest.mark.skipif(shutil.which("git") is None, reason="git itself is the reference")
def test_ids_are_those_of_git(root: Path) -> None:
    folder = root / REPO / "v1"
    (folder / "build.toml").write_text("sorts before the folder build, as git compares it\n")
    (folder / "build-notes").mkdir()
    (folder / "build-notes" / "ä.txt").write_text("and this one too\n")
    commit = Catalog(root).commit(REPO, "v1")
    environment = {**os.environ, "GIT_DIR": str(root.parent / "git"), "GIT_WORK_TREE": str(folder)}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}

    def git(*arguments: str) -> str:
        command = ["git", "-c", "core.quotePath=false", *arguments]
        return subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    git("add", "-A")
    tree = git("write-tree").strip()
    rows = [line.split(maxsplit=3) for line in git("ls-tree", "-r", "-t", tree).splitlines()]
    listed = {path: commit.entry(path) for path in commit.paths(recursive=True) or ()}
    assert {path: oid for _, _, oid, path in rows} == {path: entry.oid for path, entry in listed.items() if entry}
    assert len(rows) > 6


def test_equal_content_is_the_same_commit_wherever_it_lies(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "copy")
    for path in (tmp_path / "copy").rglob("*"):
        os.utime(path, (1, 1))
    assert Catalog(root).commit(REPO, "v1").id == Catalog(tmp_path / "copy").commit(REPO, "v1").id


def test_two_repositories_never_share_a_commit(root: Path) -> None:
    shutil.copytree(root / REPO, root / "acme/copy")
    catalog = Catalog(root)
    assert catalog.commit(REPO, "v1").id != catalog.commit("acme/copy", "v1").id


@pytest.mark.parametrize("change", ["write", "add", "remove", "rename"])
def test_any_change_is_a_new_commit(root: Path, change: str) -> None:
    catalog = Catalog(root)
    before = catalog.commit(REPO, "v1")
    build = root / REPO / "v1/build/torch-cpu"
    if change == "write":
        (build / "__init__.py").write_text("changed = True\n")
    elif change == "add":
        (build / "more.py").touch()
    elif change == "remove":
        (build / "layers.py").unlink()
    else:
        (build / "layers.py").rename(build / "layer.py")
    after = catalog.commit(REPO, "v1")
    assert after.id != before.id
    assert catalog.commit(REPO, after.id).files == after.files
    with pytest.raises(RevisionNotFound, match="it has: v1"):
        catalog.commit(REPO, before.id)


def test_an_unchanged_file_is_hashed_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.server import scan

    hashed: list[str] = []
    original = scan._hash
    monkeypatch.setattr(scan, "_hash", lambda source, size: (hashed.append(source), original(source, size))[1])
    catalog = Catalog(root)
    for _ in range(3):
        catalog.commit(REPO, "v1")
    (root / REPO / "v1/README.md").write_text("more\n")
    catalog.commit(REPO, "v1")
    assert len(hashed) == len(set(hashed)) == 4


def test_a_sub_folder_named_like_a_commit_is_that_commit_if_it_has_its_content(root: Path) -> None:
    catalog = Catalog(root)
    kept = catalog.commit(REPO, "v1").id
    (root / REPO / "v1").rename(root / REPO / kept)
    make_repo(root, REPO, seed="newer")
    forged = "0123456789abcdef0123456789abcdef01234567"
    make_repo(root, REPO, revision=forged)
    for fresh in (catalog, Catalog(root)):
        assert list(fresh.branches(REPO)) == ["v1"]
        assert fresh.commit(REPO, kept).id == kept
        with pytest.raises(RevisionNotFound):
            fresh.commit(REPO, forged)
    (root / REPO / kept / "build/torch-cpu/layers.py").write_text("x = 1\n")
    for fresh in (catalog, Catalog(root)):
        with pytest.raises(RevisionNotFound):
            fresh.commit(REPO, kept)


def test_files_and_hidden_folders_are_no_branches(root: Path) -> None:
    (root / REPO / "README.md").touch()
    (root / REPO / ".cache").mkdir()
    assert list(Catalog(root).branches(REPO)) == ["v1"]


@pytest.mark.parametrize(("bytecode", "served"), [(False, False), (True, True)])
def test_bytecode_is_served_only_where_asked_for(root: Path, bytecode: bool, served: bool) -> None:
    cache = root / REPO / "v1/build/torch-cpu/__pycache__"
    cache.mkdir()
    (cache / "__init__.cpython-311.pyc").touch()
    files = Catalog(root, bytecode=bytecode).commit(REPO, "v1").files
    assert any(path.endswith(".pyc") for path in files) is served


def test_links_are_followed_inside_the_root_only(root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    build = root / REPO / "v1/build/torch-cpu"
    (build / "inside.py").symlink_to("layers.py")
    (build / "secret").symlink_to(tmp_path / "secret")
    (build / "folder").symlink_to(tmp_path / "outside")
    (build / "nowhere").symlink_to("absent")
    (build / "itself").symlink_to("itself")
    (build / "parent").symlink_to("..")
    files = Catalog(root).commit(REPO, "v1").files
    names = {path.removeprefix("build/torch-cpu/") for path in files}
    assert {"inside.py", "layers.py"} <= names
    assert not names & {"secret", "folder/secret", "nowhere", "itself"}
    assert not any("parent/torch-cpu/parent/torch-cpu" in path for path in files)


def test_a_linked_repository_or_branch_outside_the_root_is_not_there(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    make_repo(elsewhere, "evil/relu", version=1)
    (root / "acme/linked").symlink_to(elsewhere / "evil/relu")
    (root / REPO / "v2").symlink_to(elsewhere / "evil/relu/v1")
    (root / "evil").symlink_to(elsewhere / "evil")
    catalog = Catalog(root)
    assert list(catalog.branches(REPO)) == ["v1"]
    assert catalog.publisher("evil") is None
    for repo_id in ("acme/linked", "evil/relu"):
        with pytest.raises(RepositoryNotFound):
            catalog.commit(repo_id)
    with pytest.raises(RevisionNotFound):
        catalog.commit(REPO, "v2")


def test_what_is_no_regular_file_or_has_no_name_in_text_is_left_out(root: Path) -> None:
    build = root / REPO / "v1/build/torch-cpu"
    os.mkfifo(build / "pipe")
    with open(os.fsencode(build) + b"/\xff", "wb"):
        pass
    assert len(Catalog(root).commit(REPO, "v1").files) == 3


@pytest.mark.parametrize(
    "repo_id", ["acme/absent", "acme", "acme/../acme", "../hub/acme", "acme/relu/v1", "a\0b/c", ""]
)
def test_a_repository_that_is_not_there_is_said_to_be_missing(root: Path, repo_id: str) -> None:
    with pytest.raises(RepositoryNotFound):
        Catalog(root).commit(repo_id)


@pytest.mark.parametrize(
    "revision", ["v2", "..", "../relu/v1", "refs/heads/v2", "refs/pr/1", "f" * 40, "f" * 64, "", "."]
)
def test_a_revision_that_is_not_there_is_said_to_be_missing(root: Path, revision: str) -> None:
    with pytest.raises(RevisionNotFound):
        Catalog(root).commit(REPO, revision)


def test_a_repository_without_a_branch_has_no_revision(root: Path) -> None:
    (root / "acme/empty").mkdir()
    catalog = Catalog(root)
    assert catalog.branches("acme/empty") == {}
    with pytest.raises(RevisionNotFound, match="it has: none"):
        catalog.commit("acme/empty")


def test_a_deep_folder_is_listed(root: Path) -> None:
    deep = "/".join("d" * 1500)
    commit = take_snapshot(REPO, [File(f"{deep}/x.py", Path(os.devnull), 0, blob_oid(b""))], datetime(2026, 1, 1))
    assert len(commit.paths(recursive=True) or ()) == 1501


def test_links_that_multiply_folders_are_refused_in_bounds(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.server.scan._MAX_FOLDERS", 1000)
    folder = root / REPO / "v1"
    for depth in range(30):  # a tree of 2**30 folders
        (folder / f"{depth}").mkdir()
        for side in "ab":
            (folder / f"{depth}" / side).symlink_to(f"../{depth + 1}")
    with pytest.raises(InvalidRepository, match="folders"):
        Catalog(root).commit(REPO, "v1")
