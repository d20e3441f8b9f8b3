"""A mirror on any web server: nothing is asked of it but its files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from kernels.errors import HubUnavailable, KernelsError
from kernels.mirror.stores.base import EntryNotFound, StoredDocument
from kernels.models.mirror_form import REPAIR_ADVICE
from kernels.sources.http import SLOWEST, Http, OtherKind, Patience, unpacked
from kernels.sources.hub_errors import HubRefused, Moved, no_answer
from kernels.sources.response import (
    WrongAnswer,
    begins_at,
    check_json_body,
    chunks,
    condition,
    read_body,
    validator_of,
)
from kernels.sources.wire import packed

__all__ = ["HttpStore"]

#: Answers for a path that a web server does not have.
_MISSING = frozenset({404, 410})


class HttpStore:
    """The files of a mirror over http or https, as a `ReadStore`.

    Documents come from this host only. An archive may come from another host that the server redirects to: its hash is
    known, and that host gets no token.

    Args:
        client: Sends the requests.
        patience: The limits of retries; the default is that of an answer that nothing else has.

    Attributes:
        url: The root's URL.
    """

    def __init__(self, client: Http, patience: Patience | None = None) -> None:
        self.url = client.endpoint
        self._client = client
        self._patience = patience or Patience()

    @property
    def parallel(self) -> bool:
        """Whether an answer said that the server knows ranges."""
        return self._client.knows_ranges

    def read(self, path: str, limit: int, *, etag: str = "") -> StoredDocument | None:
        """A small document; see `ReadStore.read`."""

        def receive(response: Any, seconds: float) -> StoredDocument | None:
            if response.status_code == 304:
                return None
            content = read_body(response, limit, seconds)
            check_json_body(content)
            return StoredDocument(content, validator_of(response))

        def headers() -> dict[str, str]:
            return packed() | condition(etag)

        try:
            with self._client.get(f"{self.url}/{path}", self._patience, receive, headers=headers) as (found, _):
                return found
        except (HubRefused, Moved) as error:
            raise self._missing(path, error) from error

    @contextmanager
    def stream(self, path: str, size: int, start: int = 0, stop: int | None = None) -> Iterator[Iterator[bytes]]:
        """The bytes of an entry; see `ReadStore.stream`. Retries end when the first bytes arrive."""
        url = f"{self.url}/{path}"
        end = size if stop is None else min(stop, size)

        def headers() -> dict[str, str]:
            whole = start == 0 and end == size
            return unpacked() | ({} if whole else {"Range": f"bytes={start}-{end - 1}"})

        def begin(response: Any, seconds: float) -> int:
            """The bytes to skip."""
            ranged = response.status_code == 206
            if ranged and not begins_at(response, start):
                raise WrongAnswer("with another part of the file than the requested one")
            said = _said_size(response, ranged)
            if said is not None and said != size:
                raise WrongAnswer(f"with a file of {said} bytes, not the {size} listed ({REPAIR_ADVICE})", tries=2)
            return 0 if ranged else start

        with ExitStack() as opened:
            try:
                skip, response = opened.enter_context(
                    self._client.get(url, self._patience, begin, any_host=True, headers=headers)
                )
            except (HubRefused, Moved) as error:
                if isinstance(error, HubRefused) and error.status == 416:  # "Range Not Satisfiable"
                    message = f"{self.url} has fewer bytes of {path} than the {size} listed: {REPAIR_ADVICE}."
                    raise HubUnavailable(message) from error
                raise self._missing(path, error) from error
            yield self._pieces(url, response, skip, end - start)

    def _pieces(self, url: str, response: Any, skip: int, left: int) -> Iterator[bytes]:
        """The wanted part of a body."""
        wanted = left
        with self._client.reading(url):
            for chunk in chunks(response, skip + left, self._patience.budget + (skip + left) / SLOWEST):
                piece = chunk[skip:][:left]
                skip = max(0, skip - len(chunk))
                left -= len(piece)
                if piece:
                    yield piece
            if left:
                raise WrongAnswer(f"{wanted - left} of {wanted} bytes")

    def _missing(self, path: str, error: HubRefused | Moved) -> KernelsError:
        if isinstance(error, Moved):
            return HubUnavailable(f"{self.url} redirects {path} to another repository, {error.destination}.")
        if error.code:  # a Hub's
            return OtherKind(f"{self.url} is a Hub, and was asked as a mirror.")
        if error.status in _MISSING:
            return EntryNotFound(f"{self.url} has no {path}.")
        return no_answer(self.url, path, error)


def _said_size(response: Any, ranged: bool) -> int | None:
    """The size of the whole file, if the answer says it."""
    if ranged:
        text = str(response.headers.get("Content-Range", "")).rpartition("/")[2]
    else:
        text = "" if response.headers.get("Content-Encoding") else str(response.headers.get("Content-Length", ""))
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 20 else None
