"""A build's content has one hash, whether it is listed or on disk."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub, make_repo

from kernels.errors import InvalidRepository, RequestError, StoreError
from kernels.models.lockfile import GIT_LFS_CONCAT, SHA256SUM, ContentHash
from kernels.models.requirement import Requirement
from kernels.models.snapshot import Snapshot
from kernels.operations.open_sources import open_sources
from kernels.resolver.content_hash import listed_hash
from kernels.sources.base import Source
from kernels.sources.folder import FolderSource
from kernels.trust.content import BuildContent

LARGE = b"\x7fELF" + bytes(range(256)) * 64
FILES = {"_relu.abi3.so": LARGE, "b/c.py": "x = 1\n", "b.py": "x = 2\n", "ü.txt": "three\n"}
RELU = Requirement("acme/relu", version=1)


def released(hub: TestHub) -> tuple[Source, Snapshot]:
    source = open_sources().default
    return source, source.snapshot(RELU, hub.commit())


@pytest.mark.parametrize("kind", [SHA256SUM, GIT_LFS_CONCAT])
@pytest.mark.parametrize("digest", [False, True], ids=["plain", "digest"])
def test_what_is_listed_is_what_is_on_disk(hub: TestHub, kind: str, digest: bool) -> None:
    hub.make_repo(variants={"torch-cpu": FILES}, digest=digest, files={"README.md": "not of the build"})
    source, snapshot = released(hub)
    listed = listed_hash(source, snapshot, "torch-cpu", kind)
    assert hub.count(r"\.so$") == 0
    folder = source.fetch(snapshot, "torch-cpu")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "b.cpython-311.pyc").write_bytes(b"bytecode")
    assert BuildContent(folder).pinned_hash(kind) == listed
    copy = shutil.copytree(folder, folder.parents[5] / "torch-cpu")
    assert BuildContent(copy).pinned_hash(kind, snapshot.builds["torch-cpu"]) == listed


def test_it_is_the_hash_of_what_the_command_of_the_documentation_prints(hub: TestHub) -> None:
    hub.make_repo(variants={"torch-cpu": FILES})
    source, snapshot = released(hub)
    folder = source.fetch(snapshot, "torch-cpu")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "b.cpython-311.pyc").write_bytes(b"bytecode")
    page = Path(__file__).parents[2] / "docs" / "lock.md"
    [command] = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("find ")]
    printed = subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True)
    if printed.returncode != 0:
        pytest.skip(f"no sha256sum here: {printed.stderr.strip()}")
    assert BuildContent(folder).pinned_hash(SHA256SUM) == ContentHash(
        "sha256sum", f"sha256-{printed.stdout.split()[0]}"
    )


def test_the_older_kind_is_made_of_paths_and_raw_ids(hub: TestHub) -> None:
    hub.make_repo(variants={"torch-cpu": {"a.so": LARGE, "metadata.json": "{}"}})
    source, snapshot = released(hub)
    expected = hashlib.sha256()
    for file in sorted(snapshot.builds["torch-cpu"], key=lambda file: file.path):
        expected.update(file.path.removeprefix("build/torch-cpu/").encode() + bytes.fromhex(file.sha256 or file.oid))
    assert listed_hash(source, snapshot, "torch-cpu", GIT_LFS_CONCAT).value == f"sha256-{expected.hexdigest()}"


def test_a_digest_spares_the_reading_and_large_files_are_never_read(hub: TestHub) -> None:
    hub.make_repo(variants={"torch-cpu": FILES}, digest=True)
    listed_hash(*released(hub), "torch-cpu")
    assert hub.count("/resolve/") == hub.count("/resolve/.*/metadata.json$") == 1


def test_files_that_builds_share_are_read_once(hub: TestHub) -> None:
    shared: dict[str, Any] = {"shared.py": "x = 1\n", "__init__.py": "", "layers.py": ""}
    hub.make_repo(variants={"torch-cpu": shared, "torch-cuda": shared})
    source, snapshot = released(hub)
    known: dict[str, str] = {}
    for variant in snapshot.builds:
        listed_hash(source, snapshot, variant, known=known)
    assert hub.count("/shared.py$") == 1


def test_a_folder_of_repositories_is_hashed_where_it_lies(tmp_path: Path) -> None:
    folder = make_repo(tmp_path, variants={"torch-cpu": FILES}) / "build" / "torch-cpu"
    source = FolderSource(tmp_path)
    snapshot = source.snapshot(RELU, "v1")
    assert listed_hash(source, snapshot, "torch-cpu") == BuildContent(folder).pinned_hash(SHA256SUM)
    with pytest.raises(RequestError, match="git_lfs_concat depends on whether the Hub keeps"):
        listed_hash(source, snapshot, "torch-cpu", GIT_LFS_CONCAT)


@pytest.mark.parametrize("change", ["content", "more", "less", "renamed", "metadata"])
def test_every_change_of_a_build_changes_its_hash(tmp_path: Path, change: str) -> None:
    folder = make_repo(tmp_path, variants={"torch-cpu": FILES}) / "build" / "torch-cpu"
    before = BuildContent(folder).pinned_hash(SHA256SUM)
    if change == "content":
        (folder / "b.py").write_text("x = 3\n")
    elif change == "more":
        (folder / "c.py").write_text("")
    elif change == "less":
        (folder / "b.py").unlink()
    elif change == "renamed":
        (folder / "b.py").rename(folder / "c.py")
    else:
        (folder / "metadata.json").write_bytes((folder / "metadata.json").read_bytes() + b" ")
    assert BuildContent(folder).pinned_hash(SHA256SUM) != before


@pytest.mark.parametrize("wrong", [True, False], ids=["wrong", "not usable"])
def test_a_wrong_digest_is_found_when_the_build_is_here_and_an_unusable_one_is_passed_over(
    hub: TestHub, wrong: bool
) -> None:
    files = (
        {"b.py": "A" * 43 + "="} if wrong else {"b.py": "no base64", "b/c.py": "AAAA", "metadata.json": "A" * 43 + "="}
    )
    hub.make_repo(variants={"torch-cpu": FILES}, metadata={"digest": {"algorithm": "sha256", "files": files}})
    source, snapshot = released(hub)
    here = BuildContent(source.fetch(snapshot, "torch-cpu")).pinned_hash(SHA256SUM)
    assert (listed_hash(source, snapshot, "torch-cpu") != here) == wrong


def test_what_no_build_holds_is_refused(tmp_path: Path) -> None:
    (tmp_path / "two\nlines.py").write_text("")
    with pytest.raises(InvalidRepository, match="no line break"):
        BuildContent(tmp_path).pinned_hash(SHA256SUM)
    with pytest.raises(StoreError, match="No such file"):
        BuildContent(tmp_path / "absent").pinned_hash(SHA256SUM)


def test_plain_files_do_not_say_whether_they_are_large(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    with pytest.raises(RequestError, match="which a plain file does not show"):
        BuildContent(tmp_path).pinned_hash(GIT_LFS_CONCAT)
