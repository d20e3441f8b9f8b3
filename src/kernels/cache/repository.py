"""What is on disk, and how it gets there exactly once.

The layout is huggingface_hub's, so that its tools see it:

    <cache>/kernels--<org>--<name>/
        blobs/<hash>                   contents
        snapshots/<commit>/<path>      links to contents
        index/<commit>-<Hub>.json      the commit's file list, which never changes
        index/<commit>-fetched         that this client fetched files of the commit; it names no Hub and holds nothing
        index/<commit>-<Hub>.allowed   that a caller allowed the commit, whoever publishes it
        index/<commit>-<Hub>-<variant>.checked  what was found of a build's files, and which files those were
        index/heads-<Hub>.json         branches and tags, and when they were learned
    <cache>/.locks/kernels--<org>--<name>/<name>.lock
    <cache>/.locks/kernels-verdicts/<Hub>/<publisher>.json
    <cache>/.locks/kernels-signatures/<hash>.json  who signed, where a signature was verified

A file is written under a temporary name, checked, and renamed into place: a kill at any moment leaves the old state or
the new one.
"""

from __future__ import annotations

import errno
import filecmp
import hashlib
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from kernels.cache.partial_file import PartialFile
from kernels.errors import InvalidRepository
from kernels.models.requirement import is_commit
from kernels.models.snapshot import Heads, RepoFile
from kernels.support.files import open_regular, read_bounded
from kernels.support.json_store import (
    MAX_LISTING_BYTES,
    StoredRecord,
    cannot_write,
    endpoint_key,
    is_ours,
    is_owner,
    read_record,
    replace_file,
    write_record,
)
from kernels.support.process_lock import WorkLock, lock_at
from kernels.support.real_folders import LinkedFolder, check_folders, is_real_folder, make_folders
from kernels.trust.digest import is_as_listed

if TYPE_CHECKING:
    from io import FileIO

__all__ = ["CLEARING", "RepoStore"]

#: The index's form: a reader of another form takes it as not there.
_FORM = 1

#: A branch that another tool recorded is a file with a commit's id in it.
_MAX_REF_BYTES = 256

#: A temporary file older than this belongs to a process that was killed.
_STALE_SECONDS = 24 * 3600.0

#: The lock of a repository under which contents are removed that no snapshot needs.
CLEARING = "clearing"

#: Less than this of a file is not gone on with: to ask for it again costs no more.
_WORTH_KEEPING = 1024 * 1024

#: How often a file is written again whose folder was cleared away meanwhile.
_PLACE_TRIES = 5


class _Index(StoredRecord, array_like=True):
    max_bytes: ClassVar[int] = MAX_LISTING_BYTES

    form: int
    files: list[RepoFile]


class _Heads(StoredRecord):
    max_bytes: ClassVar[int] = MAX_LISTING_BYTES

    form: int
    endpoint: str
    time: float
    branches: dict[str, str]
    tags: dict[str, str]


class _Allowed(StoredRecord):
    form: int
    commit: str


