"""What the registry keeps of a backend: the object, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from kernels.backends.deferred import DeferredBackend
from kernels.backends.label import (
    Found,
    Label,
    Names,
    formatted_accelerator,
    named_devices,
    parsed_accelerator,
)
from kernels.errors import RequestError
from kernels.support.html_table import TableList

if TYPE_CHECKING:
    from kernels.backends.base import Backend
    from kernels.support.version import MajorMinor

__all__ = ["BackendEntry", "BackendList", "DeclarationError", "Origin", "OriginKind", "Problem"]

OriginKind = Literal["built-in", "installed", "declared", "vendor", "run-time"]

_SAID: dict[OriginKind, str] = {
    "built-in": "built in",
    "installed": "installed by {}",
    "declared": "declared in {}",
    "vendor": "from the vendor folder {}",
    "run-time": "registered by {}",
}


class Origin(msgspec.Struct, frozen=True):
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


class BackendEntry(msgspec.Struct, frozen=True, eq=False):
    """A registered backend.

    Attributes:
        deferred: The backend, as long as nobody has asked for it.
        origin: Where it comes from.
        given: The object that was registered; not `backend` where that completes a plain object, None where it is
            imported later.
        override: Whether it may replace another of its name.
        overrides: The entry that it replaces; it comes back when this one is unregistered.
        discovered: Whether it was found in the environment (a package, a file, a folder), and not added by a call.
        unknown_fields: Fields of its declaration that were ignored, each with the known field that is nearest, or "".
    """

    deferred: DeferredBackend
    origin: Origin
    given: object = None
    override: bool = False
    overrides: BackendEntry | None = None
    discovered: bool = False
    unknown_fields: tuple[tuple[str, str], ...] = ()

    @property
    def backend(self) -> Backend:
        """The backend; a built-in one is imported when it is first asked for."""
        return self.deferred.get()

    @property
    def label(self) -> Label:
        """What is known of the backend without importing it, as it was when it was registered."""
        return self.deferred.label

    @property
    def names(self) -> Names:
        """The backend's names, as they were when it was registered."""
        return self.deferred.label.names

    @property
    def name(self) -> str:
        """The backend's own name."""
        return self.deferred.label.names.name

    # What a backend that is not imported is asked: its file has the usual rules for names.

    def parse_accelerator(self, text: str) -> Found | None:
        """As `Backend.parse_accelerator`, without importing the backend.

        Args:
            text: The accelerator part of a variant's name.
        """
        loaded = self.deferred.loaded
        return parsed_accelerator(self.names, text) if loaded is None else loaded.parse_accelerator(text)

    def format_accelerator(self, version: MajorMinor | None) -> str:
        """As `Backend.format_accelerator`, without importing the backend.

        Args:
            version: The version, or None where the backend has no versions.
        """
        loaded = self.deferred.loaded
        return formatted_accelerator(self.names, version) if loaded is None else loaded.format_accelerator(version)

    def device_names(self) -> tuple[str, ...]:
        """As `Backend.device_names`, without importing the backend."""
        loaded = self.deferred.loaded
        return named_devices(self.names) if loaded is None else loaded.device_names()

    def layers(self) -> Iterator[BackendEntry]:
        """This entry, the one that it overrides, and so on."""
        entry: BackendEntry | None = self
        while entry is not None:
            yield entry
            entry = entry.overrides

    @property
    def adds_to(self) -> list[BackendEntry]:
        """The entries that a file or a vendor's folder adds to, the first one first: they still count in part."""
        beneath: list[BackendEntry] = []
        for each in self.layers():
            if each.overrides is None or each.origin.kind not in ("declared", "vendor"):
                break
            beneath.insert(0, each.overrides)
        return beneath

    @property
    def origins(self) -> list[Origin]:
        """The origins of what it adds to, and its own."""
        return [each.origin for each in (*self.adds_to, self)]

    @property
    def root(self) -> BackendEntry:
        """The first entry that was registered under this name."""
        return [*self.layers()][-1]


class BackendList(TableList[BackendEntry]):
    """Registered backends: a list that a notebook shows as a table."""

    headings: ClassVar[tuple[str, ...]] = ("backend", "variant", "device", "origin")

    @staticmethod
    def cells(item: BackendEntry) -> tuple[str, ...]:
        return (item.name, item.names.token, item.names.device_type, str(item.origin))


class Problem(msgspec.Struct, frozen=True):
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
