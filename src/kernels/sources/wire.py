"""One request: its headers, and a thread that sends it with a deadline. The first one of a call leaves early.

What a call asks first is known from its arguments: it is sent at once, and the rest is imported while the answer is on
its way. `Http` takes that answer over when it is about to send the same request, so that whatever follows, such as a
redirect or a retry, is as without.

This module is imported before the first request of a call, so it imports little; a test counts it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any, NamedTuple

from kernels import settings
from kernels._version import __version__
from kernels.errors import HubUnavailable, RequestError
from kernels.support.forks import ForkLock, after_fork
from kernels.support.tasks import Task

__all__ = [
    "EarlyRequest",
    "Sending",
    "api_timeout",
    "authorization",
    "connection_errors",
    "of_caller",
    "packed",
    "request_headers",
    "send",
    "sent_early",
    "take_early",
]

#: The `Accept-Encoding` of JSON requests; files are requested unpacked.
_ACCEPTED_ENCODINGS = "gzip"

#: Seconds that all headers of an answer may take, beyond the timeout of one read.
_HEADER_SECONDS = 20.0

#: Seconds that the imports which follow leave the interpreter to the thread that sends an early request: two threads
#: that run leave it to each other every 5 ms, and the request, for which all wait, would leave later.
_HEAD_START = 0.005


# Headers


def request_headers(endpoint: str, describe: Callable[[], Iterable[str]]) -> dict[str, str]:
    """The headers of every request to a Hub: the user agent, and the token if it is for this Hub.

    The user agent is huggingface_hub's, whose code for it is slow to import.

    Args:
        endpoint: The Hub's URL.
        describe: Gives what is added to the `User-Agent` header, such as `backend/cu128`; not called where telemetry is
            disabled.

    Raises:
        RequestError: The token cannot be read, or has characters that a header cannot carry. The message does not show
            it.
    """
    import huggingface_hub
    import huggingface_hub.constants

    token = authorization(endpoint)
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    parts = [f"kernels/{__version__}", f"hf_hub/{huggingface_hub.__version__}", f"python/{python}"]
    if not settings.telemetry_disabled():
        torch = getattr(sys.modules.get("torch"), "__version__", None)
        parts += [*(() if torch is None else (f"torch/{torch}",)), *describe()]
    origin = getattr(huggingface_hub.constants, "HF_HUB_USER_AGENT_ORIGIN", None)
    parts += () if origin is None else (f"origin/{origin}",)
    agent = "; ".join(map(_in_ascii, filter(None, dict.fromkeys(parts))))
    return {"user-agent": agent.strip()} | token


def authorization(endpoint: str) -> dict[str, str]:
    """The header with the token for a Hub; none without one.

    Args:
        endpoint: The Hub's URL.

    Raises:
        RequestError: As `request_headers`.
    """
    token = settings.hub_token(endpoint)
    if token is None and _is_own(endpoint):
        token = settings.plain_hf_token()
        if token is None:
            token = _stored_token(endpoint)
    if not token:
        return {}
    from kernels.support import secrets  # where there is one

    secrets.register(token)
    # The HTTP library would refuse it too, and quote it.
    if not token.isascii() or not token.isprintable() or token != token.strip():
        raise RequestError(
            f"No request was sent to {endpoint}: the token ({settings.token_source(endpoint)}) has a character that an "
            "HTTP header cannot carry. Expected printable ASCII without spaces at either end."
        )
    return {"authorization": f"Bearer {token}"}


def _stored_token(endpoint: str) -> str | None:
    """The token that only huggingface_hub can tell, such as that of a login; importing its code takes 20 ms."""
    from huggingface_hub import constants

    if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return None
    from huggingface_hub import get_token

    try:
        return get_token()
    except (OSError, ValueError) as error:  # the library's message may quote it
        raise RequestError(
            f"The token for {endpoint} cannot be used ({type(error).__name__}). Check "
            f"{settings.token_source(endpoint)}."
        ) from None


def _is_own(endpoint: str) -> bool:
    """Whether huggingface_hub's token is for a Hub: it is for its own endpoint, and never sent to another host."""
    from huggingface_hub import constants

    return endpoint == str(constants.ENDPOINT).rstrip("/")


def _in_ascii(text: str) -> str:
    """A header is one line of ASCII."""
    return "".join(c if " " <= c <= "~" else "?" for c in text)


def of_caller(user_agent: str | Mapping[str, str] | None) -> list[str]:
    """What a caller adds to the user agent.

    Example:
        >>> of_caller({"framework": "transformers"})
        ['framework/transformers']
    """
    if user_agent is None or isinstance(user_agent, str):
        return [user_agent or ""]
    return [f"{key}/{value}" for key, value in user_agent.items()]


def packed() -> dict[str, str]:
    """The header of a request whose answer may be compressed."""
    return {"Accept-Encoding": _ACCEPTED_ENCODINGS}


def api_timeout() -> float:
    """Seconds to wait for the next bytes of an answer about a file or repository (`HF_HUB_ETAG_TIMEOUT`)."""
    from huggingface_hub import constants

    return float(constants.HF_HUB_ETAG_TIMEOUT)


# Sending


