"""What a folder of repositories offers: publishers, repositories, branches, commits.

`<root>/<org>/<name>/<branch>/…` is the layout: one sub-folder a version (`v1`) or another branch (`main`), each a whole
repository; a sub-folder named like a commit id is that commit. Pull requests lie in `.pulls/<number>`, and a file
`.private` hides a repository from those without a token. The disk is looked at on every call, so a changed file is a
new commit at the next request; only hashes are remembered.

A repository with a record of `kernels download --to` is as it was on the Hub it came from: its branches are those
commits, under their own ids, of which the builds are there that were carried; nothing in it changes.
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

from kernels.cache.repository import has_content
from kernels.errors import InvalidRepository, RepositoryNotFound, RequestError, RevisionNotFound
from kernels.models.requirement import check_repo_id, check_revision, is_commit
from kernels.models.snapshot import BUILD_FOLDER, MAX_FILES, RepoFile
from kernels.server.listings import Listed, Listings, Row
from kernels.server.snapshot import Commit, File, blob_oid, lfs_pointer, take_snapshot
from kernels.sources.manifest import Record, Records
from kernels.support.files import open_regular

__all__ = ["PRIVATE", "PULLS", "Catalog", "Publisher", "kept_large"]

#: What marks a private repository, and where pull requests lie: names that no branch can have.
PRIVATE = ".private"
PULLS = ".pulls"

# What the Hub's clients put into LFS: native code by its name, anything by its size.
_LFS_SUFFIXES = (".so", ".dylib", ".dll", ".pyd")
_LFS_SIZE = 10 * 10**6
_CHUNK = 1 << 20
_VERSION = re.compile(r"v(0|[1-9][0-9]*)")
# Links that lead to each other make millions of folders out of a few.
_MAX_FOLDERS = 50_000
# How often a folder is looked at of which files vanish meanwhile.
_LOOKS = 5

_PULL = re.compile(r"refs/pr/([1-9][0-9]{0,8})")


@dataclass(frozen=True)
class Publisher:
    """An organization or a person: its name, and whether kernels of its are trusted."""

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
        models: Repositories (`org/name`) of type `model`, as kernels were published before there were any of their own.
        bytecode: Whether `__pycache__` and `*.pyc` are part of a repository. By default they are not: they appear
            when a kernel is imported from the folder, and would change its commit.

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
                f"`root` is {str(root)!r}; allowed is a folder that exists: <root>/<org>/<name>/<version>/…, or an "
                "empty one to publish to."
            )
        self.root = Path(os.path.realpath(path))
        self.trusted = trusted
        self.users = users
        self.models = models
        self.bytecode = bytecode
        self._records = Records()
        self._listings = Listings()

    def publisher(self, name: str, *, private: bool = True) -> Publisher | None:
        """The publisher of that name, or None where the root has no such folder.

        Args:
            name: The publisher.
            private: Whether its private repositories count. Without them a publisher that has no others is not there.
        """
        try:
            check_repo_id(f"{name}/x")
        except RequestError:
            return None
        folder = self._inside(self.root / name)
        if folder is None:
            return None
        found = _subfolders(folder)
        names = [each for each in found if private or not self.private(f"{name}/{each}")]
        if found and not names:
            return None
        trusted = name in self.trusted or (names != [] and all(self._vouched(f"{name}/{each}") for each in names))
        return Publisher(name, name in self.users, trusted, len(names))

    def carried(self, repo_id: str) -> Record | None:
        """The record of a repository that `kernels download --to` wrote; None for any other.

        Raises:
            InvalidRepository: It cannot be used.
        """
        folder = self._inside(self.root / repo_id)
        return None if folder is None else self._records.of(folder)

    def _vouched(self, repo_id: str) -> bool:
        """Whether the Hub that a repository was carried from marks its publisher as trusted."""
        try:
            record = self.carried(repo_id)
        except InvalidRepository:
            return False
        return record is not None and record.trusted is True

    def with_builds(self) -> list[str]:
        """The repositories, `org/name`, of which a branch has builds."""
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
        """The repository's branches and the commit at the head of each.

        Raises:
            RepositoryNotFound: There is no such repository of that type.
        """
        folder = self.repository(repo_id, kind)
        record = self.carried(repo_id)
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
            RepositoryNotFound: There is no such repository of that type.
            RevisionNotFound: It has no such revision.
        """
        folder = self.repository(repo_id, kind)
        record = self.carried(repo_id)
        if record is not None:
            return self._carried_commit(repo_id, record, folder, revision)
        names = self._branch_names(folder)
        pull = _PULL.fullmatch(revision or "")
        if pull is not None and self._inside(folder / PULLS / pull[1]):
            return self._commit(repo_id, folder / PULLS / pull[1])
        branch = _default(names) if revision is None else revision.removeprefix("refs/heads/")
        if branch in names or (branch is not None and is_commit(branch) and self._inside(folder / branch)):
            return self._commit(repo_id, folder / branch)
        if branch is not None and is_commit(branch):
            # First where the commit was last seen: a client asks for one commit many times in a row.
            pulls = [f"{PULLS}/{number}" for number in self._pull_numbers(folder)]
            for name in sorted([*names, *pulls], key=lambda name: not self._seen(folder / name, branch)):
                head = self._commit(repo_id, folder / name)
                if head.id == branch:
                    return head
            if self._inside(folder / branch):  # it was a head until a moment ago
                return self._commit(repo_id, folder / branch)
        raise RevisionNotFound(
            f"{repo_id} has no revision {revision or 'main'!r}; it has: {', '.join(names) or 'none'}."
        )

    def known(self, repo_id: str, commit: str, *, kind: str = "kernel") -> Commit | None:
        """A commit as it was last seen, without a look at the disk; None where it was not seen, or is no commit's id.

        A file of it may have been changed since: `File.open` finds out.

        Raises:
            RepositoryNotFound: There is no such repository of that type.
        """
        known = self._listings.known(repo_id, commit)
        if known is not None:
            self.repository(repo_id, kind)
        return known

    def pulls(self, repo_id: str, *, kind: str = "kernel") -> dict[int, str]:
        """The repository's pull requests by number, and the commit at the head of each.

        Raises:
            RepositoryNotFound: There is no such repository of that type.
        """
        folder = self.repository(repo_id, kind)
        numbers = self._pull_numbers(folder)
        return {number: self._commit(repo_id, folder / PULLS / str(number)).id for number in numbers}

    def private(self, repo_id: str) -> bool:
        """Whether a repository is shown only to those with a token."""
        try:
            check_repo_id(repo_id)
        except RequestError:
            return False
        try:
            os.lstat(self.root / repo_id / PRIVATE)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # it cannot be told, so nobody without a token is shown it
            return True
        return True

    def repository(self, repo_id: str, kind: str = "kernel") -> Path:
        """The folder of a repository.

        Raises:
            RepositoryNotFound: There is no such repository of that type.
        """
        missing = RepositoryNotFound(f"There is no {kind} repository {repo_id!r} here.")
        try:
            check_repo_id(repo_id)
        except RequestError:
            raise missing from None
        folder = self._inside(self.root / repo_id)
        if folder is None:
            raise missing
        record = self._records.of(folder)
        own = record.repo_type if record is not None else "model" if repo_id in self.models else "kernel"
        if kind != own:
            raise missing
        return folder

    def _carried_commit(self, repo_id: str, record: Record, folder: Path, revision: str | None) -> Commit:
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
        """The folder a path leads to, links followed, unless that is no folder or lies outside the root."""
        real = Path(os.path.realpath(path))
        return real if real.is_relative_to(self.root) and real.is_dir() else None

    def _seen(self, folder: Path, commit: str) -> bool:
        listed = self._listings.of(folder)
        return listed is not None and listed.commit.id == commit

    def alone(self, folder: Path) -> AbstractContextManager[None]:
        """While this is held nobody else looks at the folder of a branch: who replaces it is never seen half-way."""
        return self._listings.alone(folder)

    def _commit(self, repo_id: str, folder: Path, listed: Mapping[str, RepoFile] | None = None) -> Commit:
        def look(known: Listed | None) -> tuple[list[Row], Callable[[], Commit]]:
            found = sorted(islice(self._walk(folder), MAX_FILES + 1))
            if len(found) > MAX_FILES:
                raise InvalidRepository(f"{folder} has more than {MAX_FILES} files; a kernel repository has fewer.")
            if listed is not None:
                found = _complete(found, listed)
            return found, lambda: self._arranged(repo_id, folder, found, listed, known)

        for _ in range(_LOOKS):
            try:
                return self._listings.at(repo_id, folder, look)
            except (FileNotFoundError, NotADirectoryError):  # it was changed while it was looked at
                continue
        raise RevisionNotFound(f"{repo_id} has no revision {folder.name!r} any more, or it changes all the time.")

    def _arranged(
        self,
        repo_id: str,
        folder: Path,
        rows: list[Row],
        listed: Mapping[str, RepoFile] | None,
        known: Listed | None,
    ) -> Commit:
        before = {} if known is None else {row[1:]: known.commit.files[row[0]] for row in known.rows}
        files = [self._file(row, before.get(row[1:]), None if listed is None else listed[row[0]]) for row in rows]
        newest = max((row[2] for row in rows), default=0)
        commit = take_snapshot(repo_id, files, datetime.fromtimestamp(newest / 1e9, timezone.utc))
        return replace(commit, id=folder.name) if is_commit(folder.name) else commit

    def _walk(self, top: Path) -> Iterator[Row]:
        """Yield every regular file inside the root."""
        pending: list[tuple[str, str, frozenset[str]]] = [("", str(top), frozenset({os.path.realpath(top)}))]
        folders = 0
        while pending:
            prefix, folder, above = pending.pop()
            folders += 1
            if folders > _MAX_FOLDERS:
                raise InvalidRepository(f"{top} has more than {_MAX_FOLDERS} folders; a kernel repository has fewer.")
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not self.served(entry.name):
                        continue
                    source = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
                    if source is not entry.path and not Path(source).is_relative_to(self.root):
                        continue
                    try:
                        status = entry.stat()
                    except OSError:  # a link that leads nowhere or in circles, or gone since the folder was read
                        continue
                    path = prefix + entry.name
                    if stat.S_ISREG(status.st_mode):
                        yield path, source, status.st_mtime_ns, status.st_size, status.st_ino
                    elif stat.S_ISDIR(status.st_mode) and source not in above:  # a link to a parent would never end
                        pending.append((path + "/", source, above | {source}))

    def served(self, name: str) -> bool:
        """Whether a file or folder of that name is part of a repository."""
        if name == ".git" or not _is_text(name):
            return False
        return self.bytecode or not (name == "__pycache__" or name.endswith((".pyc", ".pyo")))

    def _file(self, row: Row, before: File | None, listed: RepoFile | None) -> File:
        path, source, mtime_ns, size, inode = row
        # A file that lies where it lay is not hashed again; one that was carried is, should its record be another one.
        if before is not None and (listed is None or listed.blob in (before.oid, before.sha256)):
            oid, sha256 = before.oid, before.sha256
        else:
            oid, sha256 = _hash(source, size) if listed is None else _listed_hash(source, listed)
        return File(path, Path(source), size, oid, sha256, (mtime_ns, size, inode))


