"""What an answer says, read with limits: its headers, its body, and the URLs that it names.

The HTTP library would unpack each chunk of a body whole, in any encoding it knows: 64 KB of gzip become 64 MB, of zstd
gigabytes. So bodies are read as they were sent, and unpacked here in bounded pieces.

The token of a server is sent to that server only, so API requests stay there; only the content of a file may come from
another host.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit, urlunsplit

from kernels.errors import HubUnavailable
from kernels.models.mirror_form import REPAIR_ADVICE, is_mirror_document
from kernels.sources.hub_errors import HubRefused, Moved
from kernels.support.formatting import format_value
from kernels.support.tasks import check_cancelled
from kernels.support.text import CleanError

__all__ = [
    "WrongAnswer",
    "begins_at",
    "check_json_body",
    "chunks",
    "condition",
    "file_redirect",
    "following_page",
    "is_conditional",
    "read_body",
    "requested_wait",
    "validator_of",
    "within_repository",
    "without_query",
]

#: The longest header that is read as a time to wait.
_MAX_WAIT_HEADER = 256

#: The longest URL that is followed; a signed one of a CDN has some 2,000 characters.
_MAX_URL = 8192

_REPOSITORY = re.compile(r"/api/kernels/([^/]+/[^/]+)(?:/|$)")

#: The most that is unpacked at once.
_PIECE = 1024 * 1024

#: gzip adds a header of 18 bytes, and 5 bytes to each 64 KB that cannot be compressed (RFC 1951, 3.2.4).
_PACKED_EXTRA = 64 * 1024

_CONDITION = "If-None-Match"

#: The longest ETag that is kept.
_MAX_ETAG = 256

#: Seconds for which an ETag is used. Web servers make it of a file's time and size, which two documents may share, as
#: those of two images that were built with fixed times: so the document is read whole once a day.
_ETAG_SECONDS = 86400.0

#: Between the ETag and the time, in seconds since 1970, at which the content was read.
_AND = " read "


class WrongAnswer(CleanError):
    """An answer that is not as listed or not in the API's format; the same request may be sent again.

    Args:
        message: What was answered.
        tries: How often it is requested at most; None for as often as any other request.
    """

    def __init__(self, message: str, tries: int | None = None) -> None:
        super().__init__(message)
        self.tries = tries


# Headers


def begins_at(response: Any, offset: int) -> bool:
    """Whether a part of a file begins at the requested offset (RFC 9110, 14.4)."""
    return str(response.headers.get("Content-Range", "")).startswith(f"bytes {offset}-")


def requested_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds that the Hub asks to wait: `RateLimit` if nothing remains, else `Retry-After` in seconds or as a date."""
    from huggingface_hub.utils import parse_ratelimit_headers

    names = ("RateLimit", "RateLimit-Policy", "Retry-After")
    short = {name: text for name in names if len(text := headers.get(name) or "") <= _MAX_WAIT_HEADER}
    try:
        limit = parse_ratelimit_headers(short)
        if limit is not None and limit.remaining == 0:
            return float(limit.reset_in_seconds)
    except (ValueError, OverflowError):  # a number that no clock has
        pass
    text = short.get("Retry-After", "")
    try:
        return max(0.0, float(text))
    except ValueError:
        from email.utils import parsedate_to_datetime

        try:
            return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
        except (TypeError, ValueError, LookupError, OverflowError, OSError):
            return None


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
    recent = read.isdecimal() and len(read) < 20 and abs(time.time() - int(read)) < _ETAG_SECONDS
    return {_CONDITION: etag} if recent else {}


def is_conditional(headers: Mapping[str, str]) -> bool:
    """Whether a request with these headers may be answered with 304."""
    return _CONDITION in headers


# Bodies


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
        parts = _as_sent(response)
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


def _as_sent(response: Any) -> Iterator[bytes]:
    try:
        yield from response.iter_raw()
    except RuntimeError as error:
        # huggingface_hub closes the session, which is everybody's, in one thread while another uses it.
        if "closed" not in str(error):
            raise
        raise ConnectionError(str(error)) from None


def _unpacked(unpacker: Any, raw: bytes, most: int) -> Iterator[bytes]:
    try:
        while raw and not unpacker.eof and most > 0:
            piece = unpacker.decompress(raw, min(_PIECE, most))
            raw = unpacker.unconsumed_tail
            most -= len(piece)
            yield piece
    except zlib.error:
        raise WrongAnswer("with gzip that cannot be unpacked") from None


# URLs


def without_query(url: str) -> str:
    """A URL as messages show it: a query may be a signature."""
    return url.partition("?")[0]


def following_page(endpoint: str, url: str, response: Any) -> str | None:
    """The URL of a listing's next page (RFC 8288), on the same Hub; None if this page is the last.

    A mirror may link to the Hub it mirrors: the page is requested from the mirror.

    Raises:
        HubUnavailable: The link is not a URL.
    """
    try:
        following = response.links.get("next", {}).get("url")
    except (ValueError, LookupError):
        return None
    if not following:
        return None
    try:
        return _on(endpoint, urljoin(url, following))
    except ValueError:
        raise HubUnavailable(f"The next page of the listing at {url} is not a URL: {format_value(following)}") from None


def within_repository(endpoint: str, url: str, location: str) -> str:
    """The URL that a redirect leads to, within the same repository on the same Hub.

    A repository that was renamed or transferred is another one: its publisher is checked again.
    """
    try:
        named = urljoin(url, location)
        following = _on(endpoint, named)
    except ValueError:
        raise HubRefused(url, 0, "", "to an invalid URL") from None
    if following == url and named != url:
        other = format_value("://".join(urlsplit(named)[:2]), 200)
        raise HubRefused(
            url, 0, "", f"to another host, {other}; only the content of files is taken from there, without the token"
        )
    asked, found = (_REPOSITORY.search(urlsplit(each).path) for each in (url, following))
    if asked is None or found is None:
        raise HubRefused(url, 0, "", f"to {format_value(without_query(following), 200)}, which is something else")
    if asked[1] != found[1]:
        raise Moved(asked[1], found[1])
    return following


def file_redirect(url: str, location: str) -> str:
    """The URL that the redirect of a file leads to, on any host.

    Raises:
        HubRefused: It is not a URL.
    """
    try:
        following = urljoin(url, location)
        parts = urlsplit(following)
        valid = _is_plain(following) and parts.scheme in ("http", "https") and bool(parts.hostname)
        valid = valid and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not location or not valid:
        raise HubRefused(url, 0, "", "to an invalid URL")
    return following


def _on(endpoint: str, url: str) -> str:
    """A URL on a Hub: another host is replaced by the Hub's.

    Raises:
        ValueError: It is not a URL of a Hub.
    """
    if not _is_plain(url):
        raise ValueError("no URL")
    ours, theirs = urlsplit(endpoint), urlsplit(url)
    if theirs.scheme not in ("http", "https") or not theirs.hostname or not theirs.path.startswith("/"):
        raise ValueError("no URL of a Hub")
    found = url if ours[:2] == theirs[:2] else endpoint + urlunsplit(("", "", *theirs[2:4], ""))
    if urlsplit(found)[:2] != ours[:2]:  # the token goes there
        raise ValueError("another host")
    return found


def _is_plain(url: str) -> bool:
    return len(url) <= _MAX_URL and url.isascii() and url.isprintable() and " " not in url