class RepoStore:
    """One repository's folder in the cache.

    Args:
        cache: The cache's folder.
        repo_type: `kernel` or `model`.
        repo_id: `org/name`.

    Example:
        >>> RepoStore(Path("/cache"), "kernel", "org/relu").folder.name
        'kernels--org--relu'
    """

    def __init__(self, cache: Path, repo_type: str, repo_id: str) -> None:
        self.cache = cache
        self.folder = cache / f"{repo_type}s--{repo_id.replace('/', '--')}"

    # Facts that never change

    def index(self, endpoint: str, commit: str) -> tuple[RepoFile, ...] | None:
        """The file list of a commit as a Hub gave it, if it was stored; a damaged one is as good as none."""
        return self.listed(endpoint_key(endpoint), commit)

    def listed(self, hub: str, commit: str) -> tuple[RepoFile, ...] | None:
        """As `index`, of a Hub of which only the short name is known."""
        record = read_record(self.folder / "index" / f"{commit}-{hub}.json", _Index)
        return tuple(record.files) if record is not None and record.form == _FORM else None

    def keep_index(self, endpoint: str, commit: str, files: Iterable[RepoFile]) -> None:
        """Store the file list of a commit that a Hub gave."""
        write_record(self._index(endpoint, commit), _Index(_FORM, list(files)))

    def _index(self, endpoint: str, commit: str) -> Path:
        # A commit's id is only as good as the Hub that says it: one Hub's word is no evidence for another's.
        return self.folder / "index" / f"{commit}-{endpoint_key(endpoint)}.json"

    def mark_fetched(self, commit: str) -> None:
        """Mark a commit as one of which this client fetches files: before the first one, or none is fetched.

        What is marked was not brought by another client, so that it is only loaded if its publisher was admitted. The
        mark holds nothing that a Hub could choose, as a list of files does: one that is too large is not stored.

        Raises:
            StoreError: The cache cannot be written.
        """
        mark = self.folder / "index" / f"{commit}-fetched"
        with _writing(mark):
            make_folders(mark.parent, self.cache)
            with suppress(FileNotFoundError):
                if is_ours(os.lstat(mark)):
                    return
            replace_file(mark, b"", mode=0o444)

    def was_fetched(self, commit: str) -> bool:
        """Whether this client, run by this user or root, fetched or listed anything of a commit, of any Hub.

        This can only refuse, so it counts whoever else may write the record.
        """
        with suppress(OSError), os.scandir(self.folder / "index") as entries:
            return any(
                each.name.startswith(f"{commit}-") and is_owner(each.stat(follow_symlinks=False)) for each in entries
            )
        return False

    def allowed(self, endpoint: str, commit: str) -> bool:
        """Whether a caller has allowed a commit, as one Hub listed it, whoever publishes it."""
        record = read_record(self._allowed(endpoint, commit), _Allowed)
        return record is not None and (record.form, record.commit) == (_FORM, commit)

    def keep_allowed(self, endpoint: str, commit: str) -> None:
        """Store that a caller has allowed a commit."""
        if not self.allowed(endpoint, commit):
            write_record(self._allowed(endpoint, commit), _Allowed(form=_FORM, commit=commit))

    def _allowed(self, endpoint: str, commit: str) -> Path:
        return self.folder / "index" / f"{commit}-{endpoint_key(endpoint)}.allowed"

    def check_record(self, endpoint: str, commit: str, variant: str) -> Path:
        """The record of the checks of a build, as one Hub listed it."""
        return self.folder / "index" / f"{commit}-{endpoint_key(endpoint)}-{variant}.checked"

    # Facts with an age

    def heads(self, endpoint: str) -> Heads | None:
        """The branches and tags as one Hub last gave them."""
        record = read_record(self._heads(endpoint), _Heads)
        if record is None or record.form != _FORM or record.endpoint != endpoint:
            return None
        return Heads(record.branches, record.tags, record.time)

    def keep_heads(self, endpoint: str, heads: Heads) -> None:
        """Store the branches and tags that a Hub gave."""
        record = _Heads(_FORM, endpoint, heads.time, dict(heads.branches), dict(heads.tags))
        write_record(self._heads(endpoint), record)

    def _heads(self, endpoint: str) -> Path:
        return self.folder / "index" / f"heads-{endpoint_key(endpoint)}.json"

    def foreign_heads(self) -> Heads:
        """The branches that other tools recorded under `refs/`, for want of anything that says which Hub and when."""
        refs = self.folder / "refs"
        branches = {}
        for path in sorted(refs.rglob("*")) if refs.is_dir() else []:
            with suppress(OSError, UnicodeDecodeError):
                commit = read_bounded(path, _MAX_REF_BYTES).decode().strip()
                if is_commit(commit):
                    branches[path.relative_to(refs).as_posix()] = commit
        return Heads(branches)

    # Snapshots

    def snapshot(self, commit: str) -> Path:
        """The folder of a commit's files."""
        return self.folder / "snapshots" / commit

    def commits(self) -> list[str]:
        """The commits of which something is here, the one last touched first."""
        with suppress(OSError):
            found = [path for path in (self.folder / "snapshots").iterdir() if is_commit(path.name) and path.is_dir()]
            return [path.name for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)]
        return []

    def listing(self, commit: str) -> tuple[RepoFile, ...]:
        """The files of a commit that are here: what is known of a cache that another tool filled."""
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
        path = f"{os.fspath(self.snapshot(commit))}/{file.path}"
        try:
            if os.stat(path).st_size != file.size:
                return False
            target = os.readlink(path)
        except OSError as error:
            # A file that is no link: a file system without them, where size is all there is to compare.
            return error.errno not in _ABSENT and os.path.isfile(path) and not os.path.islink(path)
        return not file.blob or os.path.basename(target) == file.blob

    def missing(self, commit: str, files: Iterable[RepoFile]) -> list[RepoFile]:
        """The files that are not in the snapshot as they were listed."""
        return [file for file in files if not self.has(commit, file)]

    def damaged(self, commit: str, files: Iterable[RepoFile]) -> list[RepoFile]:
        """The files that are in the snapshot, but not as listed, where no other one is missing.

        Of a build that was never downloaded as a whole nothing counts as damaged: only its metadata may be here.
        """
        missing = self.missing(commit, files)
        return missing if all(self.lies(commit, file) for file in missing) else []

    def lies(self, commit: str, file: RepoFile) -> bool:
        """Whether there is a file of that name in the snapshot, whatever is in it."""
        return (self.snapshot(commit) / file.path).is_file()

    def read(self, commit: str, file: RepoFile) -> bytes | None:
        """The content of a file in the snapshot, or None if it is not there as listed."""
        if not self.has(commit, file):
            return None
        with suppress(OSError):
            data = (self.snapshot(commit) / file.path).read_bytes()
            return data if file.describes(data) else None
        return None

    def place(self, commit: str, file: RepoFile, content: bytes) -> None:
        """Put a file's checked content into the snapshot.

        Raises:
            StoreError: The cache cannot be written.
            InvalidRepository: A link stands where a folder of the cache must be.
        """
        blob = self.folder / "blobs" / (file.blob or hashlib.sha256(content).hexdigest())
        with _writing(blob):
            for attempt in range(_PLACE_TRIES):
                try:
                    self._in_blobs(make_folders)
                    if not is_as_listed(blob, file):
                        replace_file(blob, content, suffix=".incomplete")
                    self._link(commit, file, blob)
                    return
                except FileNotFoundError:  # who clears up removed a folder that was empty a moment ago
                    if attempt == _PLACE_TRIES - 1:
                        raise

    @contextmanager
    def part(self, file: RepoFile, arrived: Callable[[int], None]) -> Iterator[PartialFile]:
        """A file of our own that a large file is received into, under the hash that was listed.

        It begins with the most that a process that was killed left of the file, as a copy: its writer may live where a
        file system's locks do not hold. It stays when the block fails, to be gone on with.

        Args:
            file: What was listed.
            arrived: Told the number of bytes after each write.

        Raises:
            StoreError: The cache cannot be written.
            InvalidRepository: A link stands where a folder of the cache must be.
        """
        path = self.folder / "blobs" / f"{file.blob or 'unnamed'}.{secrets.token_hex(4)}.incomplete"
        with _writing(path):
            self._in_blobs(make_folders)
            begun = self._begun(file)
            own = path.open("x+b", buffering=0)
            try:
                if begun is not None:
                    self._copy(begun, own, file.size)
            except BaseException:
                own.close()
                with suppress(OSError):
                    path.unlink()
                raise
        with PartialFile(own, path, file, arrived) as part:
            try:
                yield part
            finally:
                if part.offset < _WORTH_KEEPING:
                    part.remove()

    def _begun(self, file: RepoFile) -> Path | None:
        found = []
        for path in (self.folder / "blobs").glob(f"{file.blob}*.incomplete") if file.blob else ():
            with suppress(OSError):
                if path.is_file() and not path.is_symlink() and 0 < (size := path.stat().st_size) < file.size:
                    found.append((size, path))
        return max(found, default=(0, None))[1]

    def _copy(self, begun: Path, own: FileIO, most: int) -> None:
        """What another process left, which may be growing, or no file by now."""
        try:
            opened = open_regular(begun, follow=False)
        except OSError:
            return
        with opened:
            while most and (block := opened.read(min(most, 1024 * 1024))):
                most -= len(block)
                view = memoryview(block)
                while view:
                    view = view[own.write(view) :]

    def keep(self, commit: str, part: PartialFile) -> None:
        """Move a file that was received into the snapshot; whether it is the one listed is for the caller.

        Raises:
            StoreError: The cache cannot be written.
            InvalidRepository: A link stands where a folder of the cache must be.
        """
        blob = self.folder / "blobs" / part.blob
        part.close()
        with _writing(blob):
            self._in_blobs(make_folders)
            os.replace(part.path, blob)
            self._link(commit, part.file, blob)

    def adopt(self, commit: str, file: RepoFile) -> bool:
        """Put a file into the snapshot whose content another commit already brought; False if none did.

        Raises:
            StoreError: The cache cannot be written.
            InvalidRepository: A link stands where a folder of the cache must be.
        """
        blob = self.folder / "blobs" / file.blob
        if not file.blob or not is_as_listed(blob, file):
            return False
        with _writing(self.snapshot(commit) / file.path):
            try:
                self._in_blobs(make_folders)
                self._link(commit, file, blob)
            except FileNotFoundError:  # who clears up removed a folder on the way; it is downloaded instead
                return False
        return True

    def discard(self, commit: str, file: RepoFile) -> None:
        """Take a file whose content is not what was listed out of the snapshot and out of the contents.

        Raises:
            InvalidRepository: A link stands where a folder of the cache must be.
        """
        placed, blob = self.snapshot(commit) / file.path, self.folder / "blobs" / file.blob
        with _writing(placed):
            check_folders(placed.parent, self.cache)
            self._in_blobs(check_folders)
        for path in (placed, blob):
            with suppress(OSError):
                path.unlink()

    def _in_blobs(self, prepare: Callable[[Path, Path], None]) -> None:
        """Check or make the folder of contents, which may be a link to the one that repositories share."""
        blobs, shared = self.folder / "blobs", self.cache / "blobs"
        try:
            prepare(blobs, self.cache)
        except LinkedFolder:
            inside = is_real_folder(self.folder) and is_real_folder(shared)
            if not inside or os.path.realpath(blobs) != os.path.realpath(shared):
                raise

    def _link(self, commit: str, file: RepoFile, blob: Path) -> None:
        link = self.snapshot(commit) / file.path
        make_folders(link.parent, self.cache)
        _link(link, blob)

    def check_links(self, commit: str, files: Iterable[RepoFile]) -> None:
        """Make sure that every file of a build really lies in this cache.

        Raises:
            InvalidRepository: A link leads out of the repository's folder (or of the contents that huggingface_hub
                shares between repositories, `<cache>/blobs`).
        """
        roots = tuple(os.path.realpath(root) + os.sep for root in (self.folder, self.cache / "blobs"))
        resolved: dict[str, str] = {}
        snapshot = os.fspath(self.snapshot(commit))
        for file in files:
            path = f"{snapshot}/{file.path}"
            if not _real_path(path, resolved).startswith(roots):
                raise InvalidRepository(
                    f"{path} is a link to {os.path.realpath(path)}, outside the repository's folder in the cache. "
                    f"Delete {self.folder} and download the kernel again."
                )

    def reading_lock(self, commit: str, path: str) -> WorkLock:
        """The lock under which one file is fetched to be read, before it is known which build is wanted."""
        return self.lock(f"{commit}-{path.replace('/', '-')[-100:]}")

    def lock(self, name: str) -> WorkLock:
        """The lock of one piece of work on this repository; it is shared by every process."""
        return lock_at(self.cache / ".locks" / self.folder.name / f"{name}.lock")

    def sweep(self) -> None:
        """Remove temporary files of processes that were killed long ago."""
        for path in self.leftovers():
            with suppress(OSError):
                path.unlink()

    def leftovers(self) -> list[Path]:
        """Temporary files of processes that were killed long ago.

        Of a model, which other tools download too, only those that nobody would take up again.
        """
        found = []
        for folder, pattern in (("blobs", "*.incomplete"), ("index", "*.tmp")):
            with suppress(OSError):
                check_folders(self.folder / folder, self.cache)
                found += [path for path in (self.folder / folder).glob(pattern) if _is_stale(path)]
        if self.folder.name.startswith("kernels--"):
            return found
        return [path for path in found if _ONE_PROCESSES.search(path.name)]


