"""Folders as sources: what they list, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
from hub import make_repo
from logged import warned

from kernels import get_kernel
from kernels.errors import InvalidRepository
from kernels.sources.folder import FolderSource, PathSource, files_below


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "build").mkdir(parents=True)
    (folder / "build" / "kernel.py").write_text("x = 1")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "__init__.py").write_text("x = 2")
    return folder


@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("build/evil", "outside"),
        ("build/__pycache__", "outside"),
        ("build/evil.py", "outside/__init__.py"),
        ("build/evil.pyc", "outside/__init__.py"),
        ("build/evil", "not there yet"),
        ("build/evil", ""),
    ],
)
def test_a_link_out_of_the_folder_is_refused_whatever_it_leads_to(
    root: Path, tmp_path: Path, name: str, to: str
) -> None:
    (root / name).symlink_to(tmp_path / to)
    with pytest.raises(InvalidRepository, match="outside"):
        files_below(root, contained=True)
    assert "build/kernel.py" in [file.path for file in files_below(root, contained=False)]


def test_links_within_the_folder_are_fine(root: Path, tmp_path: Path) -> None:
    (root / "build" / "same.py").symlink_to("kernel.py")
    (root / "again").symlink_to("build")
    (root / "loop").symlink_to("loop")
    (tmp_path / "link to root").symlink_to(root)
    listed = files_below(tmp_path / "link to root", contained=True)
    assert [(file.path, file.size) for file in listed] == [("build/kernel.py", 5), ("build/same.py", 5)]


def test_a_folder_of_repositories_refuses_code_from_outside(
    tmp_path: Path, isolated_env: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_repo(tmp_path / "hub", "acme/relu")
    (tmp_path / "outside").mkdir()
    (folder / "build" / "torch-cpu" / "evil").symlink_to(tmp_path / "outside")
    monkeypatch.setenv("KERNELS_HUB", str(tmp_path / "hub"))
    with pytest.raises(InvalidRepository, match="evil is a link to"):
        get_kernel("acme/relu", version=1, trust_remote_code=True)


def test_the_sub_folders_of_a_repository_are_its_heads(tmp_path: Path) -> None:
    for version in (1, 2):
        make_repo(tmp_path, "acme/relu", version=version)
    assert FolderSource(tmp_path).heads("acme/relu").branches == {"v1": "v1", "v2": "v2"}


@pytest.mark.parametrize(
    ("name", "repo_id"),
    [
        ("a" * 95 + "-b", "local/" + "a" * 95),
        ("a" * 200, "local/" + "a" * 96),
        ("--", "local/kernel"),
        ("my kernel_1.0-", "local/my-kernel-1-0"),
    ],
)
def test_a_folder_of_any_name_has_a_name_as_a_repository(tmp_path: Path, name: str, repo_id: str) -> None:
    folder = make_repo(tmp_path, "acme/relu").rename(tmp_path / name)
    assert PathSource(folder).requirement.repo_id == repo_id


def test_a_folder_says_nothing_about_a_publisher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_repo(tmp_path, "acme/relu")
    (tmp_path / "acme" / "relu" / ".kernels.json").write_text("no record")  # of a client that wrote one
    assert FolderSource(tmp_path).publishers.trusts("acme/relu") is None
    monkeypatch.setenv("KERNELS_HUB", str(tmp_path))
    with warned("without a Hub's word on its publisher"):
        get_kernel("acme/relu", version=1)
