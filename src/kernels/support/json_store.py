"""Small files that are whole or not there at all: what was learned once is remembered in them.

A record stands in for work: a question to a Hub, a signature, the hash of a build. So it counts only if nobody else
could have written it, as a cache may be one that others can write:

- Its owner is this user or root, and it is read-only, also for its owner. Downloads in the same cache have the same
  owner and a content that somebody else chose, but they are never read-only: renaming one to a record makes none.
- It says which record it is, so that one record does not count under the name of another.

Any other counts as not there, and the work is done again. Windows has no such owners: there every record counts.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
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

__all__ = [
    "MAX_LISTING_BYTES",
    "Record",
    "cannot_write",
    "endpoint_key",
    "is_ours",
    "is_owner",
    "read_record",
    "replace_file",
    "write_record",
]

#: Enough for the files of a repository: 250,000 of them, the most that are taken, have some 50 MB.
MAX_LISTING_BYTES = 64 * 1024 * 1024

#: Read-only; the process's umask may take more away.
_MODE = 0o444


class Record(msgspec.Struct, kw_only=True):
    """What every record has.

    Attributes:
        about: Which record it is; `write_record` says so.
        max_bytes: A file with more bytes is none of its kind.
    """

    max_bytes: ClassVar[int] = 1024 * 1024

    about: str = ""


_R = TypeVar("_R", bound=Record)


def endpoint_key(endpoint: str) -> str:
    """A short name for a Hub's URL that can be a file's name."""
    return hashlib.sha256(endpoint.encode()).hexdigest()[:16]


def read_record(path: Path, form: type[_R]) -> _R | None:
    """The record in a JSON file, or None where there is none that counts.

    Args:
        path: The file.
        form: The kind of record.
    """
    try:
        check_folders(path.parent)  # a link leads to what this cache does not hold
        with open_regular(path, follow=False) as file:
            facts = os.fstat(file.fileno())
            if not (is_ours(facts) and _is_read_only(facts)):
                return None
            record = msgspec.json.decode(read_rest(file, form.max_bytes), type=form)
    except (OSError, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return record if record.about == _about(path) else None


def write_record(path: Path, record: Record) -> None:
    """Write a record to a JSON file, whole or not at all.

    A cache that cannot be written still serves: what would have been remembered is asked for again. So does one
    without the record of an answer in which a Hub sends back a token, which is not written.

    Args:
        path: The file. The last three parts of its path must say what the record is about.
        record: The record.
    """
    record.about = _about(path)
    content = msgspec.json.encode(record)
    if len(content) > record.max_bytes or holds_secret(content.decode()):
        return
    with suppress(OSError):
        make_folders(path.parent)
        replace_file(path, content, mode=_MODE)


def is_ours(facts: os.stat_result) -> bool:
    """Whether nobody else can write what is at a path: this user or root owns it, and neither group nor world may.

    Args:
        facts: What `os.fstat` or `os.lstat` say of it.

    Example:
        >>> import tempfile
        >>> is_ours(os.stat(tempfile.mkdtemp()))
        True
    """
    return is_owner(facts) and (not hasattr(os, "geteuid") or not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def is_owner(facts: os.stat_result) -> bool:
    """Whether this user or root owns what is at a path.

    Args:
        facts: What `os.fstat` or `os.lstat` say of it.

    Example:
        >>> import tempfile
        >>> is_owner(os.stat(tempfile.mkdtemp()))
        True
    """
    return not hasattr(os, "geteuid") or facts.st_uid in (os.geteuid(), 0)


def _is_read_only(facts: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or not facts.st_mode & stat.S_IWUSR


def _about(path: Path) -> str:
    """The folder that says the kind and the subject, or the repository, the one below it, and the file."""
    return "/".join(path.parts[-3:])


def replace_file(path: Path, content: bytes, suffix: str = ".tmp", *, mode: int | None = None) -> None:
    """Write `content` under a temporary name beside `path` and rename it into place.

    Args:
        path: The file.
        content: Its content.
        suffix: How the temporary name ends.
        mode: The most that anybody may do with it, whatever the folder's default; by default as for any new file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}{suffix}")
    try:
        with open(temporary, "xb", opener=None if mode is None else _opener(mode)) as file:
            file.write(content)
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def _opener(mode: int) -> Callable[[str, int], int]:
    def open_new(path: str, flags: int) -> int:
        if not hasattr(os, "geteuid"):  # what is read-only cannot be replaced there
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
    """The error for what could not be written to the cache."""
    advice = "Free some space, or name" if error.errno in _FULL else "Name"
    return StoreError(
        f"Cannot write {path}: {error.strerror or error}. Nothing in the cache was changed. {advice} another folder "
        "with KERNELS_CACHE."
    )


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
