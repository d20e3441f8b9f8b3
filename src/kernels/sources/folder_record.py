"""The record that `kernels download --to` wrote for each repository in a folder, before it wrote mirrors.

    <folder>/<org>/<name>/.kernels.json                      this record
    <folder>/<org>/<name>/<commit>/build/<variant>/<path>    files, no links

With it the folder answers as the Hub did: a branch is a commit, a publisher is trusted or not, and every file has a
size and a hash. The folder comes from another machine, so everything in it is checked before it is used.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

import msgspec

from kernels.errors import InvalidRepository, KernelsError
from kernels.models.requirement import check_repo_id, check_revision, is_commit
from kernels.models.snapshot import RepoFile, Snapshot, is_bytecode
from kernels.support.files import FileTooLarge, NotRegularFile, read_bounded
from kernels.support.formatting import as_clause, format_text, format_value
from kernels.support.record_file import decode_json

__all__ = [
    "RECORD_FILE",
    "FolderRecord",
    "FolderRecords",
    "lost_record",
    "plain_files",
    "read_folder_record",
    "recorded_repositories",
]

RECORD_FILE = ".kernels.json"

#: The record's form. Another form is an error: builds without a record would not be checked.
FORM = 1

#: Larger than any record: 100,000 files take some 20 MB, and ten times as much memory once parsed.
_MAX_BYTES = 24 * 1024 * 1024


class FolderRecord(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", omit_defaults=True):
    """The record of one repository in a folder.

    Attributes:
        form: What the fields below mean.
        endpoint: The Hub that the files came from.
        time: When the Hub was last asked, in seconds since 1970.
        trusted: Whether the Hub marked the publisher as trusted; None where it was not asked.
        branches: The commit of each branch that was downloaded.
        moved_to: The repository that replaces this one.
        files: The files in the folder, by commit.
    """

    form: int
    endpoint: str
    time: float
    trusted: bool | None
    branches: dict[str, str] = {}
    moved_to: str | None = None
    files: dict[str, tuple[RepoFile, ...]] = {}

    def snapshot(self, repo_id: str, commit: str) -> Snapshot | None:
        """The files of a commit in the folder, or None."""
        files = self.files.get(commit)
        return None if files is None else Snapshot(repo_id, commit, files)

    def to_bytes(self) -> bytes:
        """The record file's content."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


def read_folder_record(repository: Path) -> FolderRecord | None:
    """The record of a repository's folder, or None without one.

    Args:
        repository: `<folder>/<org>/<name>`.

    Raises:
        InvalidRepository: It cannot be used; the message says why.
    """
    path = repository / RECORD_FILE
    try:
        data = read_bounded(path, _MAX_BYTES, follow=False)
    except FileNotFoundError:
        return None
    except NotRegularFile:
        raise _invalid(path, "it is not a regular file") from None
    except FileTooLarge:
        raise _invalid(path, f"it has more than {_MAX_BYTES} bytes") from None
    except OSError as error:
        raise _invalid(path, f"it cannot be read ({error.strerror or error})") from error
    try:
        record = decode_json(data, FolderRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _invalid(path, format_text(error)) from None
    _check(path, record)
    return record


def recorded_repositories(path: Path) -> tuple[Path, list[str]] | None:
    """The folder and the repositories at a path that `kernels download --to` wrote; None for any other path.

    Args:
        path: The folder, or one repository in it; absolute.

    Raises:
        InvalidRepository: A repository beside others has lost its record.
    """
    if os.path.lexists(path / RECORD_FILE):
        return path.parents[1], [f"{path.parent.name}/{path.name}"]
    repositories = sorted(each for each in path.glob("*/*") if each.is_dir() and not each.name.startswith("."))
    recorded = [each for each in repositories if os.path.lexists(each / RECORD_FILE)]
    for each in repositories if recorded else ():
        if each not in recorded and any(is_commit(inside.name) for inside in each.iterdir()):
            raise lost_record(each)
    return (path, [each.relative_to(path).as_posix() for each in recorded]) if recorded else None


def lost_record(repository: Path) -> InvalidRepository:
    """The error for a repository in such a folder that has no record."""
    name = "/".join(repository.parts[-2:])
    return InvalidRepository(
        f"{repository} has lost its {RECORD_FILE}, which lists its files and their hashes. Copy the folder here again; "
        f"if it is damaged there too, download {name} again, into a new folder."
    )


class FolderRecords:
    """Folder records, each read again only when its file has changed."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, ...], FolderRecord | None]] = {}

    def of(self, repository: Path) -> FolderRecord | None:
        """`read_folder_record`, remembered."""
        try:
            facts = os.lstat(repository / RECORD_FILE)
        except OSError:
            return None
        identity = facts.st_mtime_ns, facts.st_size, facts.st_ino
        known = self._known.get(repository)
        if known is None or known[0] != identity:
            known = self._known[repository] = identity, read_folder_record(repository)
        return known[1]


def plain_files(folder: Path) -> dict[str, int]:
    """The files below a folder and their sizes in bytes, without bytecode; none if the folder does not exist.

    Raises:
        InvalidRepository: The folder has a link, or something else that is neither a file nor a folder.
    """
    found: dict[str, int] = {}
    pending = [("", os.fspath(folder))]
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            raise _linked(os.fspath(folder))
        while pending:
            prefix, current = pending.pop()
            with os.scandir(current) as entries:
                for entry in entries:
                    name = prefix + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        pending.append((f"{name}/", entry.path))
                    elif not entry.is_file(follow_symlinks=False):
                        raise _linked(entry.path)
                    elif not is_bytecode(name):
                        found[name] = entry.stat(follow_symlinks=False).st_size
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise InvalidRepository(f"{folder} cannot be read: {error.strerror or error}.") from error
    return found


def _check(path: Path, record: FolderRecord) -> None:
    if record.form != FORM:
        raise _invalid(path, f"expected form {FORM}, got {record.form}: another version of kernels wrote it")
    try:
        for branch in record.branches:
            check_revision(branch)
        if record.moved_to is not None:
            check_repo_id(record.moved_to)
    except KernelsError as error:
        raise _invalid(path, format_text(error)) from None
    for commit in (*record.branches.values(), *record.files):
        if not is_commit(commit):
            raise _invalid(path, f"{format_value(commit)} is not a commit")
    _check_blobs(path, (file for files in record.files.values() for file in files))


def _check_blobs(path: Path, files: Iterable[RepoFile]) -> None:
    for file in files:
        if not file.blob:  # its content could not be checked
            raise _invalid(path, f"it lists {format_value(file.path)} without a hash")


def _invalid(path: Path, why: str) -> InvalidRepository:
    return InvalidRepository(
        f"{path} is not a valid record of `kernels download --to`: {as_clause(why)}. Copy the folder here again."
    )


def _linked(path: str) -> InvalidRepository:
    return InvalidRepository(
        f"{path} is not a regular file; a folder that `kernels download --to` wrote has no links. Copy it here again, "
        "without links."
    )
