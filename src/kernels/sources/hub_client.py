"""Requests to a Hub over huggingface_hub's session, with limits and a bounded number of retries.

huggingface_hub uses httpx (1.x) or httpx2 (2.x); neither is imported here.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from kernels import settings
from kernels.errors import HubUnavailable, InvalidRepository, KernelsError, NotInCache
from kernels.sources.hub_errors import HubRefused, of_hub, refusal
from kernels.sources.hub_responses import TREE_PAGE, ResponseFormat, TreeEntry
from kernels.sources.request_headers import request_headers
from kernels.sources.response_body import ACCEPTED_ENCODINGS, WrongAnswer, chunks, read_body
from kernels.sources.safe_urls import file_redirect, following_page, within_repository
from kernels.sources.send_request import connection_errors, cut, requested_wait, send
from kernels.support.concurrency import pause, when_cancelled
from kernels.support.documents import TooComplex
from kernels.support.formatting import format_value
from kernels.support.logs import logger

if TYPE_CHECKING:
    from kernels.cache.partial_file import PartialFile
    from kernels.models.snapshot import RepoFile

__all__ = ["BRIEF", "RETRY_STATUSES", "VERDICT", "HubClient", "Patience"]

#: Answers that a later try may change: a rate limit, or an error of the server.
RETRY_STATUSES = frozenset({408, 429, *range(500, 600)})

#: Redirects within one repository, such as to its name in lower case.
MAX_HTTP_REDIRECTS = 3

#: Redirects of a file's content: to a CDN, perhaps through another Hub.
MAX_FILE_REDIRECTS = 6

#: The headers for the requested Hub that no other host gets.
_OWN_HEADERS = frozenset({"authorization", "cookie"})

#: The slowest download of a large file, in bytes per second; a slower one times out.
_SLOWEST = 16 * 1024

#: Seconds of a wait before another try that a person should know of.
_LONG_WAIT = 10.0

#: For a rate limit (https://huggingface.co/docs/hub/rate-limits).
_TOKEN_HINT = "Requests with a token have a higher limit."

_T = TypeVar("_T")

_log = logger(__name__)


@dataclass(frozen=True)
class Patience:
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


class HubClient:
    """Sends requests to one Hub.

    Args:
        endpoint: The Hub's URL.
        describe: Gives what is added to the `User-Agent` header; called before the first request.
        offline: Send no request.
    """

    def __init__(self, endpoint: str, describe: Callable[[], Iterable[str]], *, offline: bool = False) -> None:
        self.endpoint = endpoint
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

    def json(self, path: str, patience: Patience, expected: ResponseFormat[_T]) -> _T:
        """The JSON answer to `GET <endpoint><path>`.

        Args:
            path: The path and query.
            patience: The limits of retries.
            expected: The format of the answer.

        Raises:
            HubRefused: The Hub refuses.
            HubMoved: It redirects to another repository.
            HubUnavailable: No usable answer within the limits.
        """
        return self._ask(f"{self.endpoint}{path}", patience, _decoding(expected), headers=_packed)[0]

    def pages(self, path: str, patience: Patience) -> Iterator[list[TreeEntry]]:
        """The pages of a listing, following `Link` headers on the same Hub."""
        url: str | None = f"{self.endpoint}{path}"
        seen: set[str] = set()
        deadline = time.monotonic() + Patience().budget
        while url is not None:
            if url in seen:
                raise InvalidRepository(f"The listing at {self.endpoint}{path} leads back to one of its pages.")
            if time.monotonic() > deadline:
                raise HubUnavailable(f"The listing at {self.endpoint}{path} does not end.")
            seen.add(url)
            page, response = self._ask(url, patience, _decoding(TREE_PAGE), headers=_packed)
            following = following_page(self.endpoint, url, response)
            if following and not page:
                raise HubUnavailable(f"The answer to {url} is an empty page of a listing that continues.")
            yield page
            url = following

    def content(
        self, path: str, file: RepoFile, patience: Patience, arrived: Callable[[int], None] = lambda size: None
    ) -> bytes:
        """The content of a small file, checked against its listed size and hash.

        A wrong answer is retried like a missing one, and never returned.

        Args:
            path: The path on the Hub.
            file: The listed file.
            patience: The limits of retries.
            arrived: Called with the number of bytes after each part, of every try.
        """

        def check(response: Any, seconds: float) -> bytes:
            data = read_body(response, file.size, seconds, arrived)
            if not file.describes(data):
                raise WrongAnswer(f"{len(data)} bytes that are not the {file.size} bytes listed")
            return data

        url = f"{self.endpoint}{path}"
        return self._ask(url, patience, check, timeout=_download_timeout(), any_host=True, headers=_unpacked)[0]

    def receive(self, path: str, part: PartialFile, commit: str, patience: Patience) -> None:
        """Append the rest of a large file to its downloaded part; the caller compares the hash.

        If the Hub does not support ranges, the file is downloaded from the start.

        Args:
            path: The path on the Hub.
            part: The part that was downloaded.
            commit: The commit of the file.
            patience: The limits of retries.

        Raises:
            StoreError: It cannot be written.
            HubRefused, HubMoved, HubUnavailable: It is not available, or not as listed.
        """
        file = part.file

        def rest() -> dict[str, str]:
            return _unpacked() | ({"Range": f"bytes={part.offset}-"} if part.offset else {})

        def append(response: Any, seconds: float) -> None:
            if response.status_code != 206:
                part.restart()
            elif not _begins_at(response, part.offset):
                part.restart()
                raise WrongAnswer("with another part of the file than the requested one")
            left = file.size - part.offset
            for chunk in chunks(response, left, seconds + left / _SLOWEST):
                if not part.append(chunk):
                    part.restart()
                    raise WrongAnswer(f"more than the {file.size} bytes listed")
            if not part.complete:
                raise WrongAnswer(f"{part.offset} of the {file.size} bytes listed")

        url = f"{self.endpoint}{path}"
        self._ask(
            url,
            patience,
            append,
            timeout=_download_timeout(),
            any_host=True,
            headers=rest,
            check=lambda response: _check_identity(self.endpoint, response, file, commit),
        )

    def _ask(
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
        if settings.offline():
            raise NotInCache(f"{url} was not requested: HF_HUB_OFFLINE is set.")
        deadline = time.monotonic() + patience.budget
        wait, problem = patience.wait, ""
        answer: Any = None
        for attempt in range(1, patience.tries + 1):
            requested = None
            begun = time.monotonic()
            try:
                with self._get(url, timeout or _etag_timeout(), any_host, headers(), check) as response:
                    if response.status_code < 300:
                        result = read(response, patience.budget)
                        _log_request(url, str(response.status_code), begun)
                        return result, response
                    _log_request(url, str(response.status_code), begun)
                    if response.status_code not in RETRY_STATUSES:
                        raise refusal(url, response)
                    requested = requested_wait(response.headers)
                    problem, answer = f"answered {response.status_code}", response
            except WrongAnswer as error:
                problem, answer = f"answered {error}", None
                _log_request(url, str(error), begun)
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

    @contextmanager
    def _get(
        self, url: str, timeout: float, any_host: bool, headers: Mapping[str, str], check: Callable[[Any], None]
    ) -> Iterator[Any]:
        """A response with an unread body; only a file's content may come from another host, as its hash is known.

        Redirects are followed here because the HTTP library would read the whole body of each.
        """
        own = {**self.headers, **headers}
        try:
            for _ in range(MAX_FILE_REDIRECTS if any_host else MAX_HTTP_REDIRECTS):
                response = send(url, own, timeout)
                with closing(response), when_cancelled(partial(cut, response)):
                    if response.status_code < 400:
                        check(response)
                    if not response.is_redirect:
                        yield response
                        return
                    location = response.headers.get("Location", "")
                    _log.debug("GET %s: %d, a redirect", _without_query(url), response.status_code)
                if not any_host:
                    url = within_repository(self.endpoint, url, location)
                    continue
                following = file_redirect(url, location)
                if urlsplit(following)[:2] != urlsplit(url)[:2]:  # the token is not for another host
                    own = {name: value for name, value in own.items() if name.lower() not in _OWN_HEADERS}
                url = following
            raise HubRefused(url, 310, "", "too many redirects")
        except RuntimeError as error:
            # huggingface_hub closes the shared session in one thread while another uses it.
            if "closed" not in str(error):
                raise
            raise ConnectionError(str(error)) from error


def _log_request(url: str, outcome: str, begun: float) -> None:
    _log.debug("GET %s: %s in %.3f s", _without_query(url), outcome, time.monotonic() - begun)


def _without_query(url: str) -> str:
    # A query may be a signature.
    return url.partition("?")[0]


def _decoding(expected: ResponseFormat[_T]) -> Callable[[Any, float], _T]:
    """Reads an answer that is JSON of a known format."""

    def decode(response: Any, seconds: float) -> _T:
        import msgspec

        try:
            return expected.decode(read_body(response, expected.limit, seconds))
        except (msgspec.DecodeError, UnicodeDecodeError, TooComplex) as error:
            raise WrongAnswer(f"with JSON that is not of the expected form ({format_value(str(error), 300)})") from None

    return decode


def _packed() -> dict[str, str]:
    return {"Accept-Encoding": ACCEPTED_ENCODINGS}


def _unpacked() -> dict[str, str]:
    return {"Accept-Encoding": "identity"}


def _begins_at(response: Any, offset: int) -> bool:
    """Whether a part of a file begins at the requested offset (RFC 9110, 14.4)."""
    return str(response.headers.get("Content-Range", "")).startswith(f"bytes {offset}-")


def _check_identity(endpoint: str, response: Any, file: RepoFile, commit: str) -> None:
    """Refuse a file before its content is read if the Hub's own headers say that it is another one.

    The ETag of a CDN is not compared: it is not the Hub's.

    Raises:
        HubUnavailable: It is another one.
    """
    if urlsplit(str(response.url))[:2] != urlsplit(endpoint)[:2]:
        return
    headers = response.headers
    etag = headers.get("X-Linked-ETag") or ("" if response.is_redirect else headers.get("ETag", ""))
    found = {
        "ETag": (etag.removeprefix("W/").strip('"'), {file.blob, file.oid} - {""}),
        "X-Linked-Size": (headers.get("X-Linked-Size", ""), {str(file.size)}),
        "X-Repo-Commit": (headers.get("X-Repo-Commit", ""), {commit}),
    }
    for name, (said, expected) in found.items():
        if said and expected and said not in expected:
            raise HubUnavailable(
                f"{endpoint} answers with another file than it lists as {format_value(file.path, 200)}: {name} is "
                f"{format_value(said)}, expected {' or '.join(sorted(expected))}. Nothing was kept. Try again, "
                "or use another Hub or mirror."
            )


def _etag_timeout() -> float:
    from huggingface_hub import constants

    return float(constants.HF_HUB_ETAG_TIMEOUT)


def _download_timeout() -> float:
    from huggingface_hub import constants

    return float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
