"""The body of an HTTP answer, with limits on its unpacked bytes and on time.

The HTTP library would unpack each chunk whole, in any encoding it knows: 64 KB of gzip become 64 MB, of zstd
gigabytes. So answers are read as they were sent, and unpacked here in bounded pieces.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from kernels.models.mirror_form import REPAIR_ADVICE, is_mirror_document
from kernels.support.concurrency import check_cancelled
from kernels.support.text import SafeText

__all__ = ["WrongAnswer", "check_json_body", "chunks", "read_body"]

#: The most that is unpacked at once.
_PIECE = 1024 * 1024

#: gzip adds a header of 18 bytes, and 5 bytes to each 64 KB that cannot be compressed (RFC 1951, 3.2.4).
_PACKED_EXTRA = 64 * 1024


class WrongAnswer(SafeText):
    """An answer that is not as listed or not in the API's format; the same request may be sent again.

    Args:
        message: What was answered.
        tries: How often it is requested at most; None for as often as any other request.
    """

    def __init__(self, message: str, tries: int | None = None) -> None:
        super().__init__(message)
        self.tries = tries


def check_json_body(data: bytes) -> None:
    """Refuse what stands in the place of a Hub's or mirror's JSON for a moment, or because the address is wrong.

    Args:
        data: The body of an answer.

    Raises:
        WrongAnswer: It is a page, or a mirror's document that is cut short. One more try shows whether it stays so.
    """
    if data.lstrip()[:1] not in (b"{", b"["):
        kind = "a web page" if data.lstrip()[:1] == b"<" else "something"
        raise WrongAnswer(f"with {kind} that is not the JSON of a Hub or a mirror", tries=2)
    if is_mirror_document(data) and not data.rstrip().endswith(b"}"):
        raise WrongAnswer(f"with a mirror's document that is cut short ({REPAIR_ADVICE})", tries=2)


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
