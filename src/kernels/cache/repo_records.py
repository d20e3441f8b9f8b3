"""The records of one repository in the cache: file lists, branches, marks, and what callers allowed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from kernels.errors import InvalidRepository, StoreError
from kernels.models.cache_places import endpoint_key, mirror_record, repository_folder
from kernels.models.requirement import is_commit
from kernels.models.snapshot import Heads, RepoFile
from kernels.support.files import LinkedFolder, cannot_write, check_folders, make_folders, read_bounded, replace_file
from kernels.support.record_file import MAX_LISTING_BYTES, StoredRecord, is_ours, is_owner, read_record, write_record

__all__ = ["MirrorRecord", "RepoRecords", "cache_errors", "ignored_records"]

#: The form of the records; one of another form is not used.
_FORM = 1

#: A branch that another tool recorded is a file with a commit's id in it.
_MAX_REF_BYTES = 256

#: Records of one repository that are examined.
_MOST_RECORDS = 1000


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


class MirrorRecord(StoredRecord):
    """What a mirror's documents said of one repository.

    Attributes:
        form: The form of the record.
        key: The mirror's name in the records of the cache.
        etag: The ETag of the repository's index; empty if the mirror has none, or only a commit's document was read.
        number: The number of the newest document.
        asked: When the mirror was last asked, in seconds since 1970.
        publisher: The publisher.
        trusted: Whether the origin marked it as trusted; None if the origin was not asked.
        branches: The commit of each branch, as of the index with that ETag.
        tags: The commit of each tag.
        moved_to: The repository that replaces this one.
        origin: Where the mirror took the repository from.
    """

    max_bytes: ClassVar[int] = MAX_LISTING_BYTES

    form: int
    key: str
    etag: str
    number: int
    asked: float
    publisher: str
    trusted: bool | None
    branches: dict[str, str]
    tags: dict[str, str]
    moved_to: str | None = None
    origin: str = ""


class _Mark(StoredRecord):
    form: int
    commit: str


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

    Args:
        cache: The cache's folder.
        repo_id: `org/name`.
    """

    def __init__(self, cache: Path, repo_id: str) -> None:
        self.cache = cache
        self.folder = repository_folder(cache, repo_id)

    def _record(self, name: str) -> Path:
        return self.folder / "index" / name

    # A commit, which never changes. A Hub's record of it says nothing about another Hub's commit with the same id.

    def index(self, endpoint: str, commit: str) -> tuple[RepoFile, ...] | None:
        """The file list of a commit as a Hub gave it; None if it was not stored, or is damaged."""
        return self.listed(endpoint_key(endpoint), commit)

    def listed(self, hub: str, commit: str) -> tuple[RepoFile, ...] | None:
        """As `index`, of a Hub of which only the key is known."""
        record = read_record(self._record(f"{commit}-{hub}.json"), _Index)
        return tuple(record.files) if record is not None and record.form == _FORM else None

    def keep_index(self, endpoint: str, commit: str, files: Iterable[RepoFile]) -> None:
        """Store the file list of a commit that a Hub gave."""
        write_record(self._record(f"{commit}-{endpoint_key(endpoint)}.json"), _Index(_FORM, list(files)))

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

    def allowed(self, endpoint: str, commit: str) -> bool:
        """Whether a caller has allowed a commit, as one Hub listed it, without a trusted publisher."""
        return self._is_marked(f"{commit}-{endpoint_key(endpoint)}.allowed", commit)

    def keep_allowed(self, endpoint: str, commit: str) -> None:
        """Store that a caller has allowed a commit."""
        self._keep_mark(f"{commit}-{endpoint_key(endpoint)}.allowed", commit)

    def published(self, endpoint: str, commit: str) -> bool:
        """Whether a branch or tag has led to a commit, as one Hub said."""
        return self._is_marked(f"{commit}-{endpoint_key(endpoint)}.published", commit)

    def keep_published(self, endpoint: str, commit: str) -> None:
        """Store that a branch or tag leads to a commit."""
        self._keep_mark(f"{commit}-{endpoint_key(endpoint)}.published", commit)

    def _is_marked(self, name: str, commit: str) -> bool:
        record = read_record(self._record(name), _Mark)
        return record is not None and (record.form, record.commit) == (_FORM, commit)

    def _keep_mark(self, name: str, commit: str) -> None:
        if not self._is_marked(name, commit):
            write_record(self._record(name), _Mark(form=_FORM, commit=commit))

    def check_record(self, endpoint: str, commit: str, variant: str) -> Path:
        """The record of the checks of a build, as one Hub listed it."""
        return self._record(f"{commit}-{endpoint_key(endpoint)}-{variant}.checked")

    # Branches and tags, which have an age

    def heads(self, endpoint: str) -> Heads | None:
        """The branches and tags as one Hub last gave them."""
        record = read_record(self._record(f"heads-{endpoint_key(endpoint)}.json"), _Heads)
        if record is None or record.form != _FORM or record.endpoint != endpoint:
            return None
        return Heads(record.branches, record.tags, record.time)

    def all_heads(self) -> dict[str, Heads]:
        """The branches and tags as each Hub last gave them, by its name in the records."""
        found = {}
        with suppress(OSError):
            for path in sorted((self.folder / "index").glob("heads-*.json")):
                record = read_record(path, _Heads)
                if record is not None and path.name == f"heads-{endpoint_key(record.endpoint)}.json":
                    found[record.endpoint] = Heads(record.branches, record.tags, record.time)
        return found

    def keep_heads(self, endpoint: str, heads: Heads) -> None:
        """Store the branches and tags that a Hub gave."""
        record = _Heads(_FORM, endpoint, heads.time, dict(heads.branches), dict(heads.tags))
        write_record(self._record(f"heads-{endpoint_key(endpoint)}.json"), record)

    def _mirror(self, key: str) -> Path:
        return mirror_record(self.folder, key)

    def mirror(self, key: str) -> MirrorRecord | None:
        """What a mirror last said of the repository."""
        record = read_record(self._mirror(key), MirrorRecord)
        return record if record is not None and (record.form, record.key) == (_FORM, key) else None

    def keep_mirror(self, record: MirrorRecord) -> None:
        """Store what a mirror said of the repository."""
        record.form = _FORM
        write_record(self._mirror(record.key), record)

    def drop_mirror(self, key: str) -> None:
        """Remove what a mirror said: a Hub answers in its place now."""
        with suppress(OSError):
            check_folders(self.folder / "index", self.cache)
            self._mirror(key).unlink()

    def foreign_heads(self) -> Heads:
        """The branches that other tools recorded under `refs/`, without a Hub or a time."""
        refs = self.folder / "refs"
        branches = {}
        for path in sorted(refs.rglob("*")) if refs.is_dir() else []:
            with suppress(OSError, UnicodeDecodeError):
                commit = read_bounded(path, _MAX_REF_BYTES).decode().strip()
                if is_commit(commit):
                    branches[path.relative_to(refs).as_posix()] = commit
        return Heads(branches)


def ignored_records(folder: Path) -> Iterator[tuple[Path, bool]]:
    """The records of a repository that are not used, each with whether it is damaged; else it may be another user's.

    Args:
        folder: The repository's folder in the cache.

    Example:
        >>> list(ignored_records(Path("/nowhere")))
        []
    """
    forms: dict[str, type[StoredRecord]] = {".json": _Index, ".allowed": _Mark, ".published": _Mark}
    named: dict[str, type[StoredRecord]] = {"heads": _Heads, "mirror": MirrorRecord}
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
        kind = path.name.partition("-")[0]
        form = named.get(kind) or forms.get(path.suffix)
        writable = hasattr(os, "geteuid") and bool(facts.st_mode & 0o200) and not path.name.endswith("-fetched")
        if not stat.S_ISREG(facts.st_mode) or not is_ours(facts) or writable:
            yield path, False
        elif form is not None and read_record(path, form) is None:
            yield path, True
