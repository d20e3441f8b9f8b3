"""Small files that are whole or not there at all: what was learned once is remembered in them."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kernels.errors import StoreError
from kernels.support.secrets import holds_secret

__all__ = ["cannot_write", "endpoint_key", "read_record", "replace_file", "write_record"]

_T = TypeVar("_T")


def endpoint_key(endpoint: str) -> str:
    """A short name for a Hub's URL that can be a file's name."""
    return hashlib.sha256(endpoint.encode()).hexdigest()[:16]


def read_record(path: Path, form: type[_T]) -> _T | None:
    """The record in a JSON file, or None where there is none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=form)
    except (OSError, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def write_record(path: Path, record: Any) -> None:
    """Write a record to a JSON file, whole or not at all.

    A cache that cannot be written still serves: what would have been remembered is asked for again. So does one
    without the record of an answer in which a Hub sends back a token, which is not written.
    """
    content = msgspec.json.encode(record)
    if holds_secret(content.decode()):
        return
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)


def replace_file(path: Path, content: bytes, suffix: str = ".tmp") -> None:
    """Write `content` under a temporary name beside `path` and rename it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}{suffix}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def cannot_write(error: OSError, path: Path) -> StoreError:
    """The error for what could not be written to the cache."""
    advice = "Free some space, or name" if error.errno in _FULL else "Name"
    return StoreError(
        f"Cannot write {path}: {error.strerror or error}. Nothing in the cache was changed. {advice} another folder "
        "with KERNELS_CACHE."
    )


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
