"""Conditional requests: what identifies the content of an answer, and how a server is asked for a newer one.

It is the ETag alone, for a day. Web servers make it of a file's time and size, which two documents may share: those of
two images that were built with fixed times. So the document is read whole once a day.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

__all__ = ["condition", "is_conditional", "validator_of"]

_NOT_THIS = "If-None-Match"

#: The longest ETag that is kept.
_MAX_ETAG = 256

#: Seconds for which an ETag is used.
_LONGEST = 86400.0

#: Between the ETag and the time, in seconds since 1970, at which the content was read.
_AND = " read "


def validator_of(response: Any) -> str:
    """What identifies the content of an answer, and since when; empty if it has no ETag.

    Args:
        response: The answer.
    """
    etag = str(response.headers.get("ETag", "")).strip()
    valid = len(etag) <= _MAX_ETAG and etag.isascii() and etag.isprintable() and etag.endswith('"')
    return f"{etag}{_AND}{int(time.time())}" if valid else ""


def condition(validator: str) -> dict[str, str]:
    """The header of a request for what is newer than the content that a validator identifies; none without one.

    Args:
        validator: What `validator_of` gave.

    Example:
        >>> condition(f'"1a2b" read {int(time.time())}'), condition('"1a2b" read 0'), condition("")
        ({'If-None-Match': '"1a2b"'}, {}, {})
    """
    etag, _, read = validator.rpartition(_AND)
    recent = read.isdecimal() and len(read) < 20 and abs(time.time() - int(read)) < _LONGEST
    return {_NOT_THIS: etag} if recent else {}


def is_conditional(headers: Mapping[str, str]) -> bool:
    """Whether a request with these headers may be answered with 304."""
    return _NOT_THIS in headers
