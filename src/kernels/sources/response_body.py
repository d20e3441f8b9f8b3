"""The body of an HTTP answer, with limits on its unpacked bytes and on time.

The HTTP library would unpack each chunk whole, in any encoding it knows: 64 KB of gzip become 64 MB, of zstd
gigabytes. So answers are read as they were sent, and unpacked here in bounded pieces.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from kernels.support.concurrency import check_cancelled
from kernels.support.text import SafeText

__all__ = ["WrongAnswer", "chunks", "read_body"]

#: The most that is unpacked at once.
_PIECE = 1024 * 1024

#: gzip adds a header of 18 bytes, and 5 bytes to each 64 KB that cannot be compressed (RFC 1951, 3.2.4).
_PACKED_EXTRA = 64 * 1024


class WrongAnswer(SafeText):
    """An answer that is not as listed or not in the API's format; the same request may be sent again."""


def read_body(response: Any, limit: int, seconds: float, arrived: Callable[[int], None] = lambda size: None) -> bytes:
    """The whole body of an answer.

    Args:
        response: The answer, from huggingface_hub's session, with an unread body.
        limit: The most bytes, unpacked.
        seconds: The longest time.
        arrived: Called with the number of bytes after each piece.

    Raises:
        WrongAnswer: It has more bytes, or an encoding that was not requested.
        TimeoutError: It takes longer.
    """
    found, size = [], 0
    for chunk in chunks(response, limit, seconds):
        size += len(chunk)
        if size > limit:
            raise WrongAnswer(f"more than {limit} bytes")
        found.append(chunk)
        arrived(len(chunk))
    return b"".join(found)


def chunks(response: Any, limit: int, seconds: float) -> Iterator[bytes]:
    """The body of an answer in pieces of at most 1 MiB, until more than `limit` bytes were given.

    What a hook of the program's session has read already is one piece.

    Args:
        response: The answer, from huggingface_hub's session, with an unread body.
        limit: The most bytes, unpacked. One more byte is given if there are more.
        seconds: The longest time for the whole body.

    Raises:
        WrongAnswer: It has an encoding that was not requested, or its gzip data is cut short.
        TimeoutError: It takes longer.
    """
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip"):
        raise WrongAnswer(f"with the Content-Encoding {encoding[:40]!r}, which was not requested")
    unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS) if encoding.endswith("gzip") else None
    deadline = time.monotonic() + seconds
    left = limit + 1
    received = 0
    if response.is_stream_consumed:
        unpacker, parts = None, iter((response.content,))  # the library has unpacked it
    else:
        parts = response.iter_raw()
    for raw in parts:
        check_cancelled()
        if time.monotonic() > deadline:
            raise TimeoutError(f"the answer takes more than {seconds:.0f} s")
        received += len(raw)
        if received > limit + limit // 1000 + _PACKED_EXTRA:
            raise WrongAnswer(f"more than {limit} bytes")
        for piece in (raw,) if unpacker is None else _unpacked(unpacker, raw, left):
            given = piece[:left]
            left -= len(given)
            if given:
                yield given
            if not left:
                return
    if unpacker is not None and not unpacker.eof and received:
        raise WrongAnswer("with gzip that is cut short")


def _unpacked(unpacker: Any, raw: bytes, most: int) -> Iterator[bytes]:
    try:
        while raw and not unpacker.eof and most > 0:
            piece = unpacker.decompress(raw, min(_PIECE, most))
            raw = unpacker.unconsumed_tail
            most -= len(piece)
            yield piece
    except zlib.error:
        raise WrongAnswer("with gzip that cannot be unpacked") from None
