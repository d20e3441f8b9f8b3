"""Requests to one server over huggingface_hub's session, with limits and a bounded number of retries.

huggingface_hub uses httpx (1.x) or httpx2 (2.x); neither is imported here.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from kernels import settings
from kernels.errors import HubUnavailable, KernelsError, NotInCache
from kernels.sources.conditions import is_conditional
from kernels.sources.early_requests import take_in_flight
from kernels.sources.hub_errors import HubRefused, of_hub, refusal
from kernels.sources.request_headers import api_timeout, certain_authorization, request_headers
from kernels.sources.response_body import WrongAnswer
from kernels.sources.safe_urls import file_redirect, within_repository
from kernels.sources.send_request import connection_errors, cut, requested_wait, send
from kernels.support.concurrency import check_cancelled, pause, when_cancelled
from kernels.support.logs import logger

__all__ = [
    "BRIEF",
    "RETRY_STATUSES",
    "SLOWEST",
    "VERDICT",
    "HttpClient",
    "Patience",
    "begins_at",
    "download_timeout",
    "unpacked",
    "without_query",
]

#: Answers that a later try may change: a rate limit, or an error of the server.
RETRY_STATUSES = frozenset({408, 429, *range(500, 600)})

#: Redirects within one repository, such as to its name in lower case.
MAX_HTTP_REDIRECTS = 2

#: Redirects of a file's content: to a CDN, perhaps through another Hub.
MAX_FILE_REDIRECTS = 5

#: The headers for the requested Hub that no other host gets.
_OWN_HEADERS = frozenset({"authorization", "cookie"})

#: The slowest download of a large file, in bytes per second; a slower one times out.
SLOWEST = 16 * 1024

#: Seconds of a wait before another try that a person should know of.
_LONG_WAIT = 10.0

#: For a rate limit (https://huggingface.co/docs/hub/rate-limits).
_TOKEN_HINT = "Requests with a token have a higher limit."

_T = TypeVar("_T")

_log = logger(__name__)


class Patience(msgspec.Struct, frozen=True):
    """The limits of retries.

    Attributes:
        tries: Requests, the first one included.
        budget: Seconds for all of them. The Hub's rate limits have windows of five minutes, so a wait that it asks for
            fits once (the `RateLimit` header, https://huggingface.co/docs/hub/rate-limits).
        wait: Seconds before the second request if the answer names none; it doubles up to 8.
        connection_tries: Requests to a Hub that does not answer at all.
    """

    tries: int = 6
    budget: float = 320.0
    wait: float = 0.5
    connection_tries: int = 4


#: For an answer that the cache may have too, or a Hub that did not answer recently.
BRIEF = Patience(tries=5, budget=10.0, connection_tries=1)

#: For a publisher's verdict: the repository itself is requested at the same time, with more tries.
VERDICT = Patience(connection_tries=2)


class HttpClient:
    """Sends requests to one server.

    Args:
        endpoint: The server's URL.
        describe: Gives what is added to the `User-Agent` header; called before the first request.
        offline: Send no request.

    Attributes:
        endpoint: The server's URL.
        knows_ranges: Whether an answer said that the server gives parts of files.
    """

    def __init__(self, endpoint: str, describe: Callable[[], Iterable[str]], *, offline: bool = False) -> None:
        self.endpoint = endpoint
        self.knows_ranges = False
        self._offline = offline
        self._describe = describe
        self._lock = threading.Lock()
        self._headers: dict[str, str] | None = None

    @property
    def offline(self) -> bool:
        """Whether no request may be sent: the caller or `HF_HUB_OFFLINE` says so."""
        return self._offline or settings.offline()

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request: the user agent, and the token if it is for this Hub.

        Raises:
            RequestError: The token cannot be sent.
        """
        with self._lock:
            if self._headers is None:
                self._headers = request_headers(self.endpoint, self._describe)
            return self._headers

    def ask(
        self,
        url: str,
        patience: Patience,
        read: Callable[[Any, float], _T],
        timeout: float | None = None,
        *,
        any_host: bool = False,
        headers: Callable[[], Mapping[str, str]],
        check: Callable[[Any], None] = lambda response: None,
    ) -> tuple[_T, Any]:
        """What `read` returns of the answer to a `GET`, and the answer.

        Args:
            url: The URL.
            patience: The limits of retries.
            read: Reads an answer that is no refusal, in so many seconds at most; after a `WrongAnswer` the request is
                sent again.
            timeout: Seconds of each wait; the default is that of an API's answer.
            any_host: Whether a redirect may lead to another host, which gets no token.
            headers: Gives the headers of each try.
            check: Examines an answer, also one that redirects, before its body is read.

        Raises:
            HubRefused: The server refuses.
            HubMoved: It redirects to another repository.
            HubUnavailable: No usable answer within the limits.
        """
        result, response, opened = self.open(
            url, patience, read, timeout, any_host=any_host, headers=headers, check=check
        )
        opened.close()
        return result, response

    def open(
        self,
        url: str,
        patience: Patience,
        read: Callable[[Any, float], _T],
        timeout: float | None = None,
        *,
        any_host: bool = False,
        headers: Callable[[], Mapping[str, str]],
        check: Callable[[Any], None] = lambda response: None,
    ) -> tuple[_T, Any, ExitStack]:
        """As `ask`, and what closes the answer: the caller reads its body."""
        if self.offline:
            raise NotInCache(f"{url} was not requested: HF_HUB_OFFLINE or local_files_only is set.")
        deadline = time.monotonic() + patience.budget
        wait, problem = patience.wait, ""
        answer: Any = None
        for attempt in range(1, patience.tries + 1):
            check_cancelled()
            requested = None
            begun = time.monotonic()
            try:
                with ExitStack() as opened:
                    sent = headers()
                    response = opened.enter_context(self._get(url, timeout or api_timeout(), any_host, sent, check))
                    if response.status_code < 300 or (response.status_code == 304 and is_conditional(sent)):
                        self.knows_ranges = self.knows_ranges or _gives_ranges(response)
                        result = read(response, patience.budget)
                        _log_request(url, str(response.status_code), begun)
                        return result, response, opened.pop_all()
                    _log_request(url, str(response.status_code), begun)
                    if response.status_code not in RETRY_STATUSES:
                        raise refusal(url, response)
                    requested = requested_wait(response.headers)
                    problem, answer = f"answered {response.status_code}", response
            except WrongAnswer as error:
                problem, answer = f"answered {error}", None
                _log_request(url, str(error), begun)
                if attempt == error.tries:
                    break
            except KernelsError:  # some are an OSError too, and none is a connection error
                raise
            except connection_errors() as error:
                problem, answer = f"did not answer ({type(error).__name__}: {error})", None
                _log_request(url, type(error).__name__, begun)
                if attempt == patience.connection_tries:
                    break
            # Random, so that many clients that were refused together do not retry together.
            seconds = requested if requested is not None else wait * (1 + random.random() / 4)
            wait = min(wait * 2, 8.0)
            if attempt == patience.tries:
                break
            if time.monotonic() + seconds > deadline:
                problem += f" and asks for a wait of {seconds:.0f} s" if requested is not None else ""
                break
            _log.log(
                logging.WARNING if seconds >= _LONG_WAIT else logging.DEBUG,
                "%s %s: try %d of %d follows in %.1f s.%s",
                self.endpoint,
                problem,
                attempt + 1,
                patience.tries,
                seconds,
                f" {_TOKEN_HINT}" if answer is not None and answer.status_code == 429 else "",
            )
            pause(seconds)
        unavailable = HubUnavailable(
            f"{self.endpoint} {problem}, after {attempt} {'try' if attempt == 1 else 'tries'}, for {url}. Check that "
            "it can be reached from here, or try again later."
        )
        raise of_hub(unavailable, "HfHubHTTPError", response=answer)

    def _decisive(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The headers that decide whether a request is under way already; if they can be had, without the others.

        Those name this machine, which has to be examined for them.
        """
        authorization = certain_authorization(self.endpoint) if self._headers is None else None
        return {**(self.headers if authorization is None else authorization), **headers}

    @contextmanager
    def _get(
        self, url: str, timeout: float, any_host: bool, headers: Mapping[str, str], check: Callable[[Any], None]
    ) -> Iterator[Any]:
        """A response with an unread body; only a file's content may come from another host, as its hash is known.

        Redirects are followed here because the HTTP library would read the whole body of each.
        """
        own: dict[str, str] | None = None
        try:
            for _ in range((MAX_FILE_REDIRECTS if any_host else MAX_HTTP_REDIRECTS) + 1):
                early = take_in_flight(url, self._decisive(headers) if own is None else own)
                if early is not None:
                    response = early.response()
                else:
                    own = {**self.headers, **headers} if own is None else own
                    response = send(url, own, timeout)
                with closing(response), when_cancelled(partial(cut, response)):
                    if response.status_code < 400:
                        check(response)
                    if not response.is_redirect or response.status_code == 304:
                        yield response
                        return
                    location = response.headers.get("Location", "")
                    _log.debug("GET %s: %d, a redirect", without_query(url), response.status_code)
                if not any_host:
                    url = within_repository(self.endpoint, url, location)
                    continue
                following = file_redirect(url, location)
                own = {**self.headers, **headers} if own is None else own
                if urlsplit(following)[:2] != urlsplit(url)[:2]:  # the token is not for another host
                    own = {name: value for name, value in own.items() if name.lower() not in _OWN_HEADERS}
                url = following
            raise HubRefused(url, 0, "", "too often: too many redirects")
        except RuntimeError as error:
            # huggingface_hub closes the shared session in one thread while another uses it.
            if "closed" not in str(error):
                raise
            raise ConnectionError(str(error)) from error


def _gives_ranges(response: Any) -> bool:
    return response.status_code == 206 or str(response.headers.get("Accept-Ranges", "")).strip().lower() == "bytes"


def _log_request(url: str, outcome: str, begun: float) -> None:
    _log.debug("GET %s: %s in %.3f s", without_query(url), outcome, time.monotonic() - begun)


def without_query(url: str) -> str:
    """A URL as messages show it: a query may be a signature."""
    return url.partition("?")[0]


def unpacked() -> dict[str, str]:
    """The header of a request whose answer is wanted byte by byte."""
    return {"Accept-Encoding": "identity"}


def begins_at(response: Any, offset: int) -> bool:
    """Whether a part of a file begins at the requested offset (RFC 9110, 14.4)."""
    return str(response.headers.get("Content-Range", "")).startswith(f"bytes {offset}-")


def download_timeout() -> float:
    """Seconds to wait for the next bytes of a download (`HF_HUB_DOWNLOAD_TIMEOUT`)."""
    from huggingface_hub import constants

    return float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
