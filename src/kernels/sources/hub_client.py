"""Requests to a Hub: answers in JSON, and the content of files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from kernels.errors import HubUnavailable, InvalidRepository
from kernels.models.mirror_form import MAX_DOCUMENT_BYTES, is_mirror_document
from kernels.sources.conditions import validator_of
from kernels.sources.early_requests import EarlyRequest
from kernels.sources.http_client import (
    SLOWEST,
    HttpClient,
    Patience,
    begins_at,
    download_timeout,
    unpacked,
)
from kernels.sources.hub_responses import TREE_PAGE, ResponseFormat, TreeEntry
from kernels.sources.request_headers import packed
from kernels.sources.response_body import WrongAnswer, check_json_body, chunks, read_body
from kernels.sources.safe_urls import following_page
from kernels.support.documents import TooComplex
from kernels.support.formatting import format_value

if TYPE_CHECKING:
    from kernels.cache.partial_file import PartialFile
    from kernels.mirror.stores.base import StoredDocument
    from kernels.models.snapshot import RepoFile

__all__ = ["HubClient", "MirrorAnswer"]

_T = TypeVar("_T")


class MirrorAnswer(Exception):
    """The answer to a Hub's request is a document of a mirror.

    Attributes:
        document: The document.
    """

    def __init__(self, document: StoredDocument) -> None:
        super().__init__("a mirror's document")
        self.document = document


class HubClient(HttpClient):
    """Sends requests to one Hub.

    Args:
        endpoint: The Hub's URL.
        describe: Gives what is added to the `User-Agent` header; called before the first request.
        offline: Send no request.
        may_be_mirror: Whether an answer to `json` or `pages` may be a document of a mirror: it raises `MirrorAnswer`.
    """

    def __init__(
        self,
        endpoint: str,
        describe: Callable[[], Iterable[str]],
        *,
        offline: bool = False,
        may_be_mirror: bool = False,
    ) -> None:
        super().__init__(endpoint, describe, offline=offline)
        self._may_be_mirror = may_be_mirror

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
        read = _decoding(expected, self._may_be_mirror)
        return self.ask(f"{self.endpoint}{path}", patience, read, headers=packed)[0]

    def pages(self, path: str, patience: Patience) -> Iterator[list[TreeEntry]]:
        """The pages of a listing of files, following `Link` headers on the same Hub."""
        return self.listing(path, patience, TREE_PAGE)

    def listing(self, path: str, patience: Patience, expected: ResponseFormat[list[_T]]) -> Iterator[list[_T]]:
        """The pages of a listing, following `Link` headers on the same Hub.

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
            page, response = self.ask(url, patience, _decoding(expected, self._may_be_mirror), headers=packed)
            following = following_page(self.endpoint, url, response)
            if following and not page:
                raise HubUnavailable(f"The answer to {url} is an empty page of a listing that continues.")
            yield page
            url = following

    def early_request(
        self, path: str, headers: Callable[[], Mapping[str, str]], timeout: Callable[[], float]
    ) -> EarlyRequest:
        """A request as this client sends it, to be sent ahead.

        Args:
            path: The path and query.
            headers: Gives its headers beside those of every request.
            timeout: Gives the seconds of each wait.
        """
        return EarlyRequest(f"{self.endpoint}{path}", {**self.headers, **headers()}, timeout(), lambda: True)

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
        return self.ask(url, patience, check, timeout=download_timeout(), any_host=True, headers=unpacked)[0]

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
            return unpacked() | ({"Range": f"bytes={part.offset}-"} if part.offset else {})

        def append(response: Any, seconds: float) -> None:
            if response.status_code != 206:
                part.restart()
            elif not begins_at(response, part.offset):
                part.restart()
                raise WrongAnswer("with another part of the file than the requested one")
            left = file.size - part.offset
            for chunk in chunks(response, left, seconds + left / SLOWEST):
                if not part.append(chunk):
                    part.restart()
                    raise WrongAnswer(f"more than the {file.size} bytes listed")
            if not part.complete:
                raise WrongAnswer(f"{part.offset} of the {file.size} bytes listed")

        url = f"{self.endpoint}{path}"
        self.ask(
            url,
            patience,
            append,
            timeout=download_timeout(),
            any_host=True,
            headers=rest,
            check=lambda response: _check_identity(self.endpoint, response, file, commit),
        )


def _decoding(expected: ResponseFormat[_T], may_be_mirror: bool) -> Callable[[Any, float], _T]:
    """Reads an answer that is JSON of a known format."""

    def decode(response: Any, seconds: float) -> _T:
        import msgspec

        data = read_body(response, MAX_DOCUMENT_BYTES if may_be_mirror else expected.limit, seconds)
        check_json_body(data)
        if may_be_mirror and is_mirror_document(data):
            from kernels.mirror.stores.base import StoredDocument

            raise MirrorAnswer(StoredDocument(data, validator_of(response)))
        if len(data) > expected.limit:
            raise WrongAnswer(f"more than {expected.limit} bytes")
        try:
            return expected.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, TooComplex) as error:
            raise WrongAnswer(f"with JSON that is not of the expected form ({format_value(str(error), 300)})") from None

    return decode


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
