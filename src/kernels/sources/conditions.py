"""Conditional requests: what identifies the content of an answer, and how a server is asked for a newer one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import Any

__all__ = ["condition", "is_conditional", "validator_of"]

#: The headers of a request for what is newer; 304 is the answer if nothing is.
_NOT_THIS, _SINCE = "If-None-Match", "If-Modified-Since"

#: The longest ETag that is kept.
_MAX_ETAG = 256

#: Seconds between a `Last-Modified` and the answer with it, from which it identifies the content. It has whole seconds,
#: so a file may change again within its second (RFC 9110, 8.8.2.2), and one that is written first and renamed later
#: may appear after it. 60 is the number of RFC 7232, 2.2.2.
_SETTLED = 60.0

#: Seconds for which a `Last-Modified` is used. Some servers answer 304 for any file that is not newer, also if it was
#: replaced by one with an earlier time (a copy that keeps times); so the document is read whole now and then.
_LONGEST = 86400.0

#: Between the `Last-Modified` and the `Date` of an answer.
_AND = "; answered "


def validator_of(response: Any) -> str:
    """What identifies the content of an answer: its ETag, or else its `Last-Modified`; empty if it has none.

    Args:
        response: The answer.
    """
    etag = str(response.headers.get("ETag", "")).strip()
    if etag:
        return etag if len(etag) <= _MAX_ETAG and _is_text(etag) and etag.endswith('"') else ""
    modified = str(response.headers.get("Last-Modified", "")).strip()
    answered = str(response.headers.get("Date", "")).strip()
    at, now = _seconds(modified), _seconds(answered)
    return f"{modified}{_AND}{answered}" if at is not None and now is not None and now - at >= _SETTLED else ""


def condition(validator: str) -> dict[str, str]:
    """The header of a request for what is newer than the content that a validator identifies; none without one.

    Args:
        validator: What `validator_of` gave.

    Example:
        >>> condition('"1a2b"'), condition("")
        ({'If-None-Match': '"1a2b"'}, {})
    """
    if validator.endswith('"'):
        return {_NOT_THIS: validator}
    modified, _, answered = validator.partition(_AND)
    read = _seconds(answered)
    return {_SINCE: modified} if read is not None and abs(time.time() - read) < _LONGEST else {}


def is_conditional(headers: Mapping[str, str]) -> bool:
    """Whether a request with these headers may be answered with 304."""
    return _NOT_THIS in headers or _SINCE in headers


def _seconds(text: str) -> float | None:
    """The seconds since 1970 of an HTTP date in its only current form; None for anything else (RFC 9110, 5.6.7)."""
    if len(text) != len("Sun, 06 Nov 1994 08:49:37 GMT") or not text.endswith(" GMT") or not _is_text(text):
        return None
    try:
        return parsedate_to_datetime(text).replace(tzinfo=timezone.utc).timestamp()
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


def _is_text(text: str) -> bool:
    return text.isascii() and text.isprintable()
