"""Archives of builds: the same bytes each time, and nothing accepted that is not exactly what is listed."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels.errors import (
    ArchiveDamaged,
    DigestMismatch,
    HubUnavailable,
    InvalidRepository,
    MissingPythonDependency,
    StoreError,
)
from kernels.mirror.archive import pack, unpack
from kernels.mirror.tar_format import tar_header, tar_size
from kernels.models.mirror import MirrorArchive, MirrorBuild, MirrorFile, archive_path
from kernels.trust.file_hashes import git_blob_id

zstandard = pytest.importorskip("zstandard")

WHERE = "the archive https://mirror.example/archives/aa/aa.tar.zst"

#: Names of every form that a tar has: short, in a prefix and a name, not ASCII, too long for both fields.
CONTENTS = {
    "__init__.py": b"from ._ops import relu\n",
    "_ops.py": b"",
    f"{'deep/' * 40}name.py": b"deep",
    f"{'n' * 200}.py": b"long",
    "_relu_abc.abi3.so": bytes(range(256)) * 2000,
    "größe.json": b"{}",
}


class Collected:
    """The files that were complete."""

    def __init__(self, unwanted: str = "") -> None:
        self.contents: dict[str, bytes] = {}
        self.written = 0
        self._unwanted = unwanted

    def begin(self, file: MirrorFile) -> bool:
        self._name, self._content = file.path, bytearray()
        return file.path != self._unwanted

    def write(self, piece: memoryview) -> None:
        self.written += len(piece)
        self._content += piece

    def end(self) -> None:
        self.contents[self._name] = bytes(self._content)


def listed(contents: dict[str, bytes]) -> tuple[MirrorFile, ...]:
    """Files as a Hub lists them: the large ones with a SHA-256."""
    return tuple(
        MirrorFile(
            path,
            len(content),
            git_blob_id(content),
            hashlib.sha256(content).hexdigest() if len(content) > 1000 else None,
        )
        for path, content in sorted(contents.items())
    )


def written(folder: Path, contents: dict[str, bytes]) -> Path:
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def packed(folder: Path, contents: dict[str, bytes]) -> tuple[MirrorBuild, bytes]:
    """A build, and the bytes of its archive."""
    files = listed(contents)
    archive = pack(written(folder / "build", contents), files, folder / "archive")
    return MirrorBuild(files, archive), (folder / "archive").read_bytes()


def in_chunks(data: bytes, size: int = 1000) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


def test_an_archive_gives_the_files_back(tmp_path: Path) -> None:
    build, data = packed(tmp_path, CONTENTS)
    for size in (1, 7, 1000, len(data)):
        sink = Collected()
        unpack(in_chunks(data, size), build, sink, WHERE)
        assert sink.contents == CONTENTS


def test_the_same_files_give_the_same_archive(tmp_path: Path) -> None:
    build, data = packed(tmp_path / "one", CONTENTS)
    for path in (tmp_path / "one" / "build").rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o755)
    again = pack(tmp_path / "one" / "build", build.files, tmp_path / "again")
    assert again == build.archive
    assert (tmp_path / "again").read_bytes() == data
    assert again == MirrorArchive(archive_path(again.sha256), len(data), hashlib.sha256(data).hexdigest())


def test_a_build_without_files(tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    build, data = packed(tmp_path, {})
    unpack([data], build, None, WHERE)


@pytest.mark.skipif(not (shutil.which("tar") and shutil.which("zstd")), reason="needs tar and zstd")
def test_tar_and_zstd_read_an_archive(tmp_path: Path) -> None:
    _, data = packed(tmp_path, CONTENTS)
    archive = tmp_path / "build.tar.zst"
    archive.write_bytes(data)
    (tmp_path / "out").mkdir()
    subprocess.run(["tar", "--zstd", "-xf", archive, "-C", tmp_path / "out"], check=True, capture_output=True)
    assert {
        path.relative_to(tmp_path / "out").as_posix(): path.read_bytes()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    } == CONTENTS
    names = subprocess.run(["tar", "--zstd", "-tf", archive], check=True, capture_output=True, text=True).stdout
    assert len(names.splitlines()) == len(CONTENTS)
    subprocess.run(["zstd", "-t", archive], check=True, capture_output=True)


def test_pythons_tarfile_reads_the_tar(tmp_path: Path) -> None:
    build, data = packed(tmp_path, CONTENTS)
    plain = zstandard.ZstdDecompressor().decompress(data)
    assert len(plain) == tar_size(build.files)
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        members = tar.getmembers()
        assert [member.name for member in members] == sorted(CONTENTS)
        assert {(member.mode, member.mtime, member.uid, member.uname) for member in members} == {(0o644, 0, 0, "")}


@pytest.mark.parametrize("change", ["content", "longer", "shorter", "missing", "folder", "pipe"])
def test_a_file_that_is_not_as_listed_is_not_packed(tmp_path: Path, change: str) -> None:
    folder = written(tmp_path / "build", CONTENTS)
    path = folder / "__init__.py"
    if change in ("missing", "folder", "pipe"):
        path.unlink()
    if change == "folder":
        path.mkdir()
    elif change == "pipe":
        os.mkfifo(path)
    elif change != "missing":
        content = path.read_bytes()
        path.write_bytes({"content": b"F" + content[1:], "longer": content + b"#", "shorter": content[:-1]}[change])
    error = StoreError if change in ("folder", "pipe") else DigestMismatch
    with pytest.raises(error, match=r"__init__\.py.* Nothing was packed\."):
        pack(folder, listed(CONTENTS), tmp_path / "archive")
    assert not (tmp_path / "archive").exists()


def test_an_archive_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="Cannot write"):
        pack(written(tmp_path / "build", CONTENTS), listed(CONTENTS), tmp_path / "missing" / "archive")


def test_files_that_are_not_wanted_are_only_checked(tmp_path: Path) -> None:
    build, data = packed(tmp_path, CONTENTS)
    sink = Collected("__init__.py")
    unpack([data], build, sink, WHERE)
    assert sink.contents.keys() == CONTENTS.keys() - {"__init__.py"}
    unpack([data], build, None, WHERE)


@pytest.mark.parametrize("part", [0, 1, 13, 14, 20, 0.3, 0.9, -5, -4, -1])
def test_an_archive_that_is_cut_short_can_be_tried_again(tmp_path: Path, part: float) -> None:
    build, data = packed(tmp_path, CONTENTS)
    stop = int(part * len(data)) if isinstance(part, float) else part
    with pytest.raises(HubUnavailable, match=r"mirror\.example.* ended after \d+ of \d+ bytes\. Nothing was kept\."):
        unpack(in_chunks(data[:stop]), build, Collected(), WHERE)


@pytest.mark.parametrize("place", [0, 5, 0.2, 0.5, -3])
def test_a_change_on_the_way_can_be_tried_again(tmp_path: Path, place: float) -> None:
    build, data = packed(tmp_path, CONTENTS)
    changed = bytearray(data)
    changed[int(place * len(data)) if isinstance(place, float) else place] ^= 1
    with pytest.raises(ArchiveDamaged, match=r"mirror\.example.* is not the file that its index lists. Nothing was"):
        unpack([bytes(changed)], build, Collected(), WHERE)


def test_more_bytes_than_listed(tmp_path: Path) -> None:
    build, data = packed(tmp_path, CONTENTS)
    with pytest.raises(ArchiveDamaged, match="more than the listed"):
        unpack([data, b"\0"], build, Collected(), WHERE)


def test_an_archive_larger_than_its_files_is_not_received(tmp_path: Path) -> None:
    build, _ = packed(tmp_path, CONTENTS)
    archive = MirrorArchive(build.archive.name, 2**40, build.archive.sha256)

    def chunks() -> Iterator[bytes]:
        pytest.fail("a byte was requested")
        yield b""

    with pytest.raises(InvalidRepository, match="more than an archive of its files can have"):
        unpack(chunks(), MirrorBuild(build.files, archive), Collected(), WHERE)


def test_a_file_of_more_than_8_gib_has_its_size_in_a_pax_header() -> None:
    for size in (8**11 - 1, 8**11, 2**50):
        header = tar_header(MirrorFile("big.so", size))
        assert len(header) == (512 if size < 8**11 else 3 * 512)
        with tarfile.open(fileobj=io.BytesIO(header)) as tar:
            assert (tar.firstmember.name, tar.firstmember.size) == ("big.so", size)  # type: ignore[union-attr]


def test_a_large_build(tmp_path: Path) -> None:
    contents = {"one.so": bytes(range(256)) * 40_000, "two.so": bytes(range(256)) * 40_000}
    build, data = packed(tmp_path, contents)
    assert len(data) < 20_000
    sink = Collected()
    unpack(in_chunks(data), build, sink, WHERE)
    assert sink.contents == contents


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python has zstd itself")
def test_without_a_library_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build, data = packed(tmp_path, CONTENTS)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingPythonDependency, match="pip install zstandard"):
        unpack([data], build, None, WHERE)
    with pytest.raises(MissingPythonDependency, match="pip install zstandard"):
        pack(tmp_path / "build", build.files, tmp_path / "again")
    assert not (tmp_path / "again").exists()
