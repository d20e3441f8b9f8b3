"""JSON into types, from any thread.

msgspec learns a type when it is first decoded. If two threads decode it for the first time at once, one of them uses
what is not complete, and the process ends with a segmentation fault (msgspec 0.22, about one start in five with eight
threads). Here one thread at a time learns a type.
"""

from __future__ import annotations

import os
import threading
from typing import Any, TypeVar

import msgspec

__all__ = ["convert_json", "decode_json", "learn"]

_T = TypeVar("_T")

_guard = threading.Lock()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def _renew() -> None:
    # A lock that another thread of the parent held is never released in the child.
    global _guard
    _guard = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def decode_json(data: bytes | str | msgspec.Raw, form: type[_T]) -> _T:
    """The value in a JSON document whose bounds were checked.

    Args:
        data: The document.
        form: The type.

    Raises:
        msgspec.DecodeError: It is not JSON, or not of this type.

    Example:
        >>> decode_json(b"[1, 2]", list[int])
        [1, 2]
    """
    found: _T = _decoder(form).decode(data)
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
