"""Changes to the repositories of a catalog: a repository, a branch or a commit is there whole, or not at all.

What changes is put together beside the branch, in a folder that nobody is shown, and takes the branch's place in one
step. What the branch was before stays, under its commit's id: whoever pinned it can still load it.
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
from kernels.server.catalog import PRIVATE, PULLS, Catalog
from kernels.server.snapshot import Commit

__all__ = ["Change", "Conflict", "MissingPath", "Writer", "check_path"]

#: The longest path and the longest name in one, in bytes: what Linux takes (`PATH_MAX`, `NAME_MAX`), with room for the
#: root before it.
_MAX_PATH = 2048
_MAX_NAME = 255
#: The deepest path; builds are some ten folders deep.
_MAX_DEPTH = 64

# Linux: exchange two paths (renameat2(2), since Linux 3.15; glibc has it since 2.28).
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class Conflict(KernelsError):
    """What was asked for clashes with what is there: a name that is taken, a branch that has moved on."""


class MissingPath(KernelsError):
    """A file or folder that a commit deletes is not there."""


@dataclass(frozen=True)
class Change:
    """What one commit changes.

    Attributes:
        files: Contents of files, by path, as their bytes or as the file that holds them.
        deleted_files: Paths of files that go.
        deleted_folders: Paths of folders that go, with all they hold.
        parent: The commit that the branch must still be at; None for whichever.
    """

    files: Mapping[str, bytes | Path] = field(default_factory=dict)
    deleted_files: Collection[str] = ()
    deleted_folders: Collection[str] = ()
    parent: str | None = None


class Writer:
    """Writes into the folder of a catalog, one change of a repository at a time.

    Args:
        catalog: What is changed.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._lock = Lock()
        self._repository_locks: dict[str, Lock] = {}

    def create_repository(self, repo_id: str, *, private: bool = False) -> None:
        """Make an empty repository with the branch `main`.

        Args:
            repo_id: `org/name`.
            private: Whether only those with a token are shown it.

        Raises:
            RequestError: It is no repository's name.
            Conflict: There is one of that name.
        """
        check_repo_id(repo_id)
        publisher = self._catalog.root / repo_id.partition("/")[0]
        target = self._catalog.root / repo_id
        if os.path.lexists(target):
            raise Conflict(f"There is a repository {repo_id!r} already.")
        if publisher.is_symlink():
            raise Conflict(f"{publisher.name!r} leads elsewhere; nothing is written there.")
        if publisher.exists() and not publisher.is_dir():
            raise Conflict(f"{publisher.name!r} is a file, so that no repository can lie there.")
        publisher.mkdir(exist_ok=True)
        with _staging(publisher) as staging:
            (staging / "main").mkdir()
            if private:
                (staging / PRIVATE).touch()
            _put(staging, target, f"There is a repository {repo_id!r} already.")

    def create_branch(self, repo_id: str, branch: str, start: str | None = None) -> None:
        """Make a branch.

        Args:
            repo_id: `org/name`.
            branch: Its name: one folder's, so without a slash.
            start: The revision whose files it has. Default: `main` where there is one, else none.

        Raises:
            RequestError: It is no name that a branch can have here.
            RepositoryNotFound, RevisionNotFound: There is no such repository or starting point.
            Conflict: There is a branch of that name.
        """
        check_revision(branch)
        long = len(branch.encode()) > _MAX_NAME
        if "/" in branch or "\\" in branch or is_commit(branch) or branch == "refs" or long:
            raise RequestError(
                f"`branch` is {branch[:200]!r}; allowed is a name without slashes, of {_MAX_NAME} bytes at most, and "
                "no commit's id."
            )
        folder = self._own(repo_id)
        with self._changing(repo_id):
            names = self._catalog.branches(repo_id)
            taken = f"{repo_id} has a branch {branch!r} already."
            if os.path.lexists(folder / branch):
                raise Conflict(taken)
            if start is None:
                start = "main" if "main" in names else None
            commit = None if start is None else self._catalog.commit(repo_id, start)
            with _staging(folder) as staging:
                if commit is not None:
                    _lay_out(staging, {path: file.source for path, file in commit.files.items()})
                _put(staging, folder / branch, taken)

    def commit(self, repo_id: str, revision: str, change: Change, *, pull: bool = False) -> tuple[Commit, int | None]:
        """Change a branch, or open a pull request against it.

        Args:
            repo_id: `org/name`.
            revision: The branch, or a pull request (`refs/pr/<number>`).
            change: What changes.
            pull: Whether to leave the branch as it is, and open a pull request.

        Returns:
            The commit, and the pull request's number if one was opened.

        Raises:
            RequestError: A path is none that a repository can have, or the revision is a commit.
            RepositoryNotFound, RevisionNotFound: There is no such repository or branch.
            MissingPath: What is deleted is not there.
            Conflict: The branch is no longer at `change.parent`.
        """
        folder = self._own(repo_id)
        revision = revision.removeprefix("refs/heads/")
        if is_commit(revision):
            raise RequestError(f"`revision` is {revision!r}, a commit, which never changes; allowed is a branch.")
        with self._changing(repo_id):
            before = self._catalog.commit(repo_id, revision)
            if change.parent not in (None, before.id):
                raise Conflict(f"{revision} of {repo_id} is at {before.id} by now, no longer at {change.parent}.")
            files = self._changed(before, change)
            target = folder / PULLS / revision.rpartition("/")[2] if "/" in revision else folder / revision
            number = None
            with _staging(folder) as staging:
                _lay_out(staging, files)
                if pull:
                    number = max(self._catalog.pulls(repo_id), default=0) + 1
                    (folder / PULLS).mkdir(exist_ok=True)
                    _put(staging, folder / PULLS / str(number), f"There is a pull request {number} already.")
                else:
                    with self._catalog.alone(target):
                        _exchange(staging, target)
                        _keep(staging, folder / before.id, before)
            return self._catalog.commit(repo_id, revision if number is None else f"refs/pr/{number}"), number

    def _own(self, repo_id: str) -> Path:
        folder = self._catalog.repository(repo_id)
        if self._catalog.carried(repo_id) is not None:
            raise Conflict(f"{repo_id} was carried here from another Hub and is only read here; change it there.")
        return folder

    def _changed(self, before: Commit, change: Change) -> dict[str, bytes | Path]:
        files: dict[str, bytes | Path] = {path: file.source for path, file in before.files.items()}
        for path in change.deleted_files:
            if path not in before.files:
                raise MissingPath(f"A file with this name doesn't exist: {path!r}.")
        for path in change.deleted_folders:
            below = before.paths(path) if path else None
            if below is None:
                raise MissingPath(f"A folder with this name doesn't exist: {path!r}.")
        gone = frozenset(change.deleted_folders)
        files = {
            path: source
            for path, source in files.items()
            if path not in change.deleted_files and gone.isdisjoint(_folders_above(path))
        }
        for path, content in change.files.items():
            check_path(path)
            if hidden := [part for part in path.split("/") if not self._catalog.served(part)]:
                raise RequestError(f"`path` is {path!r}; {hidden[0]!r} is no part of a repository here.")
            files[path] = content
        if len(files) > MAX_FILES:
            raise RequestError(f"The commit would have {len(files)} files; allowed are {MAX_FILES}.")
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
    """Return a path if a file of a repository can have it.

    Raises:
        RequestError: It leaves the repository, is absolute, hidden from view, or longer than a file system takes.

    Example:
        >>> check_path("build/torch-cpu/__init__.py")
        'build/torch-cpu/__init__.py'
    """
    valid = isinstance(path, str) and path.isprintable() and not set(path) & set('\\:*?"<>|')
    if isinstance(path, str) and valid:
        parts = path.split("/")
        valid = (
            len(path.encode()) <= _MAX_PATH
            and len(parts) <= _MAX_DEPTH
            and all(part not in ("", ".", "..") and len(part.encode()) <= _MAX_NAME for part in parts)
            and all(part.lower() not in (".git", ".cache") and not part.endswith((" ", ".")) for part in parts)
        )
        if valid:
            return path
    raise RequestError(
        f"`path` is {str(path)[:200]!r}; allowed is a path inside the repository, with '/' between its parts, none of "
        "them '.', '..', '.git' or '.cache'."
    )


def _folders_above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """An empty folder in a folder, hidden by its name; what is left of it goes in the end."""
    staging = Path(tempfile.mkdtemp(prefix=".staging-", dir=folder))
    try:
        staging.chmod(0o755)  # a temporary folder is its owner's alone
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
            continue
        try:
            os.link(content, target)  # no second copy of what did not change
        except OSError:  # another file system, or one without hard links
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
    """Let two folders change places: at once where the system can, else with a moment in which the target is absent."""
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


def _keep(replaced: Path, target: Path, commit: Commit) -> None:
    """Keep what a branch was, under its commit's id; a link to another folder, or a branch without files, is not."""
    if commit.files and not replaced.is_symlink() and not os.path.lexists(target):
        replaced.rename(target)
