"""Small JSON files that hold results: a Hub's answer, a signature, the hashes of a build.

A record replaces work, so it is used only if no other user can have written it; a cache may be shared:

- Its owner is this user or root, and it is read-only, also for its owner. Downloads in the same cache have the same
  owner and a content that others chose, but they are never read-only: renaming a download makes no record.
- It contains its own name, so that one record is not used under the name of another.

Any other file is ignored, and the work is done again. Windows has no such owners: there every record is used.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, TypeVar

import msgspec

from kernels.errors import StoreError
from kernels.support.files import open_regular, read_rest
from kernels.support.real_folders import check_folders, make_folders
from kernels.support.secrets import holds_secret
from kernels.support.typed_json import decode_json

__all__ = [
    "MAX_LISTING_BYTES",
    "StoredRecord",
    "cannot_write",
    "is_ours",
    "is_owner",
    "read_record",
    "replace_file",
    "write_record",
]

#: Enough for the largest list of a repository's files: 250,000 of them have some 50 MB.
MAX_LISTING_BYTES = 64 * 1024 * 1024

#: Read-only; the process's umask may take more rights away.
_MODE = 0o444


class StoredRecord(msgspec.Struct, kw_only=True):
    """Base of records.

    Attributes:
        about: The record's name; `write_record` sets it.
        max_bytes: The most bytes of its file.
    """

    max_bytes: ClassVar[int] = 1024 * 1024

    about: str = ""


_R = TypeVar("_R", bound=StoredRecord)


def read_record(path: Path, form: type[_R]) -> _R | None:
    """The record in a JSON file; None where it is missing, not valid or could be another user's.

    Args:
        path: The file.
        form: The kind of record.
    """
    try:
        check_folders(path.parent)  # a link leads out of this cache
        with open_regular(path, follow=False) as file:
            facts = os.fstat(file.fileno())
            if not is_ours(facts) or (hasattr(os, "geteuid") and facts.st_mode & stat.S_IWUSR):
                return None
            record = decode_json(read_rest(file, form.max_bytes), form)
    except (OSError, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return record if record.about == _about(path) else None


def write_record(path: Path, record: StoredRecord) -> None:
    """Write a record to a JSON file, whole or not at all.

    It is not written where the cache is read-only, or where a Hub's answer contains a token: the work is done again.

    Args:
        path: The file. The last three parts of its path are the record's name.
        record: The record.
    """
    record.about = _about(path)
    content = msgspec.json.encode(record)
    if len(content) > record.max_bytes or holds_secret(content):
        return
    with suppress(OSError):
        make_folders(path.parent)
        replace_file(path, content, mode=_MODE)


def is_ours(facts: os.stat_result) -> bool:
    """Whether no other user can write a file or folder: this user or root owns it, and group and world may not write.

    Args:
        facts: The result of `os.fstat` or `os.lstat`.

    Example:
        >>> import tempfile
        >>> is_ours(os.stat(tempfile.mkdtemp()))
        True
    """
    return is_owner(facts) and (not hasattr(os, "geteuid") or not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def is_owner(facts: os.stat_result) -> bool:
    """Whether this user or root owns a file or folder, by the result of `os.fstat` or `os.lstat`."""
    return not hasattr(os, "geteuid") or facts.st_uid in (os.geteuid(), 0)


def _about(path: Path) -> str:
    return "/".join(path.parts[-3:])


def replace_file(path: Path, content: bytes, suffix: str = ".tmp", *, mode: int | None = None) -> None:
    """Write `content` under a temporary name beside `path` and rename it into place.

    Args:
        path: The file.
        content: Its content.
        suffix: The end of the temporary name.
        mode: The most rights on it, whatever the folder's default. Default: those of a new file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.urandom(4).hex()}{suffix}")
    try:
        with open(temporary, "xb", opener=None if mode is None else _opener(mode)) as file:
            file.write(content)
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def _opener(mode: int) -> Callable[[str, int], int]:
    def open_new(path: str, flags: int) -> int:
        if not hasattr(os, "geteuid"):  # Windows cannot replace a read-only file
            return os.open(path, flags)
        descriptor = os.open(path, flags, mode)
        # A default ACL may give more, and a strict umask leave too little for its own process.
        found = stat.S_IMODE(os.fstat(descriptor).st_mode)
        wanted = found & mode | stat.S_IRUSR
        if wanted != found:
            try:
                os.fchmod(descriptor, wanted)
            except OSError:
                os.close(descriptor)
                raise
        return descriptor

    return open_new


def cannot_write(error: OSError, path: Path) -> StoreError:
    """The error for a file of the cache that cannot be written."""
    advice = "Free some space, or name" if error.errno in _FULL else "Name"
    return StoreError(
        f"Cannot write {path}: {error.strerror or error}. Nothing in the cache was changed. {advice} another folder "
        "with KERNELS_CACHE."
    )


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