def _complete(found: list[Row], listed: Mapping[str, RepoFile]) -> list[Row]:
    """The files that were carried, of builds of which none has got lost on the way."""
    here = {path for path, _, _, size, _ in found if path in listed and listed[path].size == size}
    lost = {_build_of(path) for path in listed if path not in here} - {""}
    return [row for row in found if row[0] in here and _build_of(row[0]) not in lost]


def _build_of(path: str) -> str:
    parts = path.split("/", 2)
    return parts[1] if len(parts) == 3 and parts[0] == BUILD_FOLDER else ""


def _listed_hash(source: str, listed: RepoFile) -> tuple[str, str | None]:
    """The hashes that a Hub gave, of a file that still has them."""
    if not has_content(Path(source), listed):
        raise InvalidRepository(f"{source} is not what the Hub listed that it came from. Carry it here again.")
    return listed.oid or blob_oid(lfs_pointer(listed.blob, listed.size)), listed.sha256


def _hash(source: str, size: int) -> tuple[str, str | None]:
    # No more than the size it had: one that grows meanwhile is another file at the next look.
    with open_regular(source) as file:
        if not kept_large(source, size):
            return blob_oid(b"".join(_chunks(file, size))), None
        digest = hashlib.sha256()
        for chunk in _chunks(file, size):
            digest.update(chunk)
    return blob_oid(lfs_pointer(digest.hexdigest(), size)), digest.hexdigest()


def _chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0 and (chunk := file.read(min(size, _CHUNK))):
        size -= len(chunk)
        yield chunk


def kept_large(path: str, size: int) -> bool:
    """Whether a file of that name and size (bytes) is kept in LFS.

    Example:
        >>> kept_large("build/torch-cpu/__init__.py", 200), kept_large("_relu.abi3.so", 200)
        (False, True)
    """
    return path.endswith(_LFS_SUFFIXES) or size >= _LFS_SIZE


def _subfolders(folder: Path) -> list[str]:
    """Names of the folders in a folder that a repository or a branch can have, sorted."""
    names = []
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                check_revision(entry.name)
            except RequestError:
                continue
            if entry.is_dir():
                names.append(entry.name)
    return sorted(names)


def _default(names: list[str]) -> str | None:
    if "main" in names:
        return "main"
    versions = [name for name in names if _VERSION.fullmatch(name)]
    return max(versions, key=lambda name: int(name[1:])) if versions else next(iter(names), None)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # not UTF-8 on disk: no JSON can name it
        return False
    return True
