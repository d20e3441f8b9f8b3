"""Change the repositories of a catalog: a repository, a branch or a commit is written completely or not at all.

The new state is written to a hidden folder beside the branch, which then replaces the branch in one step. The old state
stays under its commit's id, for clients that pin it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from kernels.errors import KernelsError, RequestError
from kernels.models.requirement import check_repo_id, check_revision, is_commit
from kernels.models.snapshot import MAX_FILES
from kernels.server.catalog import PRIVATE, Catalog
from kernels.server.revision import PULLS, parse_revision
from kernels.server.scan import is_served, scan_folder
from kernels.server.snapshot import Commit

__all__ = ["Conflict", "MissingPath", "RepositoryChange", "Writer", "check_path"]

#: Bytes of a path and of a name in it: Linux's limits (`PATH_MAX`, `NAME_MAX`), with room for the root.
_MAX_PATH = 2048
_MAX_NAME = 255
#: Folders inside each other; builds have some ten.
_MAX_DEPTH = 64

# Linux: exchange two paths (renameat2(2), since Linux 3.15; glibc has it since 2.28).
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class Conflict(KernelsError):
    """The request conflicts with the current state: a name is taken, or a branch has changed."""


class MissingPath(KernelsError):
    """A commit deletes a file or folder that does not exist."""


@dataclass(frozen=True)
class RepositoryChange:
    """The changes of one commit: new contents (bytes, or a file that holds them) and deleted paths.

    `parent` is the commit that the branch must be at; None for any.
    """

    files: Mapping[str, bytes | Path] = field(default_factory=dict)
    deleted_files: Collection[str] = ()
    deleted_folders: Collection[str] = ()
    parent: str | None = None


class Writer:
    """Changes the repositories of a catalog, each by one thread at a time."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._lock = Lock()
        self._repository_locks: dict[str, Lock] = {}

    def create_repository(self, repo_id: str, *, private: bool = False) -> None:
        """Make an empty repository with the branch `main`; a private one is hidden from clients without a token."""
        check_repo_id(repo_id)
        publisher = self._catalog.root / repo_id.partition("/")[0]
        target = self._catalog.root / repo_id
        if publisher.is_symlink() or (publisher.exists() and not publisher.is_dir()):
            raise Conflict(f"{publisher.name!r} is a link or a file; expected a folder.")
        publisher.mkdir(exist_ok=True)
        with _staging(publisher) as staging:
            (staging / "main").mkdir()
            if private:
                (staging / PRIVATE).touch()
            _put(staging, target, f"Repository {repo_id!r} exists already.")

    def create_branch(self, repo_id: str, branch: str, start: str | None = None) -> None:
        """Make a branch with the files of the revision `start`: by default those of `main`, if it exists."""
        check_revision(branch)
        long = len(branch.encode()) > _MAX_NAME
        # Without case: the file system may ignore it.
        if "/" in branch or "\\" in branch or is_commit(branch.casefold()) or branch == "refs" or long:
            raise RequestError(
                f"`branch` is {branch[:200]!r}; expected a name without slashes, of at most {_MAX_NAME} bytes, that is "
                "not a commit id."
            )
        folder = self._catalog.repository(repo_id)
        with self._changing(repo_id):
            names = self._catalog.branches(repo_id)
            if start is None:
                start = "main" if "main" in names else None
            commit = None if start is None else self._catalog.commit(repo_id, start)
            with _staging(folder) as staging:
                if commit is not None:
                    _lay_out(staging, {path: file.source for path, file in commit.files.items()})
                _put(staging, folder / branch, f"Branch {branch!r} of {repo_id} exists already.")

    def commit(
        self, repo_id: str, revision: str, change: RepositoryChange, *, pull: bool = False
    ) -> tuple[Commit, int | None]:
        """Change a branch or a pull request (`refs/pr/<number>`), or (`pull`) open a pull request instead.

        Returns:
            The commit, and the number of the pull request that was opened.
        """
        folder = self._catalog.repository(repo_id)
        changed = parse_revision(revision)
        if changed.kind == "commit":
            raise RequestError(f"`revision` is the commit {revision!r}; expected a branch.")
        with self._changing(repo_id):
            before = self._catalog.commit(repo_id, revision)
            if change.parent not in (None, before.id):
                raise Conflict(f"{revision} of {repo_id} is at {before.id}; expected {change.parent}.")
            files = self._changed(before, change)
            target = folder / changed.folder
            number = None
            with _staging(folder) as staging:
                _lay_out(staging, files)
                if pull:
                    number = max(self._catalog.pulls(repo_id), default=0) + 1
                    (folder / PULLS).mkdir(exist_ok=True)
                    _put(staging, folder / PULLS / str(number), f"Pull request {number} exists already.")
                else:
                    with self._catalog.locked(target):
                        _exchange(staging, target)
                        if self._is_at(staging, before):
                            # That of a pull request beside the pull requests: it is no history of a branch.
                            _keep(staging, target.parent / before.id)
            return self._catalog.commit(repo_id, revision if number is None else f"refs/pr/{number}"), number

    def _is_at(self, replaced: Path, commit: Commit) -> bool:
        """Whether a replaced branch still has the files of its commit, is not empty and not a link."""
        if replaced.is_symlink() or not commit.files:
            return False
        rows = scan_folder(replaced, self._catalog.root, bytecode=self._catalog.bytecode)
        return {row[0]: row[2:] for row in rows} == {path: file.seen for path, file in commit.files.items()}

    def _changed(self, before: Commit, change: RepositoryChange) -> dict[str, bytes | Path]:
        files: dict[str, bytes | Path] = {path: file.source for path, file in before.files.items()}
        for path in change.deleted_files:
            if path not in before.files:
                raise MissingPath(f"A file with this name doesn't exist: {path!r}.")
        for path in change.deleted_folders:
            if not path or before.paths(path) is None:
                raise MissingPath(f"A folder with this name doesn't exist: {path!r}.")
        deleted = frozenset(change.deleted_folders)
        files = {
            path: source
            for path, source in files.items()
            if path not in change.deleted_files and deleted.isdisjoint(_folders_above(path))
        }
        for path, content in change.files.items():
            check_path(path)
            if hidden := [part for part in path.split("/") if not is_served(part, bytecode=self._catalog.bytecode)]:
                raise RequestError(f"`path` is {path!r}; {hidden[0]!r} is not allowed in a repository.")
            files[path] = content
        if len(files) > MAX_FILES:
            raise RequestError(f"The commit would have {len(files)} files; the limit is {MAX_FILES}.")
        for path in files:
            for above in _folders_above(path):
                if above in files:
                    raise RequestError(f"`path` is {path!r}, but {above!r} is a file, not a folder.")
        return files

    @contextmanager
    def _changing(self, repo_id: str) -> Iterator[None]:
        with self._lock:
            lock = self._repository_locks.setdefault(repo_id.lower(), Lock())
        with lock:
            yield


