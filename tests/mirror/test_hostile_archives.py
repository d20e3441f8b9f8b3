"""Archives of a hostile mirror, with an index that fits them: an error names the archive, and nothing is written."""

from __future__ import annotations

import hashlib
import io
import tarfile
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.cache.store import RepoStore
from kernels.errors import ArchiveDamaged, DigestMismatch, HubUnavailable, InvalidRepository
from kernels.mirror import archive
from kernels.mirror.archive import pack, unpack
from kernels.mirror.tar_format import padding, tar_header
from kernels.models.mirror import MirrorArchive, MirrorBuild, MirrorFile, archive_path
from kernels.trust.file_hashes import git_blob_id

zstandard = pytest.importorskip("zstandard")

WHERE = "the archive https://mirror.example/archives/aa/aa.tar.zst"
COMMIT = "c" * 40

#: What is listed: a module, data, and a library with a SHA-256.
CONTENTS = {"__init__.py": b"x = 1\n", "data.bin": b"", "relu.so": bytes(range(256)) * 300 + b"."}


@dataclass(frozen=True)
class Honest:
    """A build as its publisher made it."""

    build: MirrorBuild
    data: bytes
    plain: bytes


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Honest:
    """The build, its archive and the tar in it."""
    root = tmp_path_factory.mktemp("honest")
    files = []
    for path, content in CONTENTS.items():
        (root / path).write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest() if path.endswith(".so") else None
        files.append(MirrorFile(path, len(content), git_blob_id(content), sha256))
    made = pack(root, files, root / "archive")
    data = (root / "archive").read_bytes()
    return Honest(MirrorBuild(tuple(files), made), data, zstandard.ZstdDecompressor().decompress(data))


@pytest.fixture(autouse=True, params=[1, 2], ids=["one thread", "two threads"])
def _threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_THREADED", 0 if request.param == 2 else 2**60)


def with_archive(build: MirrorBuild, data: bytes) -> MirrorBuild:
    """The build, as an index that lies lists it: with the size and hash of another archive."""
    sha256 = hashlib.sha256(data).hexdigest()
    return MirrorBuild(build.files, MirrorArchive(archive_path(sha256), len(data), sha256))


def compressed(plain: bytes) -> bytes:
    """A frame of the right form."""
    compressor = zstandard.ZstdCompressor(level=3, write_checksum=True, write_content_size=True).compressobj(
        size=len(plain)
    )
    return bytes(compressor.compress(plain) + compressor.flush())


# Tars that are another one


