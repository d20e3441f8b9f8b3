"""The publishers, repositories, branches and commits in a folder of repositories.

The layout is `<root>/<org>/<name>/<branch>/…`: one sub-folder for each version (`v1`) or other branch (`main`), which
holds all of its files. A sub-folder named like a commit id is that commit. Pull requests are in `.pulls/<number>`. A
file `.private` hides a repository from clients without a token. Every call reads the disk, so a changed file is a new
commit at the next request; only hashes are cached.

A repository with a record of `kernels download --to` is read-only: its branches are the commits of the Hub that it was
downloaded from, under their own ids, with the builds that were downloaded.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from kernels.errors import InvalidRepository, RepositoryNotFound, RequestError, RevisionNotFound
from kernels.models.requirement import check_repo_id, check_revision, is_commit
from kernels.models.snapshot import BUILD_FOLDER, MAX_FILES, RepoFile
from kernels.server.listings import FileRow, FolderListing, Listings
from kernels.server.snapshot import Commit, File, blob_oid, lfs_pointer, take_snapshot
from kernels.sources.folder_record import FolderRecord, FolderRecords
from kernels.support.files import open_regular
from kernels.trust.digest import is_as_listed

__all__ = ["PRIVATE", "PULLS", "Catalog", "Publisher", "is_lfs"]

#: The mark of a private repository, and the folder of pull requests: names that no branch can have.
PRIVATE = ".private"
PULLS = ".pulls"

# The Hub's clients put native code, by its name, and all large files into LFS.
_LFS_SUFFIXES = (".so", ".dylib", ".dll", ".pyd")
_LFS_SIZE = 10 * 10**6
_CHUNK = 1 << 20
_VERSION = re.compile(r"v(0|[1-9][0-9]*)")
# Links to each other can make millions of folders out of a few.
_MAX_FOLDERS = 50_000
# How often a folder is scanned again if files vanish meanwhile.
_ATTEMPTS = 5

_PULL = re.compile(r"refs/pr/([1-9][0-9]{0,8})")


@dataclass(frozen=True)
class Publisher:
    """An organization or a person, whether its kernels are trusted, and how many repositories it has."""

    name: str
    person: bool
    trusted: bool
    repositories: int


class Catalog:
    """The repositories below a folder.

    Args:
        root: The folder.
        trusted: Publishers marked as trusted for kernels.
        users: Publishers that are persons, not organizations.
        models: Repositories (`org/name`) of type `model`, as kernels were published before they had their own type.
        bytecode: Whether `__pycache__` and `*.pyc` are part of a repository. By default they are not, as importing a
            kernel from the folder would change its commit.

    Raises:
        RequestError: `root` is not a folder.
    """

    def __init__(
        self,
        root: os.PathLike[str] | str,
        *,
        trusted: Collection[str] = (),
        users: Collection[str] = (),
        models: Collection[str] = (),
        bytecode: bool = False,
    ) -> None:
        path = Path(root).expanduser()
        if not path.is_dir():
            raise RequestError(
                f"`root` is {str(root)!r}; expected an existing folder, with <root>/<org>/<name>/<version>/… or empty."
            )
        self.root = Path(os.path.realpath(path))
        self.trusted = trusted
        self.users = users
        self.models = models
        self.bytecode = bytecode
        self._records = FolderRecords()
        self._listings = Listings()

    def publisher(self, name: str, *, private: bool = True) -> Publisher | None:
        """The publisher of that name, or None if the root has no such folder.

        Args:
            name: The publisher.
            private: Whether to count private repositories. If not, a publisher that has no others is not found.
        """
        if not _is_repo_id(f"{name}/x"):
            return None
        folder = self._inside(self.root / name)
        if folder is None:
            return None
        found = _subfolders(folder)
        names = [each for each in found if private or not self.private(f"{name}/{each}")]
        if found and not names:
            return None
        trusted = name in self.trusted or (
            names != [] and all(self._trusted_upstream(f"{name}/{each}") for each in names)
        )
        return Publisher(name, name in self.users, trusted, len(names))

    def download_record(self, repo_id: str) -> FolderRecord | None:
        """The record that `kernels download --to` wrote for a repository, if it did.

        Raises:
            InvalidRepository: The record is invalid.
        """
        folder = self._inside(self.root / repo_id)
        return None if folder is None else self._records.of(folder)

    def _trusted_upstream(self, repo_id: str) -> bool:
        """Whether the Hub that a repository was downloaded from trusts its publisher."""
        try:
            record = self.download_record(repo_id)
        except InvalidRepository:
            return False
        return record is not None and record.trusted is True

    def with_builds(self) -> list[str]:
        """The repositories, `org/name`, with a branch that has builds."""
        return [
            f"{publisher}/{name}"
            for publisher in self._folders(self.root)
            for name in self._folders(self.root / publisher)
            if any(
                self._inside(self.root / publisher / name / branch / BUILD_FOLDER)
                for branch in self._folders(self.root / publisher / name)
            )
        ]

    def branches(self, repo_id: str, *, kind: str = "kernel") -> dict[str, str]:
        """The repository's branches, and the commit at the head of each.

        Raises:
            RepositoryNotFound: The repository does not exist, or is of another type.
        """
        folder = self.repository(repo_id, kind)
        record = self.download_record(repo_id)
        if record is not None:
            return {name: commit for name, commit in sorted(record.branches.items()) if self._inside(folder / commit)}
        return {name: self._commit(repo_id, folder / name).id for name in self._branch_names(folder)}

    def commit(self, repo_id: str, revision: str | None = None, *, kind: str = "kernel") -> Commit:
        """The content of a repository at a revision.

        Args:
            repo_id: `org/name`.
            revision: A branch (also as `refs/heads/<name>`), a pull request (`refs/pr/<number>`), or the commit at
                the head of one. None: `main`, else the newest version.
            kind: `kernel` or `model`.

        Raises:
            RepositoryNotFound: The repository does not exist, or is of another type.
            RevisionNotFound: It has no such revision.
        """
        folder = self.repository(repo_id, kind)
        record = self.download_record(repo_id)
        if record is not None:
            return self._recorded_commit(repo_id, record, folder, revision)
        names = self._branch_names(folder)
        pull = _PULL.fullmatch(revision or "")
        if pull is not None and self._inside(folder / PULLS / pull[1]):
            return self._commit(repo_id, folder / PULLS / pull[1])
        branch = _default(names) if revision is None else revision.removeprefix("refs/heads/")
        if branch in names or (branch is not None and is_commit(branch) and self._inside(folder / branch)):
            return self._commit(repo_id, folder / branch)
        if branch is not None and is_commit(branch):
            # First where the commit was last seen: a client requests one commit many times in a row.
            pulls = [f"{PULLS}/{number}" for number in self._pull_numbers(folder)]
            for name in sorted([*names, *pulls], key=lambda name: not self._was_at(folder / name, branch)):
                head = self._commit(repo_id, folder / name)
                if head.id == branch:
                    return head
            if self._inside(folder / branch):  # it was a head until a moment ago
                return self._commit(repo_id, folder / branch)
        raise RevisionNotFound(
            f"{repo_id} has no revision {revision or 'main'!r}; it has: {', '.join(names) or 'none'}."
        )

    def known(self, repo_id: str, commit: str, *, kind: str = "kernel") -> Commit | None:
        """A cached commit, without reading the disk; None if it is not cached, or `commit` is not a commit id.

        A file of it may have changed since; `File.open` detects that.

        Raises:
            RepositoryNotFound: The repository does not exist, or is of another type.
        """
        known = self._listings.cached_commit(repo_id, commit)
        if known is not None:
            self.repository(repo_id, kind)
        return known

    def pulls(self, repo_id: str, *, kind: str = "kernel") -> dict[int, str]:
        """The repository's pull requests by number, and the commit at the head of each.

        Raises:
            RepositoryNotFound: The repository does not exist, or is of another type.
        """
        folder = self.repository(repo_id, kind)
        numbers = self._pull_numbers(folder)
        return {number: self._commit(repo_id, folder / PULLS / str(number)).id for number in numbers}

    def private(self, repo_id: str) -> bool:
        """Whether a repository is hidden from clients without a token."""
        if not _is_repo_id(repo_id):
            return False
        try:
            os.lstat(self.root / repo_id / PRIVATE)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # unknown, so it is hidden
            return True
        return True

    def repository(self, repo_id: str, kind: str = "kernel") -> Path:
        """The folder of a repository.

        Raises:
            RepositoryNotFound: The repository does not exist, or is of another type.
        """
        folder = self._inside(self.root / repo_id) if _is_repo_id(repo_id) else None
        if folder is not None:
            record = self._records.of(folder)
            own = record.repo_type if record is not None else "model" if repo_id in self.models else "kernel"
        if folder is None or kind != own:
            raise RepositoryNotFound(f"Repository {repo_id!r} of type {kind} not found.")
        return folder

    def _recorded_commit(self, repo_id: str, record: FolderRecord, folder: Path, revision: str | None) -> Commit:
        branch = _default(sorted(record.branches)) if revision is None else revision.removeprefix("refs/heads/")
        commit = record.branches.get(branch or "", branch or "")
        if commit not in record.files or not self._inside(folder / commit):
            there = ", ".join([*record.branches, *record.files])
            raise RevisionNotFound(f"{repo_id} has no revision {revision or 'main'!r}; it has: {there or 'none'}.")
        snapshot = record.snapshot(repo_id, commit)
        assert snapshot is not None
        return self._commit(repo_id, folder / commit, {file.path: file for file in snapshot.files})

    def _branch_names(self, folder: Path) -> list[str]:
        return [name for name in self._folders(folder) if not is_commit(name)]

    def _folders(self, folder: Path) -> list[str]:
        return [name for name in _subfolders(folder) if self._inside(folder / name)]

    def _pull_numbers(self, folder: Path) -> list[int]:
        pulls = self._inside(folder / PULLS)
        names = [] if pulls is None else [path.name for path in pulls.iterdir() if path.is_dir()]
        return sorted(int(name) for name in names if _PULL.fullmatch(f"refs/pr/{name}"))

    def _inside(self, path: Path) -> Path | None:
        """The folder that a path leads to through links; None if it is not a folder, or outside the root."""
        real = Path(os.path.realpath(path))
        return real if real.is_relative_to(self.root) and real.is_dir() else None

    def _was_at(self, folder: Path, commit: str) -> bool:
        cached = self._listings.cached(folder)
        return cached is not None and cached.commit.id == commit

    def locked(self, folder: Path) -> AbstractContextManager[None]:
        """Hold a branch's lock: no other thread reads it, so that it can be replaced in several steps."""
        return self._listings.locked(folder)

    def _commit(self, repo_id: str, folder: Path, listed: Mapping[str, RepoFile] | None = None) -> Commit:
        def scan(cached: FolderListing | None) -> tuple[list[FileRow], Callable[[], Commit]]:
            found = sorted(islice(self._walk(folder), MAX_FILES + 1))
            if len(found) > MAX_FILES:
                raise InvalidRepository(f"{folder} has more than {MAX_FILES} files; kernel repositories have fewer.")
            if listed is not None:
                found = _complete(found, listed)
            return found, lambda: self._arranged(repo_id, folder, found, listed, cached)

        for _ in range(_ATTEMPTS):
            try:
                return self._listings.current(repo_id, folder, scan)
            except (FileNotFoundError, NotADirectoryError):  # it changed during the scan
                continue
        raise RevisionNotFound(f"Revision {folder.name!r} of {repo_id} was removed, or changes all the time.")

    def _arranged(
        self,
        repo_id: str,
        folder: Path,
        rows: list[FileRow],
        listed: Mapping[str, RepoFile] | None,
        cached: FolderListing | None,
    ) -> Commit:
        before = {} if cached is None else {row[1:]: cached.commit.files[row[0]] for row in cached.rows}
        files = [self._file(row, before.get(row[1:]), None if listed is None else listed[row[0]]) for row in rows]
        newest = max((row[2] for row in rows), default=0)
        commit = take_snapshot(repo_id, files, datetime.fromtimestamp(newest / 1e9, timezone.utc))
        return replace(commit, id=folder.name) if is_commit(folder.name) else commit

    def _walk(self, top: Path) -> Iterator[FileRow]:
        """Yield every regular file inside the root."""
        pending: list[tuple[str, str, frozenset[str]]] = [("", str(top), frozenset({os.path.realpath(top)}))]
        folders = 0
        while pending:
            prefix, folder, above = pending.pop()
            folders += 1
            if folders > _MAX_FOLDERS:
                raise InvalidRepository(f"{top} has more than {_MAX_FOLDERS} folders; kernel repositories have fewer.")
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not self.served(entry.name):
                        continue
                    source = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
                    if source is not entry.path and not Path(source).is_relative_to(self.root):
                        continue
                    try:
                        status = entry.stat()
                    except OSError:  # a broken link, or removed since the folder was read
                        continue
                    path = prefix + entry.name
                    if stat.S_ISREG(status.st_mode):
                        yield path, source, status.st_mtime_ns, status.st_size, status.st_ino
                    elif stat.S_ISDIR(status.st_mode) and source not in above:  # a link to a parent would never end
                        pending.append((path + "/", source, above | {source}))

    def served(self, name: str) -> bool:
        """Whether a file or folder of that name is part of a repository."""
        if name == ".git" or not _is_valid(str.encode, name):  # JSON cannot hold a name that is not UTF-8
            return False
        return self.bytecode or not (name == "__pycache__" or name.endswith((".pyc", ".pyo")))

    def _file(self, row: FileRow, before: File | None, listed: RepoFile | None) -> File:
        path, source, mtime_ns, size, inode = row
        # An unchanged file is not hashed again, unless the record of a downloaded one has changed.
        if before is not None and (listed is None or listed.blob in (before.oid, before.sha256)):
            oid, sha256 = before.oid, before.sha256
        else:
            oid, sha256 = _hash(source, size) if listed is None else _listed_hash(source, listed)
        return File(path, Path(source), size, oid, sha256, (mtime_ns, size, inode))