def send(url: str, headers: Mapping[str, str], timeout: float) -> Any:
    """A response with its headers read and its body unread.

    Args:
        url: The URL.
        headers: All headers.
        timeout: Seconds of each read; the headers may take 20 s more in all.

    Raises:
        TimeoutError: They take longer. Also any error of the session (`connection_errors`).
        HubUnavailable: huggingface_hub's session cannot be made.
    """
    return Sending(url, headers, timeout).response()


class Sending:
    """A request that another thread sends from now on.

    The HTTP library's timeout is per read: a server that sends a byte now and then, or one interim answer (1xx) after
    another, would never time out, and nothing wakes a thread that reads headers. So the thread is left to itself at a
    timeout, and the end of the process does not wait for it.

    Args:
        url, headers, timeout: As of `send`.

    Attributes:
        headers: The headers.
    """

    def __init__(self, url: str, headers: Mapping[str, str], timeout: float) -> None:
        self.headers = headers
        self._url = url
        self._timeout = timeout
        self._guard = threading.Lock()
        self._given_up = False
        self._answer: Any = None
        self._deadline = time.monotonic() + timeout + _HEADER_SECONDS
        self._task = Task(partial(self._work, new_session()), name="request")

    def _work(self, session: Any) -> Any:
        try:
            answer = self._ask(session)
        except RuntimeError as error:
            # Another thread closed the session, which is everybody's, before anything was sent.
            if "closed" not in str(error):
                raise
            answer = self._ask(new_session())
        with self._guard:
            self._answer = answer
            late = self._given_up
        if late:
            _close(answer)
        return answer

    def _ask(self, session: Any) -> Any:
        request = session.build_request("GET", self._url, headers=self.headers, timeout=self._timeout)
        return session.send(request, stream=True, follow_redirects=False)

    def wait(self, seconds: float) -> None:
        """Wait so long for the answer."""
        self._task.wait(seconds)

    def response(self) -> Any:
        """The response, with an unread body; it is waited for once.

        Raises:
            TimeoutError: The headers take longer than they may. Also any error of the session.
        """
        try:
            if not self._task.wait(max(0.0, self._deadline - time.monotonic())):
                raise TimeoutError(f"no whole answer within {self._timeout + _HEADER_SECONDS:.0f} s")
            return self._task.result()
        except BaseException:
            self.give_up()
            raise

    def give_up(self) -> None:
        """Close the response, now or when it is there."""
        with self._guard:
            self._given_up = True
            answer = self._answer
        _close(answer)


def _close(answer: Any) -> None:
    if answer is not None:
        with suppress(Exception):  # nobody wants the answer
            answer.close()


def new_session() -> Any:
    """huggingface_hub's session; it is made if there is none, and others wait meanwhile."""
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


@cache
def connection_errors() -> tuple[type[BaseException], ...]:
    """The errors that the session raises without an answer, with either HTTP library: httpx, or httpx2."""
    from huggingface_hub.errors import HfHubHTTPError

    root = next(cls for cls in HfHubHTTPError.__mro__[1:] if cls.__name__ == "HTTPError")
    library: Any = sys.modules[root.__module__.partition(".")[0]]
    # The errors of an invalid URL, stream or cookie are not below its root.
    return (root, library.InvalidURL, library.StreamError, library.CookieConflict, OSError, UnicodeError)


# Requests that leave early


class EarlyRequest(NamedTuple):
    """A request that will be needed.

    Attributes:
        url: Its URL.
        headers: All of its headers.
        needed: Whether the answer is not known by now.
    """

    url: str
    headers: Mapping[str, str]
    needed: Callable[[], bool]


#: Held while a request is sent: a call that asks the same meanwhile waits, and finds it.
_guard = ForkLock()

#: The early requests of running calls, by URL; None for one that was taken over.
_early: dict[str, Sending | None] = {}


@after_fork
def _renew() -> None:
    # A fork has none of the threads.
    _early.clear()


@contextmanager
def sent_early(requests: Iterable[EarlyRequest]) -> Iterator[None]:
    """Send requests for the code in the block; what another call has sent is not sent again.

    Args:
        requests: The requests. A call that sends none of them is as good: then they are sent when they are needed.
    """
    own: list[str] = []
    try:
        with _guard:
            for each in requests:
                if each.url not in _early:
                    own.append(each.url)
                    _early[each.url] = None
                    with suppress(Exception):  # the ordinary request meets it as well, and says what is wrong
                        _early[each.url] = Sending(each.url, each.headers, api_timeout()) if each.needed() else None
            sent = [found for url in own if (found := _early[url]) is not None]
        deadline = time.monotonic() + _HEAD_START
        for sending in sent:
            sending.wait(deadline - time.monotonic())
        yield
    finally:
        with _guard:
            left = [_early.pop(url, None) for url in own]
        for unused in left:
            if unused is not None:
                unused.give_up()


def take_early(url: str, headers: Mapping[str, str]) -> Sending | None:
    """The early request for a URL with these headers, once; None if it has to be sent.

    Args:
        url: The URL.
        headers: All headers of the request but the user agent.
    """
    if url not in _early:
        return None
    with _guard:
        sending = _early.get(url)
        if sending is None or _compared(sending.headers) != _compared(headers):
            return None
        _early[url] = None
    return sending


def _compared(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that an answer depends on."""
    return {name.lower(): value for name, value in headers.items() if name.lower() != "user-agent"}
