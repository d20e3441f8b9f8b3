"""What the registry keeps of a backend: the object, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from kernels.backends.base import Backend
from kernels.errors import RequestError
from kernels.support.html_table import TableList

__all__ = ["BackendEntry", "BackendList", "DeclarationError", "Origin", "OriginKind", "Problem"]

OriginKind = Literal["built-in", "installed", "declared", "vendor", "run-time"]

_SAID: dict[OriginKind, str] = {
    "built-in": "built in",
    "installed": "installed by {}",
    "declared": "declared in {}",
    "vendor": "from the vendor folder {}",
    "run-time": "registered by {}",
}


@dataclass(frozen=True)
class Origin:
    """Where a backend comes from.

    Attributes:
        kind: `built-in`, `installed` (an entry point), `declared` (a JSON file), `vendor` (a vendor's folder) or
            `run-time` (a call of `register_backend`).
        place: The distribution and entry point, the file, the folder, or the caller's file and line; "" for a built-in.

    Example:
        >>> str(Origin("declared", "/etc/acme.json"))
        'declared in /etc/acme.json'
    """

    kind: OriginKind
    place: str = ""

    def __str__(self) -> str:
        return _SAID[self.kind].format(self.place)


@dataclass(frozen=True, eq=False)
class BackendEntry:
    """A registered backend.

    Attributes:
        backend: The backend.
        origin: Where it comes from.
        given: The object that was registered; not `backend` where that completes a plain object.
        override: Whether it may replace another of its name.
        overrides: The entry that it replaces; it comes back when this one is unregistered.
        discovered: Whether it was found in the environment (a package, a file, a folder), and not added by a call.
        name: The backend's own name, as it was when it was registered.
    """

    backend: Backend
    origin: Origin
    given: object = None
    override: bool = False
    overrides: BackendEntry | None = None
    discovered: bool = False
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.backend.name)

    def layers(self) -> Iterator[BackendEntry]:
        """This entry, the one that it overrides, and so on."""
        entry: BackendEntry | None = self
        while entry is not None:
            yield entry
            entry = entry.overrides

    @property
    def root(self) -> BackendEntry:
        """The first entry that was registered under this name."""
        return [*self.layers()][-1]


class BackendList(TableList[BackendEntry]):
    """Registered backends: a list that a notebook shows as a table."""

    headings: ClassVar[tuple[str, ...]] = ("backend", "variant", "device", "origin")

    @staticmethod
    def cells(item: BackendEntry) -> tuple[str, ...]:
        return (item.name, item.backend.token, item.backend.device_type, str(item.origin))


@dataclass(frozen=True)
class Problem:
    """A backend that could not be registered.

    Attributes:
        origin: Where it comes from.
        message: What is wrong, in a sentence that names the place.
        names: Names of the backends that are missing because of it, as far as they are known.
    """

    origin: Origin
    message: str
    names: tuple[str, ...] = ()


class DeclarationError(RequestError):
    """A file that declares backends cannot be used.

    Attributes:
        names: The backends that the file declares, as far as they are known.
    """

    def __init__(self, message: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.names = names
