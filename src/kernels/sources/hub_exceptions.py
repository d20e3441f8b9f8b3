"""Errors of this package that are also huggingface_hub's, so that code that catches those finds them.

Importing this module imports huggingface_hub: `hub_errors` does so when it has an error to make. The classes carry the
names of those in `kernels.errors`, which a traceback then shows and a program can import. They survive pickling.
"""

from __future__ import annotations

from typing import Any

from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from kernels import errors
from kernels.errors import KernelsError
from kernels.sources.response_body import read_body
from kernels.support.concurrency import Cancelled
from kernels.support.text import one_line

__all__ = ["combined", "kept_answer", "without_secrets"]

#: The most bytes of a refusal's body that are kept, and seconds to read them: the Hub's have some 100 bytes.
_MAX_BODY, _BODY_SECONDS = 16 * 1024, 2.0

#: Headers of a refusal that are not kept: they describe the body as it was sent, or hold secrets.
_NOT_KEPT = frozenset({"content-encoding", "content-length", "connection", "set-cookie", "transfer-encoding"})

#: The headers that identify a request, in huggingface_hub's order.
_REQUEST_IDS = ("x-request-id", "x-amzn-trace-id", "x-amz-cf-id")

_CLASSES: dict[tuple[type[KernelsError], str], type[KernelsError]] = {}


class _Answered:
    """What huggingface_hub's HTTP errors have: the answer, its request, its identifier and its message.

    Attributes:
        response: The answer, without the headers that were sent; None where the error has another reason.
        request: The request, without its headers; None without an answer.
        request_id: The Hub's identifier of the request.
        server_message: The Hub's message.
    """

    args: tuple[Any, ...]

    def __init__(self, message: str, *, response: Any = None, server_message: str | None = None) -> None:
        super().__init__(message)  # type: ignore[call-arg]
        self.response = response
        self.request = None if response is None else response.request
        headers = {} if response is None else response.headers
        found = next((headers[name] for name in _REQUEST_IDS if headers.get(name)), None)
        self.request_id = None if found is None else one_line(found)
        self.server_message = None if server_message is None else one_line(server_message)

    @property
    def request(self) -> Any:
        """The request; unlike httpx's own attribute, None where there is none."""
        return self.__dict__["_request"]

    @request.setter
    def request(self, request: Any) -> None:
        self.__dict__["_request"] = request

    def append_to_message(self, additional_message: str) -> None:
        """Add to the message, as huggingface_hub does."""
        self.args = (f"{self.args[0]}{additional_message}", *self.args[1:])


class _Local:
    """A combined error without an answer."""


def _combine(ours: type[KernelsError], theirs: type[Exception]) -> None:
    base = _Answered if issubclass(theirs, HfHubHTTPError) else _Local
    key = ours, theirs.__name__

    def __reduce_ex__(self: KernelsError, protocol: object) -> Any:
        return _restored, (*key, self.args), {**self.__dict__}

    names = {
        "__doc__": ours.__doc__,
        "__module__": ours.__module__,
        "__qualname__": ours.__qualname__,
        "__reduce_ex__": __reduce_ex__,
    }
    _CLASSES[key] = type(ours.__name__, (base, ours, theirs), names)


def _restored(ours: type[KernelsError], theirs: str, args: tuple[Any, ...]) -> KernelsError:
    return _CLASSES[ours, theirs](*args)


for _ours, _theirs in (
    (errors.RepositoryNotFound, RepositoryNotFoundError),
    (errors.RepositoryNotFound, GatedRepoError),
    (errors.RevisionNotFound, RevisionNotFoundError),
    (errors.HubUnavailable, HfHubHTTPError),
    (errors.HubUnavailable, RemoteEntryNotFoundError),
    (errors.MissingMetadata, RemoteEntryNotFoundError),
    (errors.NoSuitableBuild, RemoteEntryNotFoundError),
    (errors.NotInCache, LocalEntryNotFoundError),
):
    _combine(_ours, _theirs)


def combined(ours: type[KernelsError], theirs: str) -> type[KernelsError] | None:
    """The class that is both; None where there is none.

    Args:
        ours: The error of this package.
        theirs: The name of huggingface_hub's.

    Example:
        >>> [each.__name__ for each in combined(errors.RepositoryNotFound, "GatedRepoError").__bases__[1:]]
        ['RepositoryNotFound', 'GatedRepoError']
    """
    return _CLASSES.get((ours, theirs))


def kept_answer(response: Any) -> Any:
    """A refusal as its error carries it, with its body if that is short.

    Args:
        response: The answer, of httpx or httpx2, with an unread body.
    """
    body = b""
    try:
        if int(response.headers.get("Content-Length", _MAX_BODY + 1)) <= _MAX_BODY:
            body = read_body(response, _MAX_BODY, _BODY_SECONDS)
    except Cancelled:
        raise
    except Exception:  # noqa: BLE001 - the refusal is clear without it
        body = b""
    return without_secrets(response, body)


def without_secrets(response: Any, body: bytes = b"") -> Any:
    """A copy of an answer without what was sent: the token, and the query of its URL, which may be signed.

    Args:
        response: The answer, or None.
        body: The copy's body.
    """
    if response is None:
        return None
    request = type(response.request)(response.request.method, str(response.request.url).partition("?")[0])
    # As bytes: a header with other characters than ASCII cannot be given as text.
    headers = [pair for pair in response.headers.raw if pair[0].decode("latin-1").lower() not in _NOT_KEPT]
    return type(response)(response.status_code, headers=headers, content=body, request=request)
