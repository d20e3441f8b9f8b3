"""One repository's files in the cache: contents, snapshots of links to them, and how they get there exactly once.

The layout is huggingface_hub's, so that its tools work with it:

    <cache>/kernels--<org>--<name>/
        blobs/<hash>                   contents
        snapshots/<commit>/<path>      links to contents
        index/<commit>-<Hub>.json      the commit's file list, which never changes
        index/<commit>-fetched         an empty mark: this client downloaded files of the commit, from any Hub
        index/<commit>-<Hub>.allowed   that a caller allowed the commit without a trusted publisher
        index/<commit>-<Hub>.published  that a branch or tag leads to the commit
        index/<commit>-<Hub>-<variant>.checked  the checks of a build, and the identity of the files checked
        index/heads-<Hub>.json         what a Hub or a mirror last said: branches, tags, and when
    <cache>/.locks/kernels--<org>--<name>/<name>.lock
    <cache>/.locks/kernels-verdicts/<Hub>/<publisher>.json
    <cache>/.locks/kernels-signatures/<hash>.json  who signed, where a signature was verified

A file is written under a temporary name, checked, and renamed into place: a kill at any moment leaves the old state or
the new one. `records.py` has the records under `index/`.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kernels.cache.records import RepoRecords, cache_errors
from kernels.errors import InvalidRepository, StoreError
from kernels.models.cache_places import GIVEN_UP
from kernels.models.requirement import is_commit
from kernels.models.snapshot import RepoFile
from kernels.support.files import check_folders, has_room, read_bounded, real_path
from kernels.support.lock import WorkLock, exclusively

if TYPE_CHECKING:
    from kernels.cache.writing import SnapshotWriter

__all__ = ["CLEARING", "RepoStore", "is_stale"]

_T = TypeVar("_T")

#: A temporary file older than this belongs to a process that was killed.
_STALE_SECONDS = 24 * 3600.0

#: Seconds after which a part that nobody writes belongs to a process that was killed: a download that receives nothing
#: for so long has timed out.
_IDLE_SECONDS = 60.0

#: The lock of a repository under which contents are removed that no snapshot needs.
CLEARING = "clearing"


class RepoStore(RepoRecords):
    """One repository's folder in the cache.

    Args:
        cache: The cache's folder.
        repo_id: `org/name`.

    Example:
        >>> RepoStore(Path("/cache"), "org/relu").folder.name
        'kernels--org--relu'
    """

    def snapshot(self, commit: str) -> Path:
        """The folder of a commit's files."""
        return self.folder / "snapshots" / commit

    def commits(self) -> list[str]:
        """The commits with a snapshot, the one last modified first."""
        found = []
        with suppress(OSError), os.scandir(self.folder / "snapshots") as entries:
            for entry in entries:
                with suppress(OSError):  # `prune` removes it
                    if is_commit(entry.name) and entry.is_dir():
                        found.append((entry.stat().st_mtime, entry.name))
        return [name for _, name in sorted(found, reverse=True)]

    def files(self, commit: str) -> tuple[RepoFile, ...]:
        """The files in the snapshot of a commit, for a cache that another tool filled."""
        root = self.snapshot(commit)
        files = []
        for path in sorted(root.rglob("*")):
            with suppress(OSError):
                if path.is_file():
                    name = os.path.basename(os.readlink(path)) if path.is_symlink() else ""
                    sha256 = name if len(name) == 64 else None
                    oid = name if len(name) == 40 else ""
                    files.append(RepoFile(path.relative_to(root).as_posix(), path.stat().st_size, oid, sha256))
        return tuple(files)

    def has(self, commit: str, file: RepoFile) -> bool:
        """Whether a file is in the snapshot with the size and the content's name that were listed."""
        return _has(os.fspath(self.snapshot(commit)), file)

    def missing(self, commit: str, files: Iterable[RepoFile]) -> list[RepoFile]:
        """The files that are not in the snapshot as they were listed."""
        snapshot = os.fspath(self.snapshot(commit))
        return [file for file in files if not _has(snapshot, file)]

    def exists(self, commit: str, file: RepoFile) -> bool:
        """Whether the snapshot has a file of that name, with any content."""
        return (self.snapshot(commit) / file.path).is_file()

    def read(self, commit: str, file: RepoFile) -> bytes | None:
        """The content of a file in the snapshot, or None if it is not as listed."""
        if not self.has(commit, file):
            return None
        with suppress(OSError):
            data = read_bounded(self.snapshot(commit) / file.path, file.size)
            return data if file.describes(data) else None
        return None

    def has_content(self, file: RepoFile) -> bool:
        """Whether the repository has a content of the listed name and size, for any commit; its hash is not checked."""
        try:
            return bool(file.blob) and os.stat(f"{os.fspath(self.folder)}/blobs/{file.blob}").st_size == file.size
        except OSError:
            return False

    def writer(self, commit: str) -> SnapshotWriter:
        """What puts contents into the snapshot of a commit."""
        from kernels.cache.writing import SnapshotWriter

        return SnapshotWriter(self.cache, self.folder, self.snapshot(commit), self.begun)

    def check_room(self, files: Iterable[RepoFile]) -> None:
        """Check that the disk has room for files, before they are downloaded.

        An archive of a mirror can be some 30,000 times smaller than what it unpacks to.

        Args:
            files: The listed files. What earlier tries left of them is counted as theirs.

        Raises:
            StoreError: It has not.
        """
        sizes = {file.blob or file.path: file.size for file in files}
        size = sum(sizes.values())
        with cache_errors(self.folder):
            for path in (self.folder / "blobs").glob("*.incomplete"):
                if path.name.partition(".")[0] in sizes:
                    with suppress(FileNotFoundError):
                        size -= path.lstat().st_size
            there = next(each for each in (self.folder, *self.folder.parents) if each.is_dir())
            if not has_room(there, size):
                raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} for files of {size} bytes")

    def begun(self, file: RepoFile) -> Path | None:
        """The largest part of a large file that an earlier try left, with which a download goes on.

        One that was written a moment ago is no such part: its process may run on another machine, whose locks are not
        seen here.
        """
        found = []
        for path in (self.folder / "blobs").glob(f"{file.blob}*.incomplete") if file.blob else ():
            with suppress(OSError):
                facts = path.lstat()
                if 0 < facts.st_size < file.size and _is_left(path, facts):
                    found.append((facts.st_size, path))
        return max(found, default=(0, None))[1]

    def check_links(self, commit: str, files: Iterable[RepoFile]) -> None:
        """Check that every file of a build is inside this cache.

        Raises:
            InvalidRepository: A link leads out of the repository's folder (or of the contents that huggingface_hub
                shares between repositories, `<cache>/blobs`).
        """
        roots = tuple(os.path.realpath(root) + os.sep for root in (self.folder, self.cache / "blobs"))
        resolved: dict[str, str] = {}
        snapshot = os.fspath(self.snapshot(commit))
        for file in files:
            path = f"{snapshot}/{file.path}"
            if not real_path(path, resolved).startswith(roots):
                raise InvalidRepository(
                    f"{path} is a link to {os.path.realpath(path)}, outside the repository's folder in the cache. "
                    f"Delete {self.folder} and download the kernel again."
                )

    def reading_lock(self, commit: str, path: str) -> WorkLock:
        """The lock for downloading one file to read it, before a build is chosen."""
        return self.lock(f"{commit}-{path.replace('/', '-')[-100:]}")

    def lock(self, name: str) -> WorkLock:
        """The lock of one task on this repository, shared by every process."""
        return WorkLock(self.cache / ".locks" / self.folder.name / f"{name}.lock")

    def one_process(self, name: str, work: Callable[[], _T]) -> _T:
        """What `work` returns: of several processes one does it at a time, and the next one finds its result.

        Where the cache cannot be written, each does it.

        Args:
            name: The name of the lock.
            work: Looks for the result first.
        """
        try:
            with exclusively(self.lock(name)):
                return work()
        except StoreError:
            return work()

    def sweep(self) -> None:
        """Remove temporary files of processes that were killed long ago."""
        for path in self.leftovers():
            with suppress(OSError):
                path.unlink()

    def leftovers(self) -> list[Path]:
        """Temporary files of processes that were killed long ago."""
        found = []
        for folder, pattern in (("blobs", "*.incomplete"), ("index", "*.tmp")):
            with suppress(OSError):
                check_folders(self.folder / folder, self.cache)
                found += [path for path in (self.folder / folder).glob(pattern) if is_stale(path)]
        return found


def _has(snapshot: str, file: RepoFile) -> bool:
    path = f"{snapshot}/{file.path}"
    try:
        if os.stat(path).st_size != file.size:
            return False
        target = os.readlink(path)
    except OSError as error:
        # Not a link: a file system without links, where only the size can be compared.
        return error.errno not in _ABSENT and os.path.isfile(path) and not os.path.islink(path)
    return not file.blob or os.path.basename(target) == file.blob


def _is_left(path: Path, facts: os.stat_result) -> bool:
    """Whether a temporary file belongs to no running process, and no other user or name leads to its content."""
    own = not hasattr(os, "geteuid") or facts.st_uid == os.geteuid()
    ended = path.name.endswith(GIVEN_UP) or time.time() - facts.st_mtime > _IDLE_SECONDS
    return stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1 and own and ended


def is_stale(path: Path) -> bool:
    """Whether a temporary file, a lock or a folder has not changed for a day: its process was killed."""
    try:
        return time.time() - path.lstat().st_mtime > _STALE_SECONDS
    except OSError:  # it is gone
        return False


_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})