def check_path(path: object) -> str:
    """Return `path` if it is valid for a file of a repository.

    Example:
        >>> check_path("build/torch-cpu/__init__.py")
        'build/torch-cpu/__init__.py'
    """
    if isinstance(path, str) and path.isprintable() and not set(path) & set('\\:*?"<>|'):
        parts = path.split("/")
        if (
            len(path.encode()) <= _MAX_PATH
            and len(parts) <= _MAX_DEPTH
            and all(part and len(part.encode()) <= _MAX_NAME and not part.endswith((" ", ".")) for part in parts)
            and not any(part.lower() in (".git", ".cache") for part in parts)
        ):
            return path
    raise RequestError(
        f"`path` is {str(path)[:200]!r}; expected a path inside the repository with parts separated by '/', none "
        "of them '.', '..', '.git' or '.cache'."
    )


def _folders_above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """A hidden empty folder in `folder`, deleted when the `with` block ends, unless it was moved."""
    staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=folder))
    try:
        staging.chmod(0o755)  # `mkdtemp` makes it private
        yield staging
    finally:
        if staging.is_symlink():
            staging.unlink()
        else:
            shutil.rmtree(staging, ignore_errors=True)


def _lay_out(staging: Path, files: Mapping[str, bytes | Path]) -> None:
    made: set[Path] = set()
    for path, content in files.items():
        target = staging / path
        if target.parent not in made:
            target.parent.mkdir(parents=True, exist_ok=True)
            made.add(target.parent)
        if isinstance(content, bytes):
            target.write_bytes(content)
        else:
            # No link: a file that is edited in place in a branch must not change in earlier commits.
            shutil.copy2(content, target)


def _put(staging: Path, target: Path, taken: str) -> None:
    try:
        if os.path.lexists(target):
            raise Conflict(taken)
        staging.rename(target)
    except OSError as error:
        if not target.exists():
            raise
        raise Conflict(taken) from error


def _exchange(staging: Path, target: Path) -> None:
    """Exchange two folders: atomically where the system can; elsewhere the target is absent for a moment."""
    if sys.platform == "linux":
        renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        names = os.fsencode(staging), os.fsencode(target)
        if renameat2 is not None and not renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE):
            return
    aside = staging.with_name(f"{staging.name}-before")
    target.rename(aside)
    try:
        staging.rename(target)
    except OSError:
        aside.rename(target)
        raise
    aside.rename(staging)


def _keep(replaced: Path, target: Path) -> None:
    """Keep the old state of a branch under its commit's id."""
    if not os.path.lexists(target):
        replaced.rename(target)