def _complete(found: list[FileRow], listed: Mapping[str, RepoFile]) -> list[FileRow]:
    """The files that the record lists, without incomplete builds."""
    here = {path for path, _, _, size, _ in found if path in listed and listed[path].size == size}
    incomplete = {_build_of(path) for path in listed if path not in here} - {""}
    return [row for row in found if row[0] in here and _build_of(row[0]) not in incomplete]


def _build_of(path: str) -> str:
    parts = path.split("/", 2)
    return parts[1] if len(parts) == 3 and parts[0] == BUILD_FOLDER else ""


def _listed_hash(source: str, listed: RepoFile) -> tuple[str, str | None]:
    """The hashes that the record gives for a file, if its content has them."""
    if not is_as_listed(Path(source), listed):
        raise InvalidRepository(f"{source} is not the file that its Hub listed; download it again.")
    return listed.oid or blob_oid(lfs_pointer(listed.blob, listed.size)), listed.sha256


def _hash(source: str, size: int) -> tuple[str, str | None]:
    # Not beyond the listed size: a file that grows meanwhile is another file at the next scan.
    with open_regular(source) as file:
        if not is_lfs(source, size):
            return blob_oid(b"".join(_chunks(file, size))), None
        digest = hashlib.sha256()
        for chunk in _chunks(file, size):
            digest.update(chunk)
    return blob_oid(lfs_pointer(digest.hexdigest(), size)), digest.hexdigest()


def _chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0 and (chunk := file.read(min(size, _CHUNK))):
        size -= len(chunk)
        yield chunk


def is_lfs(path: str, size: int) -> bool:
    """Whether a file of that name and size (bytes) is kept in LFS.

    Example:
        >>> is_lfs("build/torch-cpu/__init__.py", 200), is_lfs("_relu.abi3.so", 200)
        (False, True)
    """
    return path.endswith(_LFS_SUFFIXES) or size >= _LFS_SIZE


def _subfolders(folder: Path) -> list[str]:
    """Names of sub-folders that are valid for a repository or a branch, sorted."""
    with os.scandir(folder) as entries:
        return sorted(each.name for each in entries if _is_valid(check_revision, each.name) and each.is_dir())


def _default(names: list[str]) -> str | None:
    if "main" in names:
        return "main"
    versions = [name for name in names if _VERSION.fullmatch(name)]
    return max(versions, key=lambda name: int(name[1:])) if versions else next(iter(names), None)


def _is_repo_id(text: str) -> bool:
    return _is_valid(check_repo_id, text)


def _is_valid(check: Callable[[str], object], text: str) -> bool:
    try:
        check(text)
    except (RequestError, UnicodeEncodeError):
        return False
    return True
