"""Errors of this package that are also huggingface_hub's, so that code that catches those finds them.

Importing this module imports huggingface_hub: `hub_errors` does so when it has an error to make.
"""

from __future__ import annotations

from typing import Any, ClassVar

from huggingface_hub import errors as theirs

from kernels import errors as ours

__all__ = ["BOTH", "without_secrets"]

#: Headers of an answer that are not kept: they describe the body as it was sent, or hold secrets.
_NOT_KEPT = frozenset({"content-encoding", "content-length", "connection", "set-cookie", "transfer-encoding"})


class _Both:
    """An error with the name of that in `kernels.errors`, which a traceback then shows and a program can import."""

    args: tuple[Any, ...]
    _own_name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls._own_name = cls.__name__
        shown = next((base for base in cls.__bases__ if issubclass(base, ours.KernelsError)), cls)
        cls.__doc__, cls.__module__ = shown.__doc__, shown.__module__
        cls.__name__ = cls.__qualname__ = shown.__name__

    def __reduce_ex__(self, protocol: object) -> Any:
        return _restored, (self._own_name, self.args), {**self.__dict__}


def _restored(name: str, args: tuple[Any, ...]) -> Any:
    return globals()[name](*args)


class _Answered(_Both):
    """What huggingface_hub's HTTP errors have.

    Attributes:
        response: The answer, without its body and the headers that were sent; None where the error has another reason.
        request: The request, without its headers; None without an answer.
    """

    request_id: str | None = None
    server_message: str | None = None

    def __init__(self, message: str, *, response: Any = None) -> None:
        super().__init__(message)  # type: ignore[call-arg]
        self.response = response
        self.request = None if response is None else response.request

    @property
    def request(self) -> Any:
        """The request; unlike httpx's own attribute, None where there is none."""
        return self.__dict__["_request"]

    @request.setter
    def request(self, request: Any) -> None:
        self.__dict__["_request"] = request


class _Repository(_Answered, ours.RepositoryNotFound, theirs.RepositoryNotFoundError): ...


class _Gated(_Answered, ours.RepositoryNotFound, theirs.GatedRepoError): ...


class _Revision(_Answered, ours.RevisionNotFound, theirs.RevisionNotFoundError): ...


class _Unavailable(_Answered, ours.HubUnavailable, theirs.HfHubHTTPError): ...


class _FileUnavailable(_Answered, ours.HubUnavailable, theirs.RemoteEntryNotFoundError): ...


class _Metadata(_Answered, ours.MissingMetadata, theirs.RemoteEntryNotFoundError): ...


class _NoBuild(_Answered, ours.NoSuitableBuild, theirs.RemoteEntryNotFoundError): ...


class _NotInCache(_Both, ours.NotInCache, theirs.LocalEntryNotFoundError): ...


#: By the class of this package and the name of huggingface_hub's.
BOTH: dict[tuple[type[ours.KernelsError], str], type[Any]] = {
    (ours.RepositoryNotFound, "RepositoryNotFoundError"): _Repository,
    (ours.RepositoryNotFound, "GatedRepoError"): _Gated,
    (ours.RevisionNotFound, "RevisionNotFoundError"): _Revision,
    (ours.HubUnavailable, "HfHubHTTPError"): _Unavailable,
    (ours.HubUnavailable, "RemoteEntryNotFoundError"): _FileUnavailable,
    (ours.MissingMetadata, "RemoteEntryNotFoundError"): _Metadata,
    (ours.NoSuitableBuild, "RemoteEntryNotFoundError"): _NoBuild,
    (ours.NotInCache, "LocalEntryNotFoundError"): _NotInCache,
}


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
