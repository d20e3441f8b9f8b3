"""GET requests to one server: retries, redirects, limits of bytes and time, JSON, and the content of files.

They go over huggingface_hub's session, which uses httpx (1.x) or httpx2 (2.x); neither is imported here.
"""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from kernels import settings
from kernels.errors import HubUnavailable, InvalidRepository, KernelsError, NotInCache
from kernels.models.mirror_form import MAX_DOCUMENT_BYTES, is_mirror_document
from kernels.sources.hub_errors import HubRefused, of_hub, refusal
from kernels.sources.hub_responses import ResponseFormat
from kernels.sources.response import (
    WrongAnswer,
    check_json_body,
    file_redirect,
    following_page,
    is_conditional,
    read_body,
    requested_wait,
    validator_of,
    within_repository,
    without_query,
)
from kernels.sources.wire import (
    api_timeout,
    authorization,
    connection_errors,
    packed,
    request_headers,
    send,
    take_early,
)
from kernels.support.formatting import format_value
from kernels.support.logs import logger, make_safe
from kernels.support.tasks import check_cancelled, pause, when_cancelled

if TYPE_CHECKING:
    from kernels.mirror.stores.base import StoredDocument
    from kernels.models.snapshot import RepoFile

__all__ = [
    "BRIEF",
    "SLOWEST",
    "Http",
    "OtherKind",
    "Patience",
    "unpacked",
]

#: Answers that a later try may change: a rate limit, or an error of the server.
_RETRY_STATUSES = frozenset({408, 429, *range(500, 600)})

#: Redirects within one repository, such as to its name in lower case.
MAX_HTTP_REDIRECTS = 2

#: Redirects of a file's content: to a CDN, perhaps through another Hub.
MAX_FILE_REDIRECTS = 5

#: The headers for the requested Hub that no other host gets.
_OWN_HEADERS = frozenset({"authorization", "cookie"})

#: The slowest download of a large file, in bytes per second; a slower one times out.
SLOWEST = 16 * 1024

#: Seconds before the second request if the answer names none; they double up to the last.
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 8.0

#: Seconds of a wait before another try that a person should know of.
_LONG_WAIT = 10.0

#: For a rate limit (https://huggingface.co/docs/hub/rate-limits).
_TOKEN_HINT = "Requests with a token have a higher limit."

_T = TypeVar("_T")

_log = logger(__name__)


class Patience(NamedTuple):
    """The limits of retries.

    Attributes:
        tries: Requests, the first one included.
        budget: Seconds for all of them. The Hub's rate limits have windows of five minutes, so a wait that it asks for
            fits once (the `RateLimit` header, https://huggingface.co/docs/hub/rate-limits).
        connection_tries: Requests to a Hub that does not answer at all.
    """

    tries: int = 6
    budget: float = 320.0
    connection_tries: int = 4


#: For an answer that the cache may have too, or a Hub that did not answer recently.
BRIEF = Patience(tries=5, budget=10.0, connection_tries=1)


class _Failed(NamedTuple):
    """Why a request is sent again.

    Attributes:
        problem: What happened, after the server's name.
        tries: How often it is sent at most; None for as often as any other.
        wait: Seconds that the server asks to wait; None where it does not say.
        response: The answer; None without one.
    """

    problem: str
    tries: int | None = None
    wait: float | None = None
    response: Any = None


class OtherKind(HubUnavailable):
    """A mirror answers where a Hub was asked, or the other way round.

    Attributes:
        document: The mirror's document in the place of a Hub's answer.
    """

    def __init__(self, message: str, document: StoredDocument | None = None) -> None:
        super().__init__(message)
        self.document = document


