"""Contents get into a snapshot whole or not at all: one by one from many threads, or all files of an archive."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kernels.cache.store import RepoStore
from kernels.cache.writing import Part
from kernels.errors import HubUnavailable, InvalidRepository, StoreError
from kernels.mirror.archive import pack, unpack
from kernels.models.mirror import MirrorBuild, MirrorFile
from kernels.models.snapshot import RepoFile
from kernels.support.files import cannot_write
from kernels.trust.file_hashes import git_blob_id, sha256_file

pytest.importorskip("zstandard")

COMMIT = "c" * 40
FOLDER = "build/torch-cpu/"
WHERE = "the archive https://mirror.example/aa.tar.zst"
CONTENTS = {
    "__init__.py": b"",
    "_ops.py": b"ops = 1\n",
    "layers/__init__.py": b"",
    "relu.abi3.so": os.urandom(3_000_000),
}


@pytest.fixture
def repository(tmp_path: Path) -> RepoStore:
    return RepoStore(tmp_path / "cache", "org/relu")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[MirrorBuild, bytes]:
    """A build, and its archive."""
    root = tmp_path_factory.mktemp("packed")
    files = []
    for path, content in CONTENTS.items():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_bytes(content)
        sha256 = sha256_file(root / path) if len(content) > 1000 else None
        files.append(MirrorFile(path, len(content), git_blob_id(content), sha256))
    archive = pack(root, files, root / "archive")
    return MirrorBuild(tuple(files), archive), (root / "archive").read_bytes()


def wanted(build: MirrorBuild) -> list[RepoFile]:
    return [file.listed(FOLDER) for file in build.files]


def in_pieces(data: bytes) -> Iterator[bytes]:
    return (data[start : start + 100_000] for start in range(0, len(data), 100_000))


def entries(repository: RepoStore) -> list[str]:
    """Files and links below the repository's folder."""
    return sorted(
        path.relative_to(repository.folder).as_posix() for path in repository.folder.rglob("*") if not path.is_dir()
    )


def described(path: str, content: bytes) -> RepoFile:
    return RepoFile(path, len(content), sha256=hashlib.sha256(content).hexdigest())


# One by one


def test_files_of_many_folders_are_put_from_many_threads(repository: RepoStore) -> None:
    contents = {f"build/v/f{number % 50}/{number}.py": b"%d" % number for number in range(300)}
    files = {path: described(path, content) for path, content in contents.items()}
    writer = repository.writer(COMMIT)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda path: writer.put(contents[path], files[path]), contents))
    assert repository.missing(COMMIT, files.values()) == []
    assert all(repository.read(COMMIT, files[path]) == content for path, content in contents.items())
    repository.check_links(COMMIT, files.values())
    assert {path.name for path in (repository.folder / "blobs").iterdir()} == {file.blob for file in files.values()}


def test_files_of_one_content_share_it(repository: RepoStore) -> None:
    files = [described(f"build/v/{name}/__init__.py", b"") for name in "abc"]
    repository.writer(COMMIT).put(b"", *files)
    assert repository.missing(COMMIT, files) == []
    assert len(list((repository.folder / "blobs").iterdir())) == 1


def test_what_is_there_is_replaced_unless_it_is_as_listed(repository: RepoStore) -> None:
    file = described("a.py", b"right")
    blob = repository.folder / "blobs" / file.blob
    writer = repository.writer(COMMIT)
    writer.put(b"right", file)
    found = blob.stat().st_ino
    writer.put(b"right", file)
    assert blob.stat().st_ino == found
    blob.write_bytes(b"wrong")
    link = repository.snapshot(COMMIT) / "a.py"
    link.unlink()
    link.write_text("no link")
    writer.put(b"right", file)
    assert link.is_symlink()
    assert repository.read(COMMIT, file) == b"right"


@pytest.mark.parametrize("removed", ["", "blobs", "snapshots"])
def test_a_folder_that_is_removed_meanwhile_is_made_again(repository: RepoStore, removed: str) -> None:
    files = [described(f"build/v/{name}.py", name.encode()) for name in "ab"]
    writer = repository.writer(COMMIT)
    writer.put(b"a", files[0])
    shutil.rmtree(repository.folder / removed)
    writer.put(b"b", files[1])
    assert repository.read(COMMIT, files[1]) == b"b"


# The files of an archive


def test_all_files_are_placed(repository: RepoStore, packed: tuple[MirrorBuild, bytes]) -> None:
    build, data = packed
    arrived: list[tuple[int, int]] = []
    with repository.writer(COMMIT).unpacking(wanted(build), FOLDER, lambda *each: arrived.append(each)) as sink:
        unpack(in_pieces(data), build, sink, WHERE)
        assert not repository.snapshot(COMMIT).exists()
        assert all(name.endswith(".incomplete") for name in entries(repository))
    assert repository.missing(COMMIT, wanted(build)) == []
    root = repository.snapshot(COMMIT) / FOLDER
    assert {path: (root / path).read_bytes() for path in CONTENTS} == CONTENTS
    assert os.readlink(root / "_ops.py") == f"../../../../blobs/{git_blob_id(CONTENTS['_ops.py'])}"
    assert len(list((repository.folder / "blobs").iterdir())) == 3  # two are equal
    assert tuple(map(sum, zip(*arrived, strict=True))) == (4, build.size)
    repository.check_links(COMMIT, wanted(build))