def header(path: str = "__init__.py", size: int | None = None, **fields: bytes) -> bytes:
    """The header that `pack` writes, with other fields and the right checksum."""
    block = bytearray(tar_header(MirrorFile(path, len(CONTENTS.get(path, b"")) if size is None else size)))
    for name, value in fields.items():
        start = _FIELDS[name]
        block[start : start + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


#: Where the fields of a header begin (POSIX.1-2017, pax, "ustar Interchange Format").
_FIELDS = {
    "name": 0,
    "mode": 100,
    "uid": 108,
    "mtime": 136,
    "type": 156,
    "target": 157,
    "magic": 257,
    "owner": 265,
    "device": 329,
    "prefix": 345,
    "rest": 500,
}


def member(content: bytes, **fields: bytes) -> bytes:
    """A file with another header."""
    return header(size=len(content), **fields) + content + padding(len(content))


def pax(kind: bytes = b"x", **records: str) -> bytes:
    """A pax header."""
    text = b""
    for key, value in records.items():
        rest = f" {key}={value}\n".encode()
        digits = next(digits for digits in range(1, 9) if len(str(len(rest) + digits)) == digits)
        text += str(len(rest) + digits).encode() + rest
    return member(text, name=b"PaxHeaders/file".ljust(100, b"\0"), type=kind)


#: What is written before the first file, in the place of its header, or after the last file.
BEFORE: dict[str, bytes] = {
    "a pax header with another path": pax(path="../evil.py"),
    "a pax header with the same path": pax(path="__init__.py"),
    "a pax header with a link": pax(linkpath="/etc/passwd"),
    "a pax header with another size": pax(size="1000000000"),
    "a sparse file of pax": pax(**{"GNU.sparse.realsize": "1000000000"}),
    "a huge pax header": pax(comment="x" * 50_000),
    "a global pax header": pax(b"g", path="evil.py"),
    "a long name of GNU": member(b"n" * 300, name=b"././@LongLink\0", type=b"L"),
    "a label of GNU": header(type=b"V", size=0),
    "a folder before": header(name=b"folder/".ljust(100, b"\0"), type=b"5", size=0),
}
HEADER: dict[str, bytes] = {
    "another name": header(name=b"__main__.py"),
    "a path out": header(name=b"../__init__.py"),
    "an absolute path": header(name=b"/__init__.py"),
    "a path with a dot": header(name=b"./__init__.py"),
    "a name after the end of the name": header(name=b"__init__.py\0evil"),
    "a folder in the prefix": header(prefix=b"folder"),
    "a symbolic link": header(type=b"2", target=b"/etc/passwd"),
    "a hard link": header(type=b"1", target=b"/etc/passwd"),
    "a target without a link": header(target=b"/etc/passwd"),
    "a device": header(type=b"3", device=b"0000001\0"),
    "a block device": header(type=b"4"),
    "a pipe": header(type=b"6"),
    "a folder": header(type=b"5"),
    "a contiguous file": header(type=b"7"),
    "a file of the oldest form": header(type=b"\0"),
    "a sparse file": header(type=b"S"),
    "the continuation of a file": header(type=b"M"),
    "the form of GNU": header(magic=b"ustar  \0"),
    "setuid": header(mode=b"0004644\0"),
    "executable": header(mode=b"0000755\0"),
    "a time": header(mtime=b"00000000001\0"),
    "an owner": header(uid=b"0001000\0"),
    "the name of an owner": header(owner=b"root"),
    "bytes after the fields": header(rest=b"x"),
    "a larger size": header(size=7),
    "a smaller size": header(size=5),
    "a size in base 256": header(size=6)[:124] + b"\x80" + bytes(10) + b"\x06" + header(size=6)[136:],
    "a wrong checksum": header()[:148] + b"000001\0 " + header()[156:],
    "no header": bytes(512),
}
AFTER: dict[str, bytes] = {
    "a file too many": member(b"evil", name=b"evil.py\0\0\0\0"),
    "a file twice": member(b"x = 2\n"),
    "a link after the files": header(name=b"evil".ljust(100, b"\0"), type=b"2", target=b"/", size=0),
    "many files": b"".join(member(b"", name=b"%011d" % number) for number in range(1000)),
    "a block of zeros": bytes(512),
}
OTHER: dict[str, Callable[[bytes], bytes]] = {
    "a file too few": lambda plain: plain[:1536] + plain[-1024:],
    "another order": lambda plain: plain[1024:1536] + plain[:1024] + plain[1536:],
    "bytes in the padding": lambda plain: plain[:-1025] + b"x" + plain[-1024:],
    "bytes at the end": lambda plain: plain[:-1] + b"x",
    "a longer end": lambda plain: plain + bytes(512),
    "a shorter end": lambda plain: plain[:-512],
    "a record of GNU's size": lambda plain: plain + bytes(-len(plain) % 10240),
    "another tar after it": lambda plain: plain + plain,
    "nothing": lambda plain: b"",
}

TARS: dict[str, Callable[[bytes], bytes]] = {
    **{name: lambda plain, data=data: data + plain for name, data in BEFORE.items()},
    **{name: lambda plain, data=data: data + plain[512:] for name, data in HEADER.items()},
    **{name: lambda plain, data=data: plain[:-1024] + data + plain[-1024:] for name, data in AFTER.items()},
    **OTHER,
}


def test_the_headers_of_these_tests_are_those_of_an_archive(honest: Honest) -> None:
    assert header() == honest.plain[:512]
    assert header(type=b"0", mode=b"0000644\0") == honest.plain[:512]
    with tarfile.open(fileobj=io.BytesIO(TARS["a pax header with another path"](honest.plain))) as opened:
        assert opened.getnames()[0] == "../evil.py"
    with tarfile.open(fileobj=io.BytesIO(TARS["a symbolic link"](honest.plain))) as opened:
        assert opened.getmembers()[0].issym()


@pytest.mark.parametrize("name", TARS)
def test_another_tar(honest: Honest, tmp_path: Path, name: str) -> None:
    plain = TARS[name](honest.plain)
    assert plain != honest.plain
    data = compressed(plain)
    refused(with_archive(honest.build, data), data, tmp_path, InvalidRepository)
    # And where its frame states the size of the list.
    if len(plain) > len(honest.plain) and not plain.startswith(honest.plain):
        data = compressed(plain[: len(honest.plain)])
        message = refused(with_archive(honest.build, data), data, tmp_path, InvalidRepository)
        assert "states" not in message


@pytest.mark.parametrize("path", ["__init__.py", "relu.so"])
def test_the_index_lists_an_archive_with_another_content(honest: Honest, tmp_path: Path, path: str) -> None:
    content = CONTENTS[path]
    data = compressed(honest.plain.replace(content, content[:-1] + b"\x7f", 1))
    assert path in refused(with_archive(honest.build, data), data, tmp_path, DigestMismatch)


# Frames that are not one frame of these bytes


def frame(
    blocks: bytes,
    size: int | None,
    *,
    window: int = 0x58,
    magic: bytes = b"\x28\xb5\x2f\xfd",
    flags: int = 0b0000_0100,
    checksum: bytes = b"....",
) -> bytes:
    """A frame, with eight bytes for its size unless that is None."""
    descriptor = flags | (0b1100_0000 if size is not None else 0)
    stated = b"" if size is None else size.to_bytes(8, "little")
    return magic + bytes([descriptor]) + (b"" if flags & 0x20 else bytes([window])) + stated + blocks + checksum


def run(count: int, *, length: int = 128 * 1024, last: bool = True) -> bytes:
    """Blocks of zeros: four bytes each."""
    blocks = [(length << 3 | 0b010 | (last and i == count - 1)).to_bytes(3, "little") + b"\0" for i in range(count)]
    return b"".join(blocks)


FRAMES: dict[str, Callable[[Honest], bytes]] = {
    "no frame": lambda honest: b"\x1f\x8b" + honest.data[2:],
    "only a tar": lambda honest: honest.plain,
    "an empty archive": lambda honest: b"",
    "two frames": lambda honest: honest.data + honest.data,
    "the tar in two frames": lambda honest: compressed(honest.plain[:1024]) + compressed(honest.plain[1024:]),
    "an empty frame after it": lambda honest: honest.data + compressed(b""),
    "a skippable frame before": lambda honest: b"\x50\x2a\x4d\x18\x04\0\0\0skip" + honest.data,
    "a skippable frame after": lambda honest: honest.data + b"\x50\x2a\x4d\x18\x04\0\0\0skip",
    "a byte after it": lambda honest: honest.data + b"\0",
    "no checksum": lambda honest: zstandard.ZstdCompressor().compress(honest.plain),
    "a wrong checksum": lambda honest: honest.data[:-1] + bytes([honest.data[-1] ^ 1]),
    "no size": lambda honest: zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compress(
        honest.plain
    ),
    "a bomb": lambda honest: frame(run(10_000), len(honest.plain)),
    "a bomb of the listed size and more": lambda honest: frame(
        run(1, length=len(honest.plain) - 1, last=False) + run(10_000), len(honest.plain)
    ),
    "a bomb without a size": lambda honest: frame(run(10_000), None),
    "a bomb that states its size": lambda honest: frame(run(10_000), 10_000 * 128 * 1024),
    "a bomb after the tar": lambda honest: frame(raw(honest.plain) + run(100), len(honest.plain)),
    "empty blocks": lambda honest: frame(
        run(100, length=0, last=False) + raw(honest.plain, last=True), len(honest.plain)
    ),
    "a window of 2 GB": lambda honest: frame(raw(honest.plain, last=True), len(honest.plain), window=21 << 3),
    "a window of 3.75 TB": lambda honest: frame(raw(honest.plain, last=True), len(honest.plain), window=0xFF),
    "a dictionary": lambda honest: frame(b"\x07" + raw(honest.plain, last=True), len(honest.plain), flags=0b0000_0101),
    "a reserved bit": lambda honest: frame(raw(honest.plain, last=True), len(honest.plain), flags=0b0000_1100),
    "an unused bit": lambda honest: frame(raw(honest.plain, last=True), len(honest.plain), flags=0b0001_0100),
    "a reserved block": lambda honest: frame(b"\x07\0\0" + raw(honest.plain, last=True), len(honest.plain)),
    "a block of 2 MB": lambda honest: frame((2**21 - 1 << 3).to_bytes(3, "little") + honest.data, len(honest.plain)),
    "an older format": lambda honest: frame(raw(honest.plain, last=True), len(honest.plain), magic=b"\x27\xb5\x2f\xfd"),
    "a frame that does not end": lambda honest: frame(raw(honest.plain), len(honest.plain), checksum=b""),
    "a frame that ends in a block": lambda honest: honest.data[:-20],
    "a frame that ends in its header": lambda honest: honest.data[:7],
    "a frame without its checksum": lambda honest: honest.data[:-4],
}


def raw(plain: bytes, *, last: bool = False) -> bytes:
    """Blocks that are not compressed."""
    size = 100_000
    pieces = [plain[start : start + size] for start in range(0, len(plain), size)]
    return b"".join(
        (len(piece) << 3 | (last and piece is pieces[-1])).to_bytes(3, "little") + piece for piece in pieces
    )


@pytest.mark.parametrize("name", FRAMES)
def test_another_frame(honest: Honest, tmp_path: Path, name: str) -> None:
    data = FRAMES[name](honest)
    tracemalloc.start()
    try:
        refused(with_archive(honest.build, data), data, tmp_path, InvalidRepository)
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()


def test_what_is_in_a_listed_file_is_only_content(tmp_path: Path, honest: Honest) -> None:
    inner = {"inner.tar.zst": compressed(bytes(10_000_000)), "evil.tar": TARS["a path out"](honest.plain)}
    files = tuple(MirrorFile(path, len(content), git_blob_id(content)) for path, content in sorted(inner.items()))
    (tmp_path / "build").mkdir()
    for path, content in inner.items():
        (tmp_path / "build" / path).write_bytes(content)
    build = MirrorBuild(files, pack(tmp_path / "build", files, tmp_path / "archive"))
    repository = RepoStore(tmp_path / "cache", "org/relu")
    with repository.writer(COMMIT).unpacking([file.listed("build/cpu/") for file in files], "build/cpu/") as sink:
        unpack([(tmp_path / "archive").read_bytes()], build, sink, WHERE)
    for path, content in inner.items():
        assert (repository.snapshot(COMMIT) / "build/cpu" / path).read_bytes() == content


def test_the_archive_of_another_build(honest: Honest, tmp_path: Path) -> None:
    data = compressed(HEADER["another name"] + honest.plain[512:])
    refused(honest.build, data.ljust(len(honest.data), b"\0")[: len(honest.data)], tmp_path, ArchiveDamaged)


def refused(build: MirrorBuild, data: bytes, root: Path, error: type[Exception]) -> str:
    """The message with which an archive is refused; nothing of it is in the cache then."""
    repository = RepoStore(root / "cache", "org/relu")
    with (
        pytest.raises(error) as raised,
        repository.writer(COMMIT).unpacking([file.listed("build/cpu/") for file in build.files], "build/cpu/") as sink,
    ):
        unpack(in_chunks(data), build, sink, WHERE)
    assert type(raised.value) is error
    assert str(raised.value).startswith(WHERE)
    assert str(raised.value).endswith(" Nothing was kept.")
    assert [path for path in root.rglob("*") if not path.is_dir()] == []
    return str(raised.value)


def in_chunks(data: bytes, size: int = 10_000) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


# Any bytes

_EDITS = st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 12), st.binary(max_size=12)), min_size=1, max_size=4)


