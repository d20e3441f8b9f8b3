"""Whether a backend can stand beside others: no name, and no accelerator in a build's name, may mean two of them."""

from __future__ import annotations

from collections.abc import Iterable

from kernels.backends.base import Backend
from kernels.backends.registration import Entry
from kernels.support.version import MajorMinor

__all__ = ["check_clashes"]

#: Members whose values mean one backend: they stand in metadata, in build folders' names and in mappings. A Torch
#: device type may be shared (a ROCm Torch calls its device `cuda`).
_OWN = ("name", "noarch_name", "token", "mapping_device")

#: Versions that are tried in build folders' names: two digits, three, five.
_VERSIONS = (MajorMinor(1, 0), MajorMinor(12, 8), MajorMinor(2025, 3))


def check_clashes(entry: Entry, others: Iterable[Entry]) -> None:
    """Raise unless a backend can stand beside others.

    Args:
        entry: The new one.
        others: Those that are registered, without one that it overrides.

    Raises:
        ValueError: A name is taken, or one of the two reads the other's accelerators as its own; the message names
            where both come from.
    """
    new = entry.backend
    for other in others:
        old = other.backend
        taken = {getattr(old, member): member for member in reversed(_OWN)}
        for member in _OWN:
            value = getattr(new, member)
            if value in taken:
                raise ValueError(
                    f"`{member}` of backend {new.name!r} ({entry.origin}) is {value!r}, which backend {old.name!r} "
                    f"({other.origin}) already has as its `{taken[value]}`. Choose another, or, to stand in for "
                    f"{old.name!r}, take its `name` and register with override=True."
                )
        for reader, owner in ((entry, other), (other, entry)):
            swallowed = _begun(reader, owner.backend) or _swallowed(reader.backend, owner.backend)
            if swallowed is not None:
                raise ValueError(
                    f"`token` of backend {reader.name!r} ({reader.origin}) is {reader.backend.token!r}, which swallows "
                    f"{swallowed!r} of backend {owner.name!r} ({owner.origin}): build names would mean both."
                )


def _begun(reader: Entry, owner: Backend) -> str | None:
    """A name of `owner` that begins with a stranger's token, where a version follows that: people would read one."""
    if reader.root.origin.kind == "built-in" or not reader.backend.versioned:
        return None
    names = [str(getattr(owner, member)) for member in _OWN]
    return next((name for name in names if name.startswith(reader.backend.token)), None)


def _swallowed(reader: Backend, owner: Backend) -> str | None:
    """A name of `owner` that `reader` takes for its own, if there is one."""
    names = [str(getattr(owner, member)) for member in _OWN]
    for accelerator in (*names, *_accelerators(owner)):
        try:
            if reader.parse_accelerator(accelerator) is not None:
                return accelerator
        except (Exception, SystemExit):  # noqa: BLE001 - a stranger's code; a parser that fails takes nothing
            continue
    return None


def _accelerators(backend: Backend) -> list[str]:
    found = []
    for version in _VERSIONS if backend.versioned else (None,):
        try:
            found.append(str(backend.format_accelerator(version)))
        except (Exception, SystemExit):  # noqa: BLE001 - a version that this backend has no name for
            continue
    return found