def _real_path(path: str, resolved: dict[str, str]) -> str:
    """`os.path.realpath`, for many files in few folders: what a folder really is, is looked up once."""

    def folder(name: str) -> str:
        if name not in resolved:
            resolved[name] = os.path.realpath(name)
        return resolved[name]

    parent, name = os.path.split(path)
    try:
        target_folder, name = os.path.split(os.path.join(folder(parent), os.readlink(path)))
    except OSError:  # no link
        return os.path.join(folder(parent), name)
    target = os.path.join(folder(target_folder), name)
    return os.path.realpath(target) if name in ("", ".", "..") or os.path.islink(target) else target


#: A temporary name with something random in it: not one under which huggingface_hub goes on with a download.
_ONE_PROCESSES = re.compile(r"(^|\.)([0-9a-f]{8}|[0-9a-f]{12})\.(incomplete|tmp)$")


def _is_stale(path: Path) -> bool:
    try:
        return time.time() - path.lstat().st_mtime > _STALE_SECONDS
    except OSError:  # it is gone
        return False


_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})


def _link(link: Path, blob: Path) -> None:
    target = os.path.relpath(blob, link.parent)
    # Not beside the link: what a kill leaves behind must not count as a file of the build.
    temporary = blob.with_name(f"{secrets.token_hex(6)}.incomplete")
    try:
        try:
            os.symlink(target, temporary)
        except OSError as error:
            if sys.platform != "win32" and error.errno not in _NO_LINKS:
                raise
            if _is_copy(link, blob):  # one that another process has open is better left alone
                return
            shutil.copyfile(blob, temporary)
        os.replace(temporary, link)
    finally:
        with suppress(OSError):
            temporary.unlink()


def _is_copy(path: Path, blob: Path) -> bool:
    try:
        return not path.is_symlink() and filecmp.cmp(path, blob, shallow=False)
    except OSError:
        return False


#: A file system without symbolic links.
_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.ENOTSUP})


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except LinkedFolder as error:
        raise InvalidRepository(f"{error.strerror}; what is missing is downloaded again.") from error
    except OSError as error:
        raise cannot_write(error, path) from error