class Http:
    """Sends requests to one server: a Hub, or the web server of a mirror.

    A method raises `HubRefused` for a refusal, `Moved` where the server redirects to another repository, `NotInCache`
    while offline, and `HubUnavailable` without a usable answer within the limits.

    Args:
        endpoint: The server's URL.
        describe: Gives what is added to the `User-Agent` header; called before the first request.
        offline: Send no request.
        may_be_mirror: Whether an answer to `json` or `listing` may be a document of a mirror: it raises `OtherKind`.

    Attributes:
        endpoint: The server's URL.
        may_be_mirror: Whether the answer may be a mirror's.
        knows_ranges: Whether an answer said that the server gives parts of files.
    """

    def __init__(
        self,
        endpoint: str,
        describe: Callable[[], Iterable[str]],
        *,
        offline: bool = False,
        may_be_mirror: bool = False,
    ) -> None:
        self.endpoint = endpoint
        self.knows_ranges = False
        self._offline = offline
        self.may_be_mirror = may_be_mirror
        self._describe = describe
        self._lock = threading.Lock()
        self._headers: dict[str, str] | None = None

    @property
    def offline(self) -> bool:
        """Whether no request may be sent: the caller or `HF_HUB_OFFLINE` says so."""
        return self._offline or settings.offline()

    def _own_headers(self) -> dict[str, str]:
        """The headers of every request: the user agent, and the token if it is for this server."""
        with self._lock:
            if self._headers is None:
                self._headers = request_headers(self.endpoint, self._describe)
                make_safe("huggingface_hub")
            return self._headers

    # Answers

    def json(self, path: str, patience: Patience, expected: ResponseFormat[_T]) -> _T:
        """The JSON answer to `GET <endpoint><path>`.

        Args:
            path: The path and query.
            patience: The limits of retries.
            expected: The format of the answer.
        """
        with self.get(f"{self.endpoint}{path}", patience, self._decoding(expected), headers=packed) as (answer, _):
            return answer

    def listing(self, path: str, patience: Patience, expected: ResponseFormat[list[_T]]) -> Iterator[list[_T]]:
        """The pages of a listing, following `Link` headers on the same server.

        Args:
            path: The path and query of the first page.
            patience: The limits of retries of each page.
            expected: The format of a page.

        Raises:
            InvalidRepository, HubUnavailable: The pages do not end, or lead back to one before.
        """
        url: str | None = f"{self.endpoint}{path}"
        seen: set[str] = set()
        deadline = time.monotonic() + Patience().budget
        while url is not None:
            if url in seen:
                raise InvalidRepository(f"The listing at {self.endpoint}{path} leads back to one of its pages.")
            if time.monotonic() > deadline:
                raise HubUnavailable(f"The listing at {self.endpoint}{path} does not end.")
            seen.add(url)
            with self.get(url, patience, self._decoding(expected), headers=packed) as (page, response):
                following = following_page(self.endpoint, url, response)
            if following and not page:
                raise HubUnavailable(f"The answer to {url} is an empty page of a listing that continues.")
            yield page
            url = following

    def content(self, path: str, file: RepoFile, arrived: Callable[[int], None] = lambda size: None) -> bytes:
        """The content of a small file, checked against its listed size and hash.

        A wrong answer is retried like a missing one, and never returned.

        Args:
            path: The path on the Hub.
            file: The listed file.
            arrived: Called with the number of bytes after each part, of every try.
        """

        def check(response: Any, seconds: float) -> bytes:
            data = read_body(response, file.size, seconds, arrived)
            if not file.describes(data):
                raise WrongAnswer(f"{len(data)} bytes that are not the {file.size} bytes listed")
            return data

        url = f"{self.endpoint}{path}"
        with self.get(url, Patience(), check, any_host=True, headers=unpacked) as (data, _):
            return data

    def _decoding(self, expected: ResponseFormat[_T]) -> Callable[[Any, float], _T]:
        """Reads an answer that is JSON of a known format."""

        def decode(response: Any, seconds: float) -> _T:
            import msgspec

            data = read_body(response, MAX_DOCUMENT_BYTES if self.may_be_mirror else expected.limit, seconds)
            check_json_body(data)
            if self.may_be_mirror and is_mirror_document(data):
                from kernels.mirror.stores.base import StoredDocument

                message = f"{self.endpoint} is a mirror, and was asked as a Hub."
                raise OtherKind(message, StoredDocument(data, validator_of(response)))
            if len(data) > expected.limit:
                raise WrongAnswer(f"more than {expected.limit} bytes")
            try:
                return expected.decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                said = format_value(str(error), 300)
                raise WrongAnswer(f"with JSON that is not of the expected form ({said})") from None

        return decode

    # Requests

    @contextmanager
    def get(
        self,
        url: str,
        patience: Patience,
        read: Callable[[Any, float], _T],
        *,
        any_host: bool = False,
        headers: Callable[[], Mapping[str, str]],
        check: Callable[[Any], None] = lambda response: None,
    ) -> Iterator[tuple[_T, Any]]:
        """What `read` returns of the answer to a `GET`, and the answer, which is open during the block.

        Args:
            url: The URL.
            patience: The limits of retries, which end when `read` returns.
            read: Reads an answer that is no refusal, in so many seconds at most; after a `WrongAnswer` the request is
                sent again.
            any_host: Whether it is a file, which a redirect may lead to another host for, without the token.
            headers: Gives the headers of each try.
            check: Examines an answer, also one that redirects, before its body is read.
        """
        if self.offline:
            raise NotInCache(f"{url} was not requested: HF_HUB_OFFLINE or local_files_only is set.")
        ask = partial(self._once, url, any_host, check)
        deadline = time.monotonic() + patience.budget
        attempt = 1
        while isinstance(found := self._try(url, ask, headers(), read, patience), _Failed):
            self._wait(url, found, attempt, patience, deadline)
            attempt += 1
        result, response, opened = found
        with opened:
            yield result, response

    @contextmanager
    def reading(self, url: str) -> Iterator[None]:
        """Read the rest of an answer of `get` in the block, without further tries.

        Args:
            url: The URL that was requested.

        Raises:
            HubUnavailable: It breaks off, or is not as expected.
        """
        try:
            yield
        except WrongAnswer as error:
            raise HubUnavailable(f"{self.endpoint} answered {error}, for {without_query(url)}.") from None
        except KernelsError:  # some are an OSError too, and none is a connection error
            raise
        except connection_errors() as error:
            raise HubUnavailable(
                f"{self.endpoint} stopped to answer ({type(error).__name__}: {error}), for {without_query(url)}."
            ) from None

    def _try(
        self,
        url: str,
        ask: Callable[[Mapping[str, str]], AbstractContextManager[Any]],
        headers: Mapping[str, str],
        read: Callable[[Any, float], _T],
        patience: Patience,
    ) -> tuple[_T, Any, ExitStack] | _Failed:
        """What is read of an answer, the answer, and what closes it; or why it is to be asked for again."""
        check_cancelled()
        begun = time.monotonic()
        try:
            with ExitStack() as opened:
                response = opened.enter_context(ask(headers))
                status = response.status_code
                if status < 300 or (status == 304 and is_conditional(headers)):
                    self.knows_ranges = self.knows_ranges or _gives_ranges(response)
                    result = read(response, patience.budget)
                    _log_request(url, str(status), begun)
                    return result, response, opened.pop_all()
                if status not in _RETRY_STATUSES:
                    raise refusal(url, response)
                failed = _Failed(f"answered {status}", wait=requested_wait(response.headers), response=response)
        except WrongAnswer as error:
            failed = _Failed(f"answered {error}", tries=error.tries)
        except KernelsError:  # some are an OSError too, and none is a connection error
            raise
        except connection_errors() as error:
            failed = _Failed(f"did not answer ({type(error).__name__}: {error})", tries=patience.connection_tries)
        _log_request(url, failed.problem, begun)
        return failed

    def _wait(self, url: str, failed: _Failed, attempt: int, patience: Patience, deadline: float) -> None:
        """Wait for another try.

        Raises:
            HubUnavailable: There is none.
        """
        # Random, so that many clients that were refused together do not retry together.
        seconds = min(_FIRST_WAIT * 2 ** (attempt - 1), _LONGEST_WAIT) * (1 + random.random() / 4)
        seconds = seconds if failed.wait is None else failed.wait
        last = attempt in (failed.tries, patience.tries)
        if last or time.monotonic() + seconds > deadline:
            asks = "" if last or failed.wait is None else f" and asks for a wait of {seconds:.0f} s"
            unavailable = HubUnavailable(
                f"{self.endpoint} {failed.problem}{asks}, after {attempt} {'try' if attempt == 1 else 'tries'}, for "
                f"{url}. Check that it can be reached from here, or try again later."
            )
            raise of_hub(unavailable, failed.response)
        limited = failed.response is not None and failed.response.status_code == 429
        _log.log(
            logging.WARNING if seconds >= _LONG_WAIT else logging.DEBUG,
            "%s %s: try %d of %d follows in %.1f s.%s",
            *(self.endpoint, failed.problem, attempt + 1, patience.tries, seconds, f" {_TOKEN_HINT}" * limited),
        )
        pause(seconds)

    @contextmanager
    def _once(
        self, url: str, any_host: bool, check: Callable[[Any], None], headers: Mapping[str, str]
    ) -> Iterator[Any]:
        """A response with an unread body; only a file's content may come from another host, as its hash is known.

        Redirects are followed here because the HTTP library would read the whole body of each.
        """
        with_token, timeout = True, _download_timeout() if any_host else api_timeout()
        for _ in range((MAX_FILE_REDIRECTS if any_host else MAX_HTTP_REDIRECTS) + 1):
            response = self._response(url, headers, timeout, with_token=with_token)
            with closing(response), when_cancelled(partial(_cut, response)):
                if response.status_code < 400:
                    check(response)
                if not response.is_redirect or response.status_code == 304:
                    yield response
                    return
                location = response.headers.get("Location", "")
                _log.debug("GET %s: %d, a redirect", without_query(url), response.status_code)
            if any_host:
                following = file_redirect(url, location)
                with_token = with_token and urlsplit(following)[:2] == urlsplit(url)[:2]
                url = following
            else:
                url = within_repository(self.endpoint, url, location)
        raise HubRefused(url, 0, "", "too often: too many redirects")

    def _response(self, url: str, headers: Mapping[str, str], timeout: float, *, with_token: bool) -> Any:
        """The answer to one request, which may have been sent already."""
        if with_token:
            # The user agent names this machine, which has to be examined for it: an early request needs none.
            early = take_early(url, {**(self._headers or authorization(self.endpoint)), **headers})
            if early is not None:
                return early.response()
        own = self._own_headers()
        own = own if with_token else {name: value for name, value in own.items() if name not in _OWN_HEADERS}
        return send(url, {**own, **headers}, timeout)


def _gives_ranges(response: Any) -> bool:
    return response.status_code == 206 or str(response.headers.get("Accept-Ranges", "")).strip().lower() == "bytes"


def _cut(response: Any) -> None:
    """End the reading of an answer that another thread waits for: closing the connection would not wake it."""
    if response.is_closed:  # another request may have its connection by now
        return
    stream = response.extensions.get("network_stream")
    connection = None if stream is None else stream.get_extra_info("socket")
    if connection is not None:
        # Not the method of a TLS connection, which also takes away what the other thread is using.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _log_request(url: str, outcome: str, begun: float) -> None:
    _log.debug("GET %s: %s in %.3f s", without_query(url), outcome, time.monotonic() - begun)


def unpacked() -> dict[str, str]:
    """The header of a request whose answer is wanted byte by byte."""
    return {"Accept-Encoding": "identity"}


def _download_timeout() -> float:
    """Seconds to wait for the next bytes of a download (`HF_HUB_DOWNLOAD_TIMEOUT`)."""
    from huggingface_hub import constants

    return float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