def test_only_wanted_files_are_written(repository: RepoStore, packed: tuple[MirrorBuild, bytes]) -> None:
    build, data = packed
    with repository.writer(COMMIT).unpacking(wanted(build)[1:2], FOLDER) as sink:
        unpack(in_pieces(data), build, sink, WHERE)
    assert len(entries(repository)) == 2


def test_contents_that_repositories_share(tmp_path: Path, packed: tuple[MirrorBuild, bytes]) -> None:
    build, data = packed
    repository = RepoStore(tmp_path, "org/relu")
    (tmp_path / "blobs").mkdir()
    repository.folder.mkdir()
    (repository.folder / "blobs").symlink_to("../blobs")
    with repository.writer(COMMIT).unpacking(wanted(build), FOLDER) as sink:
        unpack(in_pieces(data), build, sink, WHERE)
    assert repository.missing(COMMIT, wanted(build)) == []
    assert len(list((tmp_path / "blobs").iterdir())) == 3


def test_contents_elsewhere_are_not_written(tmp_path: Path, packed: tuple[MirrorBuild, bytes]) -> None:
    repository = RepoStore(tmp_path / "cache", "org/relu")
    (tmp_path / "elsewhere").mkdir()
    repository.folder.mkdir(parents=True)
    (repository.folder / "blobs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidRepository, match="link"), repository.writer(COMMIT).unpacking(wanted(packed[0]), FOLDER):
        pytest.fail("it was entered")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def _cut(build: MirrorBuild, data: bytes) -> Iterator[bytes]:
    yield data[: len(data) - 10]


def _broken(build: MirrorBuild, data: bytes) -> Iterator[bytes]:
    yield data[:2_000_000]
    raise HubUnavailable("no answer")


def _interrupted(build: MirrorBuild, data: bytes) -> Iterator[bytes]:
    yield data[:2_000_000]
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("chunks", "error"),
    [(_cut, HubUnavailable), (_broken, HubUnavailable), (_interrupted, KeyboardInterrupt)],
)
def test_after_an_error_nothing_is_left(
    repository: RepoStore,
    packed: tuple[MirrorBuild, bytes],
    chunks: Callable[[MirrorBuild, bytes], Iterator[bytes]],
    error: type[BaseException],
) -> None:
    build, data = packed
    with pytest.raises(error), repository.writer(COMMIT).unpacking(wanted(build), FOLDER) as sink:
        unpack(chunks(build, data), build, sink, WHERE)
    assert entries(repository) == []


def test_a_full_disk_leaves_nothing(
    repository: RepoStore, packed: tuple[MirrorBuild, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    build, data = packed
    append, left = Part.append, [1_500_000]

    def limited(part: Part, piece: bytes) -> bool:
        left[0] -= len(piece)
        if left[0] <= 0:
            raise cannot_write(OSError(errno.ENOSPC, "No space left on device"), part.path)
        return append(part, piece)

    monkeypatch.setattr(Part, "append", limited)
    with (
        pytest.raises(StoreError, match=r"No space left.*Free some space"),
        repository.writer(COMMIT).unpacking(wanted(build), FOLDER) as sink,
    ):
        unpack(in_pieces(data), build, sink, WHERE)
    assert entries(repository) == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_killed_process_leaves_only_what_a_sweep_removes(
    repository: RepoStore, packed: tuple[MirrorBuild, bytes], tmp_path: Path
) -> None:
    build, data = packed
    script = f"""
import os, signal
from pathlib import Path
from kernels.cache.store import RepoStore
from kernels.models.mirror import MirrorFile
from kernels.models.snapshot import RepoFile
store = RepoStore(Path({str(repository.cache)!r}), "org/relu")
with store.writer({COMMIT!r}).unpacking([RepoFile("build/a.py", 2, {"a" * 40!r})], "build/") as sink:
    sink.begin(MirrorFile("a.py", 2, {"a" * 40!r}))
    sink.write(memoryview(b"a"))
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", script], check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = entries(repository)
    assert left.endswith(".incomplete")
    with repository.writer(COMMIT).unpacking(wanted(build), FOLDER) as sink:
        unpack(in_pieces(data), build, sink, WHERE)
    assert repository.missing(COMMIT, wanted(build)) == []
    day_before_yesterday = time.time() - 2 * 86400
    os.utime(repository.folder / left, (day_before_yesterday, day_before_yesterday))
    repository.sweep()
    assert left not in entries(repository)
