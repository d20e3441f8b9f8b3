"""Requests to a Hub: huggingface_hub's session, its errors and its limits, with retries that end.

huggingface_hub stands on httpx (1.x) or httpx2 (2.x); nothing here imports either.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from kernels import settings
from kernels.errors import HubUnavailable, InvalidRepository, KernelsError, NotInCache
from kernels.sources.addresses import anywhere, following_page, within_repository
from kernels.sources.body import ACCEPTED_ENCODINGS, WrongAnswer, chunks, read_body
from kernels.sources.hub_responses import TREE_PAGE, ResponseFormat, TreeEntry
from kernels.sources.identity import request_headers
from kernels.sources.refusal import HubRefused, refusal
from kernels.sources.sending import connection_errors, sent, told_to_wait
from kernels.support.concurrency import pause
from kernels.support.documents import TooComplex
from kernels.support.formatting import format_value

if TYPE_CHECKING:
    from kernels.cache.partial_file import PartialFile
    from kernels.models.snapshot import RepoFile

__all__ = ["BRIEF", "NOT_NOW", "VERDICT", "HubClient", "Patience"]

#: Answers that mean "not now": a limit, or trouble on the other side.
NOT_NOW = frozenset({408, 429, *range(500, 600)})

#: Redirects within one repository, such as to its spelling in small letters.
MAX_HTTP_REDIRECTS = 3

#: Redirects of a file's content: to a CDN, perhaps by way of another Hub.
MAX_FILE_REDIRECTS = 6

#: What belongs to the Hub that was asked, and to no other host.
_OWN_HEADERS = frozenset({"authorization", "cookie"})

#: What a large file may need at the least, in bytes a second: slower is a connection that does not end.
_SLOWEST = 16 * 1024

_T = TypeVar("_T")


@dataclass(frozen=True)
class Patience:
    """How long to go on asking a Hub that does not answer as it should.

    Attributes:
        tries: Requests in all, the first one included.
        budget: Seconds of waiting in all. The Hub's limits count in windows of five minutes, so a wait that it asks
            for fits once (the `RateLimit` header, https://huggingface.co/docs/hub/rate-limits).
        wait: Seconds before the first repetition where the answer names none; it doubles up to 8.
        connection_tries: Requests in all to a Hub that does not answer at all: a few tell a hiccup from an absence.
    """

    tries: int = 6
    budget: float = 320.0
    wait: float = 0.5
    connection_tries: int = 4


#: For a question whose answer the cache can stand in for, or of a Hub that was just away.
BRIEF = Patience(tries=5, budget=10.0, connection_tries=1)

#: For a publisher's verdict: where the Hub is away, the repository itself is asked for as well, and more often.
VERDICT = Patience(connection_tries=2)


class HubClient:
    """Asks one Hub.

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
        """The headers of every request: user agent, and the token where it belongs to this Hub.

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
            patience: How long to go on asking.
            expected: The type of the answer, and its size.

        Raises:
            HubRefused: The Hub's answer is a no.
            HubMoved: It sends us to another repository.
            HubUnavailable: It gave no usable answer within the bounds of `patience`.
        """
        return self._ask(f"{self.endpoint}{path}", patience, _decoding(expected), headers=_packed)[0]

    def pages(self, path: str, patience: Patience) -> Iterator[list[TreeEntry]]:
        """The pages of a listing, following `Link` headers on the same Hub."""
        url: str | None = f"{self.endpoint}{path}"
        seen: set[str] = set()
        deadline = time.monotonic() + Patience().budget
        while url is not None:
            if url in seen:
                raise InvalidRepository(f"The listing at {self.endpoint}{path} leads back to a page of its own.")
            if time.monotonic() > deadline:
                raise HubUnavailable(f"The listing at {self.endpoint}{path} does not end.")
            seen.add(url)
            page, response = self._ask(url, patience, _decoding(TREE_PAGE), headers=_packed)
            following = following_page(self.endpoint, url, response)
            if following and not page:
                raise HubUnavailable(f"The answer to {url} is an empty page of a listing that goes on.")
            yield page
            url = following

    def content(self, path: str, file: RepoFile, patience: Patience) -> bytes:
        """The content of a small file, checked against its listed size and hash.

        A wrong answer is asked for again like a missing one, and never handed out.
        """

        def check(response: Any, seconds: float) -> bytes:
            data = read_body(response, file.size, seconds)
            if not file.describes(data):
                raise WrongAnswer(f"{len(data)} bytes that are not the {file.size} bytes listed")
            return data

        url = f"{self.endpoint}{path}"
        return self._ask(url, patience, check, timeout=_download_timeout(), elsewhere=True, headers=_unpacked)[0]

    def receive(self, path: str, part: PartialFile, commit: str, patience: Patience) -> None:
        """The rest of a large file, appended to the part of it that is here; its hash is for the caller to compare.

        A Hub that gives nothing but whole files gives this one whole.

        Args:
            path: The path on the Hub.
            part: What is here.
            commit: The commit that the file is of.
            patience: How long to go on asking.

        Raises:
            StoreError: It cannot be written.
            HubRefused, HubMoved, HubUnavailable: It cannot be had, or is not what was listed.
        """
        file = part.file

        def rest() -> dict[str, str]:
            return _unpacked() | ({"Range": f"bytes={part.offset}-"} if part.offset else {})

        def append(response: Any, seconds: float) -> None:
            if response.status_code != 206:
                part.restart()
            elif not _begins_at(response, part.offset):
                part.restart()
                raise WrongAnswer("with another part of the file than the one asked for")
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
            elsewhere=True,
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
        elsewhere: bool = False,
        headers: Callable[[], Mapping[str, str]],
        check: Callable[[Any], None] = lambda response: None,
    ) -> tuple[_T, Any]:
        if settings.offline():
            raise NotInCache(f"{url} was not asked for: HF_HUB_OFFLINE is set.")
        deadline = time.monotonic() + patience.budget
        wait, problem = patience.wait, ""
        for attempt in range(1, patience.tries + 1):
            told = None
            try:
                with self._get(url, timeout or _etag_timeout(), elsewhere, headers(), check) as response:
                    if response.status_code < 300:
                        return read(response, patience.budget), response
                    if response.status_code not in NOT_NOW:
                        raise refusal(url, response)
                    told = told_to_wait(response.headers)
                    problem = f"answered {response.status_code}"
            except WrongAnswer as error:
                problem = f"answered {error}"
            except KernelsError:  # some of them are an OSError as well, and none is the connection's
                raise
            except connection_errors() as error:
                problem = f"did not answer ({type(error).__name__}: {error})"
                if attempt == patience.connection_tries:
                    break
            # A random part keeps many clients that were refused together from coming back together.
            seconds = told if told is not None else wait * (1 + random.random() / 4)
            wait = min(wait * 2, 8.0)
            if attempt == patience.tries:
                break
            if time.monotonic() + seconds > deadline:
                problem += f" and asks for a wait of {seconds:.0f} s" if told is not None else ""
                break
            pause(seconds)
        raise HubUnavailable(
            f"{self.endpoint} {problem}, after {attempt} {'try' if attempt == 1 else 'tries'}, for {url}. Check that "
            "it can be reached from here, or try again later."
        )

    @contextmanager
    def _get(
        self, url: str, timeout: float, elsewhere: bool, headers: Mapping[str, str], check: Callable[[Any], None]
    ) -> Iterator[Any]:
        """A response, under way; only a file's content may come from elsewhere, as its hash is known.

        Redirects are followed here: the HTTP library would read the whole body of each.
        """
        own = {**self.headers, **headers}
        try:
            for _ in range(MAX_FILE_REDIRECTS if elsewhere else MAX_HTTP_REDIRECTS):
                response = sent(url, own, timeout)
                with closing(response):
                    if response.status_code < 400:
                        check(response)
                    if not response.is_redirect:
                        yield response
                        return
                    location = response.headers.get("Location", "")
                if not elsewhere:
                    url = within_repository(self.endpoint, url, location)
                    continue
                following = anywhere(url, location)
                if urlsplit(following)[:2] != urlsplit(url)[:2]:  # the token is not for another host
                    own = {name: value for name, value in own.items() if name.lower() not in _OWN_HEADERS}
                url = following
            raise HubRefused(url, 310, "", "too many redirects")
        except RuntimeError as error:
            # huggingface_hub closes the shared session in one thread while another is using it.
            if "closed" not in str(error):
                raise
            raise ConnectionError(str(error)) from error


def _decoding(expected: ResponseFormat[_T]) -> Callable[[Any, float], _T]:
    """How an answer is read that is JSON of a known type."""

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
    """Whether a part of a file begins where it was asked for (RFC 9110, 14.4)."""
    return str(response.headers.get("Content-Range", "")).startswith(f"bytes {offset}-")


def _check_identity(endpoint: str, response: Any, file: RepoFile, commit: str) -> None:
    """Refuse a file before its content is read where the Hub's own headers say that it is another one.

    A CDN that the Hub redirects to has ETags of its own, which say nothing.

    Raises:
        HubUnavailable: It is.
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
                f"{format_value(said)}, expected {' or '.join(sorted(expected))}. Nothing of it was kept. Try again, "
                "or use another Hub or mirror."
            )


def _etag_timeout() -> float:
    from huggingface_hub import constants

    return float(constants.HF_HUB_ETAG_TIMEOUT)


def _download_timeout() -> float:
    from huggingface_hub import constants

    return float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
