"""The publishers, repositories, branches and commits in a folder of repositories.

The layout is `<root>/<org>/<name>/<branch>/…`: one sub-folder for each version (`v1`) or other branch (`main`), which
holds all of its files. A sub-folder named like a commit id is that commit, an earlier one of a branch, as long as it
has the content of that id. Pull requests are in `.pulls/<number>`, their earlier commits in `.pulls/<commit>`. A file
`.private` hides a repository from clients without a token. Every call reads the disk, so a changed file is a new commit
at the next request; only hashes are cached.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from kernels.errors import InvalidRepository, RepositoryNotFound, RequestError, RevisionNotFound
from kernels.models.requirement import check_revision, is_commit, is_repo_id
from kernels.models.snapshot import BUILD_FOLDER
from kernels.server.listings import FileRow, FolderListing, Listings
from kernels.server.revision import PULLS, is_pull_number, parse_revision
from kernels.server.scan import make_commit, scan_folder
from kernels.server.snapshot import Commit

__all__ = ["PRIVATE", "Catalog", "Publisher"]

#: The mark of a private repository: a name that no branch can have.
PRIVATE = ".private"

_VERSION = re.compile(r"v(0|[1-9][0-9]*)")
# How often a folder is scanned again if files vanish meanwhile.
_ATTEMPTS = 5


@dataclass(frozen=True)
class Publisher:
    """An organization or a person, whether its kernels are trusted, and how many repositories it has."""

    name: str
    person: bool
    trusted: bool
    repositories: int


class Catalog:
    """The repositories below a folder.

    Methods raise `RepositoryNotFound` if a repository does not exist.

    Args:
        root: The folder.
        trusted: Publishers marked as trusted for kernels.
        users: Publishers that are persons, not organizations.
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
        self.bytecode = bytecode
        self._listings = Listings()

    def publisher(self, name: str, *, private: bool = True) -> Publisher | None:
        """The publisher of that name, or None if the root has no such folder.

        Without `private`, private repositories do not count, and a publisher that has no others is not found.
        """
        if not is_repo_id(f"{name}/x"):
            return None
        folder = self._inside(self.root / name)
        if folder is None:
            return None
        found = [each for each in self._folders(folder) if is_repo_id(f"{name}/{each}")]
        names = [each for each in found if private or not self.private(f"{name}/{each}")]
        if found and not names:
            return None
        return Publisher(name, name in self.users, name in self.trusted, len(names))

    def publishers(self) -> list[str]:
        """The names of all publishers."""
        return [name for name in self._folders(self.root) if is_repo_id(f"{name}/x")]

    def repositories(self, publisher: str | None = None, *, private: bool = True) -> list[str]:
        """The repositories, `org/name`, sorted; without `private`, only those that are not private.

        Args:
            publisher: Only those of this publisher.
            private: Whether private repositories are listed.
        """
        publishers = self.publishers() if publisher is None else [publisher]
        found = []
        for each in publishers:
            folder = self._inside(self.root / each) if is_repo_id(f"{each}/x") else None
            for name in [] if folder is None else _subfolders(folder):
                if is_repo_id(f"{each}/{name}") and self._is_listed(f"{each}/{name}", private):
                    found.append(f"{each}/{name}")
        return sorted(found)

    def _is_listed(self, repo_id: str, private: bool) -> bool:
        try:
            self.repository(repo_id)
        except (RepositoryNotFound, InvalidRepository):
            return False
        return private or not self.private(repo_id)

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

    def left_out(self) -> list[str]:
        """The folders that are not served because no publisher, repository or branch can have their name.

        Folders whose name begins with a dot are not meant to be served.
        """
        found = []
        for publisher in self._all_folders(self.root):
            if not is_repo_id(f"{publisher}/x"):
                found.append(publisher)
                continue
            for name in self._all_folders(self.root / publisher):
                if not is_repo_id(f"{publisher}/{name}"):
                    found.append(f"{publisher}/{name}")
                    continue
                branches = self._all_folders(self.root / publisher / name)
                found += [f"{publisher}/{name}/{each}" for each in branches if not _is_valid(check_revision, each)]
        return found

    def _all_folders(self, folder: Path) -> list[str]:
        with os.scandir(folder) as entries:
            names = sorted(each.name for each in entries if each.is_dir() and not each.name.startswith("."))
        return [name for name in names if self._inside(folder / name)]

    def branches(self, repo_id: str) -> dict[str, str]:
        """The repository's branches, and the commit at the head of each."""
        folder = self.repository(repo_id)
        return {name: self._commit(repo_id, folder / name).id for name in self._branch_names(folder)}

    def commit(self, repo_id: str, revision: str | None = None) -> Commit:
        """The content of a repository at a revision.

        Args:
            repo_id: `org/name`.
            revision: A branch (also as `refs/heads/<name>`), a pull request (`refs/pr/<number>`), or the commit at
                the head of one. None: `main`, else the newest version.

        Raises:
            RevisionNotFound: It has no such revision.
        """
        folder = self.repository(repo_id)
        names = self._branch_names(folder)
        asked = parse_revision((_default(names) or "main") if revision is None else revision)
        there = self._inside(folder / asked.folder) if asked.kind != "branch" or asked.name in names else None
        if there is not None:
            found = self._commit(repo_id, folder / asked.folder)
            # The folder of an earlier commit may have been changed by hand.
            if asked.kind != "commit" or found.id == asked.name:
                return found
        if asked.kind == "commit":
            # First where the commit was last seen: a client requests one commit many times in a row.
            pulls = [f"{PULLS}/{number}" for number in self._pull_numbers(folder)]
            for name in sorted([*names, *pulls], key=lambda name: not self._was_at(folder / name, asked.name)):
                head = self._commit(repo_id, folder / name)
                if head.id == asked.name:
                    return head
            if there is None and self._inside(folder / asked.name):  # it was a head until a moment ago
                return self.commit(repo_id, revision)
            earlier = folder / PULLS / asked.name
            if self._inside(earlier):
                found = self._commit(repo_id, earlier)
                if found.id == asked.name:
                    return found
        raise RevisionNotFound(
            f"{repo_id} has no revision {'main' if revision is None else revision!r}; it has: "
            f"{', '.join(names) or 'none'}."
        )

    def history(self, repo_id: str, revision: str | None = None) -> list[tuple[str, datetime]]:
        """The commits that lead to a revision, the newest first, and the date of each.

        Of a branch these are all earlier states of branches: of which one each was is not recorded. Any other revision
        has no earlier commits here.

        Raises:
            RevisionNotFound: It has no such revision.
        """
        head = self.commit(repo_id, revision)
        heads = set(self.branches(repo_id).values())
        found = [(head.id, head.date)]
        if head.id not in heads:
            return found
        folder = self.root / repo_id
        kept = {name for name in self._folders(folder) if is_commit(name)} if folder.is_dir() else set()
        kept -= heads
        dates = {name: datetime.fromtimestamp(os.stat(folder / name).st_mtime, timezone.utc) for name in kept}
        return found + sorted(dates.items(), key=lambda each: (each[1], each[0]), reverse=True)

    def known(self, repo_id: str, commit: str) -> Commit | None:
        """A cached commit, without reading the disk; None if it is not cached, or `commit` is not a commit id.

        A file of it may have changed since; `File.open` detects that.
        """
        known = self._listings.cached_commit(repo_id, commit)
        if known is not None:
            self.repository(repo_id)
        return known

    def pulls(self, repo_id: str) -> dict[int, str]:
        """The repository's pull requests by number, and the commit at the head of each."""
        folder = self.repository(repo_id)
        numbers = self._pull_numbers(folder)
        return {number: self._commit(repo_id, folder / PULLS / str(number)).id for number in numbers}

    def private(self, repo_id: str) -> bool:
        """Whether a repository is hidden from clients without a token."""
        if not is_repo_id(repo_id):
            return False
        try:
            os.lstat(self.root / repo_id / PRIVATE)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # unknown, so it is hidden
            return True
        return True

    def repository(self, repo_id: str) -> Path:
        """The folder of a repository."""
        folder = self._inside(self.root / repo_id) if is_repo_id(repo_id) else None
        if folder is None:
            raise RepositoryNotFound(f"Repository {repo_id!r} of type kernel not found.")
        return folder

    def _branch_names(self, folder: Path) -> list[str]:
        return [name for name in self._folders(folder) if not is_commit(name)]

    def _folders(self, folder: Path) -> list[str]:
        return [name for name in _subfolders(folder) if self._inside(folder / name)]

    def _pull_numbers(self, folder: Path) -> list[int]:
        pulls = self._inside(folder / PULLS)
        names = [] if pulls is None else [path.name for path in pulls.iterdir() if path.is_dir()]
        return sorted(int(name) for name in names if is_pull_number(name))

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

    def _commit(self, repo_id: str, folder: Path) -> Commit:
        def scan(cached: FolderListing | None) -> tuple[list[FileRow], Callable[[], Commit]]:
            rows = scan_folder(folder, self.root, bytecode=self.bytecode)
            return rows, lambda: make_commit(repo_id, rows, cached)

        for _ in range(_ATTEMPTS):
            try:
                return self._listings.current(repo_id, folder, scan)
            except (FileNotFoundError, NotADirectoryError):  # it changed during the scan
                continue
        raise RevisionNotFound(f"Revision {folder.name!r} of {repo_id} was removed, or changes all the time.")


def _subfolders(folder: Path) -> list[str]:
    """Names of sub-folders that are valid for a repository or a branch, sorted."""
    with os.scandir(folder) as entries:
        return sorted(each.name for each in entries if _is_valid(check_revision, each.name) and each.is_dir())


def _default(names: list[str]) -> str | None:
    if "main" in names:
        return "main"
    versions = [name for name in names if _VERSION.fullmatch(name)]
    return max(versions, key=lambda name: int(name[1:])) if versions else next(iter(names), None)


def _is_valid(check: Callable[[str], object], text: str) -> bool:
    try:
        check(text)
    except RequestError:
        return False
    return True
