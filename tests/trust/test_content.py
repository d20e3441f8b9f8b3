"""What a build's files are compared with: digests, a lock's hash, and the hashes that a Hub lists."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernels.errors import DigestMismatch, InvalidRepository, RequestError, StoreError
from kernels.models.metadata import Digest
from kernels.trust.content import BuildContent
from kernels.trust.file_hashes import git_blob_id, sha256_file

needs_links = pytest.mark.skipif(os.name == "nt", reason="symbolic links need a privilege on Windows")
needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
needs_bytes = pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="file names are Unicode there")


@pytest.fixture
def variant(tmp_path: Path) -> Path:
    """A variant whose every kind of file has its place."""
    folder = tmp_path / "torch-cpu"
    contents = {
        "__init__.py": b"from . import layers\n",
        "_ops.py": b"",
        "layers/__init__.py": b"class Layer: ...\n",
        "layers/metadata.json": b"{}",
        "metadata.json": b"{}",
        "metadata.json.sigstore": b"{}",
        "stale.pyc": b"bytecode",
        "__pycache__/_ops.cpython-311.pyc": b"bytecode",
        "layers/__pycache__/evil.py": b"raise SystemExit",
        "native.abi3.so": bytes(range(256)) * 4096,
    }
    for name, content in contents.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return folder


COVERED = ["__init__.py", "_ops.py", "layers/__init__.py", "layers/metadata.json", "native.abi3.so"]


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_the_digest_has_the_hash_of_all_but_bytecode_and_the_two_top_level_files_that_hold_it(
    variant: Path, algorithm: str
) -> None:
    digest = BuildContent(variant).digest(algorithm)
    assert (digest.algorithm, list(digest.files)) == (algorithm, COVERED)
    for name, value in digest.files.items():
        assert base64.b64decode(value) == hashlib.new(algorithm, (variant / name).read_bytes()).digest()
    BuildContent(variant).check_digest(digest)


@pytest.mark.parametrize("name", COVERED)
def test_a_changed_file_is_named(variant: Path, name: str) -> None:
    digest = BuildContent(variant).digest("sha256")
    content = (variant / name).read_bytes()
    (variant / name).write_bytes(content[:-1] + b"\x01" if content else b"\x01")
    with pytest.raises(DigestMismatch, match=f"changed: '{name}'"):
        BuildContent(variant).check_digest(digest)


def test_missing_and_unknown_files_are_named(variant: Path) -> None:
    digest = BuildContent(variant).digest("sha256")
    (variant / "_ops.py").rename(variant / "_other.py")
    with pytest.raises(DigestMismatch, match=r"missing: '_ops\.py'; not in the digest: '_other\.py'"):
        BuildContent(variant).check_digest(digest)


@pytest.mark.parametrize("name", ["metadata.json", "metadata.json.sigstore", "stale.pyc", "__pycache__/new.pyc"])
def test_files_outside_the_digest_may_change(variant: Path, name: str) -> None:
    digest = BuildContent(variant).digest("sha256")
    (variant / name).write_bytes(b"changed")
    BuildContent(variant).check_digest(digest)


def test_a_message_names_ten_files_and_counts_the_rest(variant: Path) -> None:
    digest = BuildContent(variant).digest("sha256")
    for number in range(25):
        (variant / f"extra{number:02}.py").touch()
    with pytest.raises(DigestMismatch, match=r"'extra09\.py' and 15 more") as caught:
        BuildContent(variant).check_digest(digest)
    assert "extra10" not in str(caught.value)


@pytest.mark.parametrize("name", ["../outside.py", "/etc/hostname", "a\\b", "x" * 5000, "\ud800"])
def test_a_hostile_path_in_a_digest_is_never_opened_only_missing(variant: Path, name: str) -> None:
    (variant.parent / "outside.py").touch()
    honest = BuildContent(variant).digest("sha256")
    hostile = Digest("sha256", {**honest.files, name: honest.files["_ops.py"]})
    with pytest.raises(DigestMismatch, match="missing: ") as caught:
        BuildContent(variant).check_digest(hostile)
    assert len(str(caught.value)) < 1000


@needs_links
def test_a_link_to_a_file_is_read_through_as_huggingface_hubs_cache_needs(variant: Path, tmp_path: Path) -> None:
    digest = BuildContent(variant).digest("sha256")
    (variant / "native.abi3.so").rename(tmp_path / "blob")
    (variant / "native.abi3.so").symlink_to(tmp_path / "blob")
    BuildContent(variant).check_digest(digest)


def not_unicode(variant: Path) -> None:
    Path(os.fsdecode(os.fsencode(variant) + b"/\xff.py")).touch()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        pytest.param(lambda at: (at / "x").symlink_to(at / "layers"), "'x', a link to a directory", marks=needs_links),
        pytest.param(lambda at: (at / "x").symlink_to("nowhere"), "'x', a link that leads nowhere", marks=needs_links),
        pytest.param(lambda at: (at / "x").symlink_to("x"), "'x', a link that leads nowhere", marks=needs_links),
        pytest.param(lambda at: os.mkfifo(at / "x"), "neither a file nor a directory", marks=needs_pipes),
        pytest.param(not_unicode, "not Unicode", marks=needs_bytes),
    ],
    ids=["link to a folder", "link to nothing", "link to itself", "pipe", "not Unicode"],
)
def test_what_no_digest_can_describe_is_refused_and_not_waited_for(
    variant: Path, make: Callable[[Path], None], says: str
) -> None:
    make(variant)
    with pytest.raises(InvalidRepository, match=says):
        BuildContent(variant).digest("sha256")


def test_folders_nested_deeper_than_pythons_stack_are_walked(tmp_path: Path) -> None:
    folders = [tmp_path / "/".join("d" * depth) for depth in range(1, 1101)]
    for folder in folders:
        folder.mkdir()
    (folders[-1] / "f").touch()
    try:
        assert sorted(BuildContent(tmp_path).digest("sha256").files) == ["d/" * 1100 + "f"]
    finally:  # pytest's own clean-up recurses
        (folders[-1] / "f").unlink()
        for folder in reversed(folders):
            folder.rmdir()


def test_an_empty_folder_has_a_digest(tmp_path: Path) -> None:
    assert BuildContent(tmp_path).digest("sha256").files == {}


def test_a_wrong_algorithm_or_path_is_named(variant: Path) -> None:
    with pytest.raises(RequestError, match=r"`algorithm`: expected sha256 or sha512, got 'md5'"):
        BuildContent(variant).digest("md5")
    with pytest.raises(RequestError, match=r"`algorithm`: expected sha256 or sha512, got 'md5'"):
        BuildContent(variant).check_digest(Digest("md5", {}))
    with pytest.raises(StoreError, match="Not a directory"):
        BuildContent(variant / "metadata.json").digest("sha256")


def test_a_file_that_cannot_be_read_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"Cannot read .*absent: No such file"):
        sha256_file(tmp_path / "absent")
    with pytest.raises(StoreError, match="Cannot read"):
        git_blob_id(tmp_path / "absent")


@pytest.mark.parametrize("size", [0, 1, 256 * 1024, 1_000_003])
def test_the_listings_hashes_are_those_of_git_and_of_lfs(tmp_path: Path, size: int) -> None:
    content = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    file = tmp_path / "file"
    file.write_bytes(content)
    expected = subprocess.run(
        ["git", "hash-object", "--no-filters", str(file)], check=True, capture_output=True, text=True
    )
    assert git_blob_id(file) == git_blob_id(content) == expected.stdout.strip()
    assert sha256_file(file) == hashlib.sha256(content).hexdigest()
