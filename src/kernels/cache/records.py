"""The small records of the cache: what was said of repositories and commits, and what callers allowed.

A record is used only if no other user can have written it (`support/record_file.py`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar, Literal

from msgspec import field

from kernels.errors import InvalidRepository, StoreError
from kernels.models.cache_places import answer_record, endpoint_key, repository_folder
from kernels.models.requirement import is_commit
from kernels.models.snapshot import RepoFile
from kernels.support.files import LinkedFolder, cannot_write, make_folders, read_bounded, replace_file
from kernels.support.lock import WorkLock, exclusively
from kernels.support.record_file import (
    MAX_LISTING_BYTES,
    StoredRecord,
    is_ours,
    is_owner,
    read_record,
    write_record,
)

__all__ = ["Answer", "CommitMark", "RepoRecords", "SeenDocument", "SeenDocuments", "cache_errors", "ignored_records"]

#: What is recorded of a commit: a caller allowed it without a trusted publisher; a branch or tag led to it.
CommitMark = Literal["allowed", "published"]

#: A branch that another tool recorded is a file with a commit's id in it.
_MAX_REF_BYTES = 256

#: Records of one repository that are examined.
_MOST_RECORDS = 1000


class Answer(StoredRecord):
    """What a Hub or a mirror said of one repository.

    Attributes:
        kind: Which of the two answered.
        endpoint: Its URL.
        time: When it was asked, in seconds since 1970; 0 of what another tool recorded.
        branches: The commit of each branch.
        tags: The commit of each tag.
        moved_to: The repository that replaces this one.
        etag: Of a mirror, the ETag of the repository's index; empty if it has none.
        number: Of a mirror, the number of the newest document.
        publisher: Of a mirror, the publisher.
        trusted: Of a mirror, whether the origin marked the publisher as trusted; None if the origin was not asked.
        origin: Of a mirror, where it took the repository from.
    """

    max_bytes: ClassVar[int] = MAX_LISTING_BYTES

    kind: Literal["hub", "mirror"]
    endpoint: str
    time: float
    branches: dict[str, str]
    tags: dict[str, str] = field(default_factory=dict)
    moved_to: str | None = None
    etag: str = ""
    number: int = 0
    publisher: str = ""
    trusted: bool | None = None
    origin: str = ""


class _Listing(StoredRecord, array_like=True):
    max_bytes: ClassVar[int] = MAX_LISTING_BYTES

    files: list[RepoFile]


class _Mark(StoredRecord):
    """Its name says it all."""


@contextmanager
def cache_errors(path: Path) -> Iterator[None]:
    """Turn the errors of writing a path of the cache into those of this package."""
    try:
        yield
    except StoreError:  # an OSError, too
        raise
    except LinkedFolder as error:
        raise InvalidRepository(f"{error.strerror}; missing files are downloaded again.") from error
    except OSError as error:
        raise cannot_write(error, path) from error


class RepoRecords:
    """The records of one repository in the cache.

    What a Hub said is no other Hub's answer: a record has the key of the address in its name (`Api.key`).

    Args:
        cache: The cache's folder.
        repo_id: `org/name`.
    """

    def __init__(self, cache: Path, repo_id: str) -> None:
        self.cache = cache
        self.folder = repository_folder(cache, repo_id)

    def _record(self, name: str) -> Path:
        return self.folder / "index" / name

    def answer(self, key: str) -> Answer | None:
        """What an address last said of the repository."""
        return read_record(answer_record(self.folder, key), Answer)

    def answers(self) -> dict[str, Answer]:
        """What each address last said of the repository, by `endpoint_key` of what its answers are stored for."""
        found = {}
        with suppress(OSError):
            for path in sorted((self.folder / "index").glob("heads-*.json")):
                said = read_record(path, Answer)
                if said is not None:
                    found[path.stem.removeprefix("heads-")] = said
        return found

    def keep_answer(self, key: str, said: Answer) -> None:
        """Store what an address said of the repository."""
        write_record(answer_record(self.folder, key), said)

    # A commit, which never changes

    def listed(self, key: str, commit: str) -> tuple[RepoFile, ...] | None:
        """The file list of a commit as an address gave it; None if it was not stored, or is damaged."""
        return self.listed_by(endpoint_key(key), commit)

    def listed_by(self, address: str, commit: str) -> tuple[RepoFile, ...] | None:
        """The same, of an address of which only the part of the record's name is known."""
        record = read_record(self._record(f"{commit}-{address}.json"), _Listing)
        return None if record is None else tuple(record.files)

    def keep_listed(self, key: str, commit: str, files: Iterable[RepoFile]) -> None:
        """Store the file list of a commit."""
        write_record(self._record(f"{commit}-{endpoint_key(key)}.json"), _Listing(list(files)))

    def mark_fetched(self, commit: str) -> None:
        """Mark a commit before this client downloads its first file; without the mark nothing is downloaded.

        A marked commit was not brought by another client, so it is only loaded if its publisher was admitted. The mark
        is empty: a Hub chooses nothing in it, while a file list that is too large is not stored.

        Raises:
            StoreError: The cache cannot be written.
        """
        mark = self._record(f"{commit}-fetched")
        with cache_errors(mark):
            make_folders(mark.parent, self.cache)
            with suppress(FileNotFoundError):
                if is_ours(os.lstat(mark)):
                    return
            replace_file(mark, b"", mode=0o444)

    def was_fetched(self, commit: str) -> bool:
        """Whether this client, run by this user or root, downloaded or listed files of a commit, from any Hub.

        A record that others could write counts too, because a record can only refuse a commit here.
        """
        with suppress(OSError), os.scandir(self.folder / "index") as entries:
            return any(
                each.name.startswith(f"{commit}-") and is_owner(each.stat(follow_symlinks=False)) for each in entries
            )
        return False

    def is_marked(self, mark: CommitMark, key: str, commit: str) -> bool:
        """Whether a commit, as one address listed it, has a mark."""
        return read_record(self._record(f"{commit}-{endpoint_key(key)}.{mark}"), _Mark) is not None

    def keep_mark(self, mark: CommitMark, key: str, commit: str) -> None:
        """Store a mark of a commit."""
        if not self.is_marked(mark, key, commit):
            write_record(self._record(f"{commit}-{endpoint_key(key)}.{mark}"), _Mark())

    def check_record(self, key: str, commit: str, variant: str) -> Path:
        """The record of the checks of a build, as one address listed it."""
        return self._record(f"{commit}-{endpoint_key(key)}-{variant}.checked")

    # Another tool's

    def foreign_branches(self) -> dict[str, str]:
        """The branches that other tools recorded under `refs/`, without a Hub or a time."""
        refs = self.folder / "refs"
        branches = {}
        for path in sorted(refs.rglob("*")) if refs.is_dir() else []:
            with suppress(OSError, UnicodeDecodeError):
                commit = read_bounded(path, _MAX_REF_BYTES).decode().strip()
                if is_commit(commit):
                    branches[path.relative_to(refs).as_posix()] = commit
        return branches


