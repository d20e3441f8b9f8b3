"""One request over huggingface_hub's session: sent, its headers received within a time, nothing of its body read."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from functools import cache
from typing import Any

from kernels.errors import HubUnavailable
from kernels.support.concurrency import check_cancelled

__all__ = ["connection_errors", "sent", "told_to_wait"]

#: How much longer than one read the headers of an answer may take in all.
_HEADER_SECONDS = 20.0

#: The longest header that is read as a time to wait.
_MAX_WAIT_HEADER = 256


def sent(url: str, headers: Mapping[str, str], timeout: float) -> Any:
    """A response whose headers are here, within a time.

    The library's timeout is one of each read: a peer that sends a byte now and then, or one interim answer (1xx) after
    another, is waited for without end. So the request is sent in a thread, which is left behind then.

    Raises:
        TimeoutError: The headers are not here after 20 s more than a read may take.
    """
    session = _session()
    outcome: list[Any] = []
    done, left = threading.Event(), threading.Event()

    def send() -> None:
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

    threading.Thread(target=send, name="kernels-request", daemon=True).start()
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


def told_to_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds the Hub asks to wait: `RateLimit` where nothing remains, else `Retry-After` in seconds or as a date."""
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
    """What the session raises when there is no answer, whichever library it stands on."""
    import inspect

    from huggingface_hub.utils import http_backoff

    retried: Any = inspect.signature(http_backoff).parameters["retry_on_exceptions"].default
    # The root of the library's request errors: it also covers a bad redirect or an undecodable body.
    roots = [cls for error in retried for cls in error.__mro__ if cls.__name__ == "HTTPError"][:1]
    # Beside them stand those of an address, a stream and a cookie that the library will not take.
    library = sys.modules.get(roots[0].__module__.partition(".")[0]) if roots else None
    others = (getattr(library, name, None) for name in ("InvalidURL", "StreamError", "CookieConflict"))
    return (*retried, *roots, *(each for each in others if isinstance(each, type)), OSError, UnicodeError)


def _session() -> Any:
    from huggingface_hub.utils import get_session

    failures: tuple[type[BaseException], ...] = (ValueError, ImportError, *connection_errors())
    try:
        return get_session()
    except failures as error:
        # The address of a proxy may hold a password, and the library quotes it.
        raise HubUnavailable(
            f"No connection can be made from here ({type(error).__name__}). Check the variables HTTP_PROXY, "
            "HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE."
        ) from None
