"""The streams of a command: standard output is for its answer alone, in whatever characters the locale has."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

__all__ = ["PLAIN", "answer_stream", "print_in_any_locale", "reserve_stdout"]

#: The handler of characters that the locale cannot encode, and what it prints for some of them.
PLAIN = "kernels-plain"
_PLAIN_TEXT = {"\u2026": "...", "\u00b5": "u", "\u2013": "-", "\u2014": "-", "\u2018": "'", "\u2019": "'"}

#: The reserved standard output of each running command, the innermost last.
_reserved: list[TextIO | None] = []


def print_in_any_locale() -> None:
    """Let standard output and standard error replace the characters that the locale cannot encode."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAIN)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return "".join(_PLAIN_TEXT.get(character, "?") for character in characters), error.end


codecs.register_error(PLAIN, _plain)


@contextmanager
def reserve_stdout() -> Iterator[None]:
    """Reserve standard output for a command's answer: other prints go to standard error.

    Meanwhile only what is written to `answer_stream` is there. What code of vendors and kernels prints is not.

    Example:
        >>> with reserve_stdout():
        ...     print("a vendor's greeting")  # on standard error
        ...     print("the answer", file=answer_stream())
        the answer
    """
    before = sys.stdout
    with _redirect_descriptor(before) as out:
        _reserved.append(out)
        sys.stdout = sys.stderr
        try:
            yield
        finally:
            sys.stdout = before
            _reserved.pop()


@contextmanager
def _redirect_descriptor(out: TextIO | None) -> Iterator[TextIO | None]:
    """Point descriptor 1 to standard error, and yield standard output under another descriptor.

    C libraries and child processes write to descriptor 1, not to `sys.stdout`. Streams without it are yielded as is.
    """
    own = None if out is None else _duplicate(out)
    if out is None or own is None:
        yield out
        return
    try:
        os.dup2(2, 1)
        yield own
    finally:
        out.flush()
        _flush_c()
        os.dup2(own.fileno(), 1)
        own.close()


def _duplicate(out: TextIO) -> TextIO | None:
    """Standard output under another descriptor; None if `out` is another stream, or standard error is closed."""
    try:
        if out.fileno() != 1:
            return None
        os.fstat(2)
        out.flush()
        return open(os.dup(1), "w", encoding=out.encoding, errors=out.errors)
    except (OSError, ValueError):  # a stream in memory, or a closed one
        return None


def _flush_c() -> None:
    """Flush the C library's buffers, which would otherwise be printed after the answer."""
    with suppress(ImportError, OSError, TypeError, AttributeError):  # Python without ctypes, Windows
        import ctypes

        ctypes.CDLL(None).fflush(None)


def answer_stream() -> TextIO | None:
    """Standard output as a command's answer has it; None if it is closed.

    Example:
        >>> answer_stream() is sys.stdout
        True
    """
    return _reserved[-1] if _reserved else sys.stdout
