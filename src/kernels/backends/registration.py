"""What the registry keeps of a backend: the object, and how it came here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from kernels.backends.base import Backend

__all__ = ["Entry", "Origin", "Problem"]

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
    """How a backend came here.

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
class Entry:
    """A registered backend.

    Attributes:
        backend: The object that is asked.
        origin: How it came here.
        given: The object that was registered; not `backend` where that completes a plain object.
        overrides: The entry that it stands in for; it comes back when this one is unregistered.
        override: Whether it was registered to stand in for another.
        name: The backend's own name, as it was when it came.
    """

    backend: Backend
    origin: Origin
    given: object = None
    overrides: Entry | None = None
    override: bool = False
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.backend.name)

    def layers(self) -> Iterator[Entry]:
        """This entry, what it stands in for, and so on."""
        entry: Entry | None = self
        while entry is not None:
            yield entry
            entry = entry.overrides

    @property
    def root(self) -> Entry:
        """The first that was registered under this name, whatever stands in for it."""
        return [*self.layers()][-1]


@dataclass(frozen=True)
class Problem:
    """A backend that should be here and is not.

    Attributes:
        origin: Where it was looked for.
        message: What is wrong, in a sentence that names the place.
        names: Names of the backends that are missing because of it, as far as they are known.
    """

    origin: Origin
    message: str
    names: tuple[str, ...] = ()
