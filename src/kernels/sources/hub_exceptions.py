"""Errors of this package that are also huggingface_hub's, so that code that catches those finds them.

Importing this module imports huggingface_hub: `hub_errors` does so when it has an error to make.
"""

from __future__ import annotations

from typing import Any, ClassVar

from huggingface_hub import errors as theirs

from kernels import errors as ours

__all__ = ["both", "without_secrets"]

#: Headers of an answer that are not kept: they describe the body as it was sent, or hold secrets.
_NOT_KEPT = frozenset({"content-encoding", "content-length", "connection", "set-cookie", "transfer-encoding"})


#: The classes that are both, by that of this package and the code of the Hub's refusal (`X-Error-Code`), if it matters.
_classes: dict[tuple[type[ours.KernelsError], str], type[Any]] = {}


class _Both:
    """An error with the name of that in `kernels.errors`, which a traceback then shows and a program can import.

    Attributes:
        response: The answer, without its body and the headers that were sent; None where the error has another reason.
        request: The request, without its headers; None without an answer.
    """

    args: tuple[Any, ...]
    request_id: str | None = None
    server_message: str | None = None
    _key: ClassVar[tuple[type[ours.KernelsError], str]]

    def __init_subclass__(cls, code: str = "") -> None:
        shown: Any = cls.__bases__[1]
        cls._key = shown, code
        _classes[cls._key] = cls
        cls.__doc__, cls.__module__ = shown.__doc__, shown.__module__
        cls.__name__ = cls.__qualname__ = shown.__name__

    def __init__(self, message: str, *, response: Any = None) -> None:
        super().__init__(message)  # type: ignore[call-arg]
        self.response = response
        self.request = None if response is None else response.request

    def __reduce_ex__(self, protocol: object) -> Any:
        return _restored, (*self._key, self.args), {**self.__dict__}

    @property
    def request(self) -> Any:
        """The request; unlike httpx's own attribute, None where there is none."""
        return self.__dict__["_request"]

    @request.setter
    def request(self, request: Any) -> None:
        self.__dict__["_request"] = request


def _restored(error: type[ours.KernelsError], code: str, args: tuple[Any, ...]) -> Any:
    return _classes[error, code](*args)


class _Repository(_Both, ours.RepositoryNotFound, theirs.RepositoryNotFoundError): ...


class _Gated(_Both, ours.RepositoryNotFound, theirs.GatedRepoError, code="GatedRepo"): ...


class _Revision(_Both, ours.RevisionNotFound, theirs.RevisionNotFoundError): ...


class _Unavailable(_Both, ours.HubUnavailable, theirs.HfHubHTTPError): ...


class _FileUnavailable(_Both, ours.HubUnavailable, theirs.RemoteEntryNotFoundError, code="EntryNotFound"): ...


class _Metadata(_Both, ours.MissingMetadata, theirs.RemoteEntryNotFoundError): ...


class _NoBuild(_Both, ours.NoSuitableBuild, theirs.RemoteEntryNotFoundError): ...


class _NotInCache(_Both, ours.NotInCache, theirs.LocalEntryNotFoundError): ...


def both(error: type[ours.KernelsError], code: str) -> type[Any] | None:
    """The class that is both; None where huggingface_hub has no such error.

    Args:
        error: The class of this package.
        code: The code of the Hub's refusal.
    """
    return _classes.get((error, code)) or _classes.get((error, ""))


def without_secrets(response: Any) -> Any:
    """A copy of an answer without its body and what was sent: the token, and the query of its URL, perhaps signed.

    Args:
        response: The answer, or None.
    """
    if response is None:
        return None
    request = type(response.request)(response.request.method, str(response.request.url).partition("?")[0])
    # As bytes: a header with other characters than ASCII cannot be given as text.
    headers = [pair for pair in response.headers.raw if pair[0].decode("latin-1").lower() not in _NOT_KEPT]
    return type(response)(response.status_code, headers=headers, content=b"", request=request)
