"""Requests to a Hub: huggingface_hub's session, its errors and its limits, with retries that end.

huggingface_hub stands on httpx (1.x) or httpx2 (2.x); nothing here imports either.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urljoin, urlsplit, urlunsplit

from kernels import settings
from kernels.errors import HubUnavailable, InvalidRepository, NotInCache
from kernels.side_by_side import check_wanted, pause

if TYPE_CHECKING:
    from kernels.release import RepoFile

__all__ = ["BRIEF", "NOT_NOW", "VERDICT", "HubClient", "HubMoved", "HubRefused", "Patience", "connection_errors"]

#: Answers that mean "not now": a limit, or trouble on the other side.
NOT_NOW = frozenset({408, 429, *range(500, 600)})

#: Redirects within one repository, such as to its spelling in small letters.
MAX_HTTP_REDIRECTS = 3

_REPOSITORY = re.compile(r"/api/(?:kernels|models)/([^/]+/[^/]+)(?:/|$)")

#: An answer about a repository is small: a page of 1,000 files is some 300 kB.
_MAX_ANSWER = 32 * 1024 * 1024


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


class HubRefused(Exception):
    """An answer that repeating the question does not change: not found, not allowed, gated."""

    def __init__(self, url: str, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code or message} for {url}")
        self.url = url
        self.status = status
        self.code = code
        self.message = message

    @property
    def repository_missing(self) -> bool:
        """Whether the answer says that there is no such repository, or none this token may see.

        The Hub answers 401 for a repository that it does not show to a stranger, and with that message for a token that
        it does not accept (`hf_raise_for_status` of huggingface_hub tells them apart in the same way).
        """
        if self.code:
            return self.code in ("RepoNotFound", "GatedRepo")
        return self.status == 404 or (self.status == 401 and "Invalid credentials" not in self.message)

    @property
    def revision_missing(self) -> bool:
        """Whether the repository is there, and the revision is not."""
        return self.code == "RevisionNotFound"


class HubMoved(Exception):
    """The Hub answers for another repository than the one asked for: it was renamed, or handed to someone else."""

    def __init__(self, repo_id: str) -> None:
        super().__init__(repo_id)
        self.repo_id = repo_id


class HubClient:
    """Asks one Hub.

    Args:
        endpoint: The Hub's URL.
        user_agent: What the caller adds to the `User-Agent` header.
    """

    def __init__(self, endpoint: str, user_agent: str | Mapping[str, str] | None = None) -> None:
        self.endpoint = endpoint
        self._user_agent = user_agent
        self._lock = threading.Lock()
        self._headers: dict[str, str] | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request: user agent, and the token where it belongs to this Hub."""
        with self._lock:
            if self._headers is None:
                self._headers = _headers(self.endpoint, self._user_agent)
            return self._headers

    @property
    def token(self) -> str | bool | None:
        """The token to hand to huggingface_hub: its own choice for its own Hub, none for any other."""
        return _token(self.endpoint)

    def json(self, path: str, patience: Patience) -> Any:
        """The JSON answer to `GET <endpoint><path>`.

        Raises:
            HubRefused: The Hub's answer is a no.
            HubMoved: It sends us to another repository.
            HubUnavailable: It gave no usable answer within the bounds of `patience`.
        """
        return self._ask(f"{self.endpoint}{path}", patience, _decode)[0]

    def pages(self, path: str, patience: Patience) -> Iterator[list[Any]]:
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
            page, response = self._ask(url, patience, _decode)
            following = response.links.get("next", {}).get("url")
            if not isinstance(page, list) or (following and not page):
                raise HubUnavailable(f"The answer to {url} is no listing, or an empty page of one that goes on.")
            yield page
            # A token goes with each request, so the next page is asked of this Hub, also where a mirror hands out
            # links to the Hub it mirrors.
            url = None if not following else _next(self.endpoint, url, following)

    def content(self, path: str, file: RepoFile, patience: Patience) -> bytes:
        """The content of a small file, checked against its listed size and hash.

        A wrong answer is asked for again like a missing one, and never handed out.
        """

        def check(response: Any, seconds: float) -> bytes:
            data = _read(response, file.size, seconds)
            if not file.describes(data):
                raise _Wrong(f"{len(data)} bytes that are not the {file.size} bytes listed")
            return data

        url = f"{self.endpoint}{path}"
        content: bytes = self._ask(url, patience, check, timeout=_download_timeout(), elsewhere=True)[0]
        return content

    def rest(self, path: str, file: RepoFile, into: BinaryIO, patience: Patience) -> None:
        """The rest of a large file, appended to what there is of it; its size is checked here, its hash is not.

        A Hub that gives nothing but whole files gives this one whole.
        """
        start = into.seek(0, os.SEEK_END)

        def append(response: Any, seconds: float) -> None:
            into.seek(start if response.status_code == 206 else 0)
            into.truncate()
            for chunk in response.iter_bytes():
                check_wanted()
                into.write(chunk)
                if into.tell() > file.size:
                    break
            if into.tell() != file.size:
                raise _Wrong(f"with another number of bytes than the {file.size} listed")

        headers = {"Range": f"bytes={start}-", "Accept-Encoding": "identity"}
        url = f"{self.endpoint}{path}"
        self._ask(url, patience, append, timeout=_download_timeout(), elsewhere=True, headers=headers)

    def _ask(
        self,
        url: str,
        patience: Patience,
        read: Callable[[Any, float], Any],
        timeout: float | None = None,
        *,
        elsewhere: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[Any, Any]:
        if settings.offline():
            raise NotInCache(f"{url} was not asked for: HF_HUB_OFFLINE is set.")
        deadline = time.monotonic() + patience.budget
        wait, problem = patience.wait, ""
        for attempt in range(1, patience.tries + 1):
            told = None
            try:
                with self._get(url, timeout or _etag_timeout(), elsewhere, headers or {}) as response:
                    if response.status_code < 300:
                        return read(response, patience.budget), response
                    if response.status_code not in NOT_NOW:
                        raise _refusal(url, response)
                    told = _told_to_wait(response.headers)
                    problem = f"answered {response.status_code}"
            except _Wrong as error:
                problem = f"answered {error}"
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
    def _get(self, url: str, timeout: float, elsewhere: bool, headers: Mapping[str, str]) -> Iterator[Any]:
        """A response, under way; only a file's content may come from elsewhere, as its hash is known."""
        from huggingface_hub.utils import get_session

        try:
            for _ in range(MAX_HTTP_REDIRECTS):
                with get_session().stream(
                    "GET", url, headers={**self.headers, **headers}, timeout=timeout, follow_redirects=elsewhere
                ) as response:
                    if elsewhere or not response.is_redirect:
                        yield response
                        return
                    url = _same_repository(self.endpoint, url, response.headers.get("Location", ""))
            raise HubRefused(url, 310, "", "too many redirects")
        except RuntimeError as error:
            # huggingface_hub closes the shared session in one thread while another is using it.
            if "closed" not in str(error):
                raise
            raise ConnectionError(str(error)) from error


def _on(endpoint: str, url: str) -> str:
    ours, theirs = urlsplit(endpoint), urlsplit(url)
    return url if ours[:2] == theirs[:2] else endpoint + urlunsplit(("", "", *theirs[2:4], ""))


def _next(endpoint: str, url: str, following: str) -> str:
    try:
        return _on(endpoint, urljoin(url, following))
    except ValueError:
        raise HubUnavailable(f"The listing at {url} goes on at no address: {following[:200]!r}") from None


class _Wrong(Exception):
    """An answer that is not what was listed: asked for again."""


def _same_repository(endpoint: str, url: str, location: str) -> str:
    """Where a redirect leads, if that is the same repository on the same Hub.

    A repository that was renamed or handed over is another one: whose code it holds is asked anew.
    """
    try:
        following = _on(endpoint, urljoin(url, location))
    except ValueError:
        raise HubRefused(url, 310, "", "a redirect to no address") from None
    asked, found = (_REPOSITORY.search(urlsplit(each).path) for each in (url, following))
    if asked is None or found is None:
        raise HubRefused(url, 310, "", "redirected")
    if asked[1] != found[1]:
        raise HubMoved(found[1])
    return following


def _decode(response: Any, seconds: float) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(_read(response, _MAX_ANSWER, seconds))
    except (msgspec.DecodeError, RecursionError) as error:
        raise _Wrong(f"with no JSON ({error})") from None


def _read(response: Any, limit: int, seconds: float) -> bytes:
    chunks, size = [], 0
    deadline = time.monotonic() + seconds
    for chunk in response.iter_bytes():
        check_wanted()
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            raise _Wrong(f"more than {limit} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the answer takes more than {seconds:.0f} s")
    return b"".join(chunks)


def _refusal(url: str, response: Any) -> HubRefused:
    return HubRefused(
        url,
        response.status_code,
        response.headers.get("X-Error-Code", ""),
        response.headers.get("X-Error-Message", "")[:500],
    )


def _told_to_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds the Hub asks to wait: `RateLimit` where nothing remains, else `Retry-After` in seconds or as a date."""
    from huggingface_hub.utils import parse_ratelimit_headers

    limit = parse_ratelimit_headers(headers)
    if limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    text = headers.get("Retry-After")
    if text is None:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        from email.utils import parsedate_to_datetime

        try:
            return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
        except (TypeError, ValueError):
            return None


def connection_errors() -> tuple[type[BaseException], ...]:
    """What the session raises when there is no answer, whichever library it stands on."""
    import inspect

    from huggingface_hub.utils import http_backoff

    retried: Any = inspect.signature(http_backoff).parameters["retry_on_exceptions"].default
    # The root of the library's request errors: it also covers a bad redirect or an undecodable body.
    roots = [cls for error in retried for cls in error.__mro__ if cls.__name__ == "HTTPError"]
    return (*retried, *roots[:1], OSError)


def _etag_timeout() -> float:
    from huggingface_hub import constants

    return float(constants.HF_HUB_ETAG_TIMEOUT)


def _download_timeout() -> float:
    from huggingface_hub import constants

    return float(constants.HF_HUB_DOWNLOAD_TIMEOUT)


def _token(endpoint: str) -> str | bool | None:
    from huggingface_hub import constants

    # huggingface_hub's token belongs to the Hub it was made for: another host never sees it.
    if endpoint == constants.ENDPOINT.rstrip("/"):
        return None
    return settings.hub_token() or False


def _headers(endpoint: str, user_agent: str | Mapping[str, str] | None) -> dict[str, str]:
    from huggingface_hub.utils import build_hf_headers

    from kernels import __version__

    details: str | None = None
    if not settings.telemetry_disabled():
        details = "; ".join([*_machine(), *_callers(user_agent)])
    headers: dict[str, str] = build_hf_headers(
        token=_token(endpoint), library_name="kernels", library_version=__version__, user_agent=details
    )
    return headers


def _machine() -> list[str]:
    from kernels import backends
    from kernels.target import Target

    target = Target.current()
    backend = backends.get(target.default_backend)
    try:
        accelerator = backend.format_accelerator(target.backend_version(backend.name))
    except ValueError:  # a version that no variant could carry
        accelerator = backend.name
    return [f"backend/{accelerator}", f"platform/{target.cpu}-{target.os}"]


def _callers(user_agent: str | Mapping[str, str] | None) -> list[str]:
    if user_agent is None:
        return []
    parts = [user_agent] if isinstance(user_agent, str) else [f"{key}/{value}" for key, value in user_agent.items()]
    # A header is one line of Latin-1.
    return ["".join(c if " " <= c <= "~" else "?" for c in part) for part in parts if part]
