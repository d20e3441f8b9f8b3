"""Small JSON files that hold results: a Hub's answer, a signature, the hashes of a build.

A record replaces work, so it is used only if no other user can have written it; a cache may be shared:

- Its owner is this user or root, and it is read-only, also for its owner. Downloads in the same cache have the same
  owner and a content that others chose, but they are never read-only: renaming a download makes no record.
- It contains its own name, so that one record is not used under the name of another.

Any other file is ignored, and the work is done again. Windows has no such owners: there every record is used.

Decoding is safe in any thread. msgspec learns a type when it is first decoded. If two threads decode it for the first
time at once, one of them uses what is not complete, and the process ends with a segmentation fault (msgspec 0.22, about
one start in five with eight threads). Here one thread at a time learns a type.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec

from kernels.support.files import check_folders, make_folders, open_regular, read_rest, replace_file
from kernels.support.forks import ForkLock
from kernels.support.secrets import holds_secret

__all__ = [
    "MAX_LISTING_BYTES",
    "StoredRecord",
    "convert_json",
    "decode_json",
    "is_ours",
    "is_owner",
    "learn",
    "read_record",
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


_T = TypeVar("_T")
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
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
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


_guard = ForkLock()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def decode_json(data: bytes | str | msgspec.Raw, form: type[_T]) -> _T:
    """The value in a JSON document of limited size.

    Args:
        data: The document.
        form: The type.

    Raises:
        msgspec.DecodeError: It is not JSON, not of this type, or nested too deep.

    Example:
        >>> decode_json(b"[1, 2]", list[int])
        [1, 2]
    """
    try:
        found: _T = _decoder(form).decode(data)
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deep") from None
    return found


def convert_json(value: Any, form: type[_T]) -> _T:
    """A value of a JSON document that was parsed already, in its type.

    Args:
        value: Dictionaries, lists and the like.
        form: The type.

    Raises:
        msgspec.ValidationError: It is not of this type.

    Example:
        >>> convert_json([1, 2], list[int])
        [1, 2]
    """
    learn(form)
    return msgspec.convert(value, form)


def learn(form: Any) -> None:
    """Let msgspec learn a type, and those in it, before `msgspec.convert` uses it: it keeps that with the type."""
    _decoder(form)


def _decoder(form: type[_T]) -> msgspec.json.Decoder[_T]:
    decoder = _decoders.get(form)
    if decoder is None:
        with _guard:
            decoder = _decoders.setdefault(form, msgspec.json.Decoder(form))
    return decoder