def ignored_records(folder: Path) -> Iterator[tuple[Path, bool]]:
    """The records of a repository that are not used, each with whether it is damaged; else it may be another user's.

    Args:
        folder: The repository's folder in the cache.

    Example:
        >>> list(ignored_records(Path("/nowhere")))
        []
    """
    forms: dict[str, type[StoredRecord]] = {".json": _Listing, ".allowed": _Mark, ".published": _Mark}
    try:
        entries = sorted((folder / "index").iterdir())
    except OSError:
        return
    for path in entries[:_MOST_RECORDS]:
        if path.name.endswith(".tmp"):
            continue  # being written
        try:
            facts = os.lstat(path)
        except OSError:
            continue  # removed meanwhile
        form = Answer if path.name.startswith("heads-") else forms.get(path.suffix)
        writable = hasattr(os, "geteuid") and bool(facts.st_mode & 0o200) and not path.name.endswith("-fetched")
        if not stat.S_ISREG(facts.st_mode) or not is_ours(facts) or writable:
            yield path, False
        elif form is not None and read_record(path, form) is None:
            yield path, True


class SeenDocument(StoredRecord):
    """The newest document that was read of a mirror's repository, or of one of its commits.

    Attributes:
        number: The number of its index.
        time: When it was written, as the index says.
        seen: When it was read first, in seconds since 1970.
    """

    number: int
    time: str
    seen: float


class SeenDocuments:
    """The newest signed documents that were read from one mirror, so that an older copy is recognized.

    They are not beside a repository's files: removing those from the cache does not make an older index acceptable.

    Args:
        cache: The cache's folder.
        url: The mirror's address, without a secret.

    Example:
        >>> import tempfile
        >>> seen = SeenDocuments(Path(tempfile.mkdtemp()), "https://mirror.example")
        >>> seen.keep("org/relu", None, SeenDocument(2, "2026-01-02T03:04:05Z", 0.0)).number
        2
        >>> seen.keep("org/relu", None, SeenDocument(1, "2026-01-01T03:04:05Z", 0.0)).number
        2
    """

    def __init__(self, cache: Path, url: str) -> None:
        self._folder = cache / ".locks" / "kernels-mirrors" / endpoint_key(url)

    def path(self, repo_id: str, commit: str | None) -> Path:
        """The file of a record.

        Args:
            repo_id: The repository.
            commit: The commit whose document it is; None for the repository's index.
        """
        # A mirror has no two repositories that differ only in case.
        name = repo_id.lower().replace("/", "--")
        return self._folder / (f"{name}.json" if commit is None else f"{name}-{commit}.json")

    def keep(self, repo_id: str, commit: str | None, found: SeenDocument) -> SeenDocument:
        """Record a document that was read, unless a newer one was; return the newest.

        Where the cache cannot be written, nothing is recorded.
        """
        path = self.path(repo_id, commit)

        def newest() -> SeenDocument:
            known = read_record(path, SeenDocument)
            return found if known is None or known.number < found.number else known

        if newest() is not found:
            return newest()
        with suppress(StoreError), exclusively(WorkLock(path.with_suffix(".lock"), seconds=10)):
            if newest() is found:  # no other process has read a newer one
                write_record(path, found)
            return newest()
        return found