def edited(data: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    """The bytes with some parts replaced."""
    changed = bytearray(data)
    for place, length, new in edits:
        start = place % (len(changed) + 1)
        changed[start : start + length] = new
    return bytes(changed)


class Kept:
    """A sink that has the files of an archive without an error."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self._content = bytearray()
        self._path = ""

    def begin(self, file: MirrorFile) -> bool:
        self._content, self._path = bytearray(), file.path
        return True

    def write(self, piece: memoryview) -> None:
        self._content += piece

    def end(self) -> None:
        self.contents[self._path] = bytes(self._content)


def only_the_contents(build: MirrorBuild, chunks: Iterator[bytes]) -> None:
    sink = Kept()
    try:
        unpack(chunks, build, sink, WHERE)
    except (HubUnavailable, InvalidRepository, DigestMismatch):
        return
    assert sink.contents == CONTENTS


_FUZZ = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@_FUZZ
@given(edits=_EDITS, size=st.integers(1, 5000))
def test_any_change_of_the_compressed_bytes(honest: Honest, edits: list[tuple[int, int, bytes]], size: int) -> None:
    data = edited(honest.data, edits)
    only_the_contents(with_archive(honest.build, data), in_chunks(data, size))


@_FUZZ
@given(edits=_EDITS)
def test_any_change_of_the_tar(honest: Honest, edits: list[tuple[int, int, bytes]]) -> None:
    plain = edited(honest.plain, edits).ljust(len(honest.plain), b"\0")[: len(honest.plain)]
    data = compressed(plain)
    build = with_archive(honest.build, data)
    if plain != honest.plain:
        with pytest.raises((InvalidRepository, DigestMismatch)):
            unpack([data], build, None, WHERE)
    else:
        only_the_contents(build, in_chunks(data))


@_FUZZ
@given(data=st.binary(max_size=200), begin=st.booleans())
def test_any_bytes(honest: Honest, data: bytes, begin: bool) -> None:
    data = (b"\x28\xb5\x2f\xfd" if begin else b"") + data
    with pytest.raises((InvalidRepository, DigestMismatch)):
        unpack(in_chunks(data, 7), with_archive(honest.build, data), None, WHERE)
