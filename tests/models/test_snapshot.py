"""What a source gives, as data: heads, snapshots and files."""

from __future__ import annotations

import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.errors import InvalidRepository
from kernels.models import snapshot as snapshot_module
from kernels.models.snapshot import Heads, RepoFile, Snapshot, is_bytecode


@given(st.binary(max_size=2000), st.sampled_from(["sha1", "git-sha256", "lfs", "none"]))
def test_a_listed_file_describes_its_own_content_and_no_other(content: bytes, kind: str) -> None:
    framed = b"blob %d\0" % len(content) + content
    file = {
        "sha1": RepoFile("a", len(content), hashlib.sha1(framed).hexdigest()),
        "git-sha256": RepoFile("a", len(content), hashlib.sha256(framed).hexdigest()),
        "lfs": RepoFile("a", len(content), "0" * 40, hashlib.sha256(content).hexdigest()),
        "none": RepoFile("a", len(content)),
    }[kind]
    assert file.describes(content)
    assert not file.describes(content + b"x")
    if content and kind != "none":
        assert not file.describes(bytes([content[0] ^ 1]) + content[1:])


@pytest.mark.parametrize(
    ("revision", "commit"),
    [("v1", "1"), ("refs/heads/v1", "1"), ("tagged", "9"), ("refs/tags/tagged", "9"), ("refs/heads/tagged", None),
     ("v2", None), ("both", "b"), ("refs/tags/both", "t")],
)  # fmt: skip
def test_a_revision_is_a_branch_before_it_is_a_tag(revision: str, commit: str | None) -> None:
    heads = Heads({"v1": "1", "both": "b"}, {"tagged": "9", "both": "t"})
    assert heads.commit(revision) == commit


def test_version_branches_are_v_and_a_number() -> None:
    names = ["v1", "v10", "v2", "v0", "v01", "v-1", "V3", "v1.0", "main", "version4", "v"]
    assert Heads(dict.fromkeys(names, "x")).versions == {10: "v10", 2: "v2", 1: "v1", 0: "v0"}


def test_builds_are_the_folders_below_build_without_bytecode() -> None:
    paths = [
        "README.md",
        "build/torch-cpu/__init__.py",
        "build/torch-cpu/sub/x.py",
        "build/torch-cpu/__pycache__/x.cpython-311.pyc",
        "build/torch-cuda/y.py",
        "build/loose-file",
        "src/build/torch-cpu/z.py",
    ]
    snapshot = Snapshot("org/relu", "c" * 40, tuple(RepoFile(path, 3) for path in paths))
    assert {name: [file.path for file in files] for name, files in snapshot.builds.items()} == {
        "torch-cpu": ["build/torch-cpu/__init__.py", "build/torch-cpu/sub/x.py"],
        "torch-cuda": ["build/torch-cuda/y.py"],
    }
    assert snapshot.size("torch-cpu") == 6
    assert snapshot.file("README.md") == RepoFile("README.md", 3)
    assert snapshot.file("none") is None


@pytest.mark.parametrize(
    ("path", "answer"),
    [("a.pyc", True), ("a.pyo", True), ("x/__pycache__/a.txt", True), ("a.py", False), ("__pycache__.py", False)],
)
def test_bytecode_is_known_by_its_name(path: str, answer: bool) -> None:
    assert is_bytecode(path) is answer


@given(st.text(max_size=30))
def test_an_accepted_path_stays_below_its_folder(path: str) -> None:
    import posixpath

    try:
        Snapshot("org/relu", "c" * 40, (RepoFile(path, 0),))
    except InvalidRepository:
        return
    joined = posixpath.normpath(posixpath.join("/root", path))
    assert joined == f"/root/{path}"
    assert "\\" not in path


@given(st.text(alphabet="aZ0_.-+/\\: \n\u00e9", max_size=12))
def test_a_path_of_plain_names_needs_no_closer_look(path: str) -> None:
    if re.fullmatch(snapshot_module._PLAIN, path):
        snapshot_module._check_unusual("org/relu", RepoFile(path, 0))


def test_a_plain_path_may_still_be_too_long_or_too_deep() -> None:
    for path in ("a" * 256, "/".join("a" * 65), "/".join(["a" * 200] * 6)):
        with pytest.raises(InvalidRepository):
            Snapshot("org/relu", "c" * 40, (RepoFile(path, 0),))
    for size in (-1, 2**50 + 1):
        with pytest.raises(InvalidRepository):
            Snapshot("org/relu", "c" * 40, (RepoFile("a", size),))
    Snapshot("org/relu", "c" * 40, (RepoFile("/".join(["a" * 200] * 4), 2**50),))
