"""Send one request over huggingface_hub's session, and wait a limited time for the headers of the answer."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Mapping
from functools import cache
from typing import Any

from kernels.errors import HubUnavailable
from kernels.support.concurrency import check_cancelled

__all__ = ["connection_errors", "cut", "requested_wait", "send"]

#: Seconds that all headers of an answer may take, beyond the timeout of one read.
_HEADER_SECONDS = 20.0

#: The longest header that is read as a time to wait.
_MAX_WAIT_HEADER = 256


def send(url: str, headers: Mapping[str, str], timeout: float) -> Any:
    """A response with its headers read and its body unread.

    The library's timeout is per read: a server that sends a byte now and then, or one interim answer (1xx) after
    another, would never time out. So the request is sent in a thread, which is abandoned at a timeout.

    Raises:
        TimeoutError: The headers take 20 s more than the timeout of a read.
    """
    session = _session()
    outcome: list[Any] = []
    done, left = threading.Event(), threading.Event()

    def work() -> None:
        try:
            request = session.build_request("GET", url, headers=headers, timeout=timeout)
            response = session.send(request, stream=True, follow_redirects=False)
            outcome.append(response)
            if left.is_set():
                response.close()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            outcome.append(error)
        finally:
            done.set()

    threading.Thread(target=work, name="kernels-request", daemon=True).start()
    deadline = time.monotonic() + timeout + _HEADER_SECONDS
    try:
        while not done.wait(0.2):
            check_cancelled()
            if time.monotonic() > deadline:
                raise TimeoutError(f"no whole answer within {timeout + _HEADER_SECONDS:.0f} s")
    except BaseException:
        left.set()
        raise
    [found] = outcome
    if isinstance(found, BaseException):
        raise found
    return found


def cut(response: Any) -> None:
    """End the reading of an answer that another thread waits for: closing the connection would not wake it.

    Args:
        response: The answer, of huggingface_hub's session.
    """
    stream = response.extensions.get("network_stream")
    connection = None if stream is None else stream.get_extra_info("socket")
    if connection is not None:
        # Not the method of a TLS connection, which also takes away what the other thread is using.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


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


@cache
def connection_errors() -> tuple[type[BaseException], ...]:
    """The errors that the session raises without an answer, with either HTTP library."""
    import inspect

    from huggingface_hub.utils import http_backoff

    retried: Any = inspect.signature(http_backoff).parameters["retry_on_exceptions"].default
    # The root of the library's request errors: it also covers a bad redirect or an undecodable body.
    roots = [cls for error in retried for cls in error.__mro__ if cls.__name__ == "HTTPError"][:1]
    # The errors of an invalid URL, stream or cookie are not below it.
    library = sys.modules.get(roots[0].__module__.partition(".")[0]) if roots else None
    others = (getattr(library, name, None) for name in ("InvalidURL", "StreamError", "CookieConflict"))
    return (*retried, *roots, *(each for each in others if isinstance(each, type)), OSError, UnicodeError)


def _session() -> Any:
    from huggingface_hub.utils import get_session

    failures: tuple[type[BaseException], ...] = (ValueError, ImportError, *connection_errors())
    try:
        return get_session()
    except failures as error:
        # The URL of a proxy may contain a password, and the library quotes it.
        raise HubUnavailable(
            f"No connection can be made from here ({type(error).__name__}). Check the variables HTTP_PROXY, "
            "HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE."
        ) from None
