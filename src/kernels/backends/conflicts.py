"""Whether a backend can join the others: no name, and no accelerator in a build's name, may mean two of them."""

from __future__ import annotations

from collections.abc import Iterable

from kernels.backends.registration import BackendEntry
from kernels.support.version import MajorMinor

__all__ = ["SAMPLE_VERSIONS", "check_clashes"]

#: Members that mean one backend in metadata, build names and mappings. A Torch device type may be shared: a ROCm Torch
#: calls its device `cuda`.
_OWN = ("name", "noarch_name", "token", "mapping_device")

#: Versions that are tried in build names: two digits, three, five.
SAMPLE_VERSIONS = (MajorMinor(1, 0), MajorMinor(12, 8), MajorMinor(2025, 3))


def check_clashes(entry: BackendEntry, others: Iterable[BackendEntry]) -> None:
    """Raise unless a backend can be registered beside others.

    Args:
        entry: The new one.
        others: The registered ones, without one that it overrides.

    Raises:
        ValueError: A name is taken, or one of the two reads the other's accelerators as its own; the message names
            both origins.
    """
    new = entry.names
    for other in others:
        old = other.names
        taken = {getattr(old, member): member for member in reversed(_OWN)}
        for member in _OWN:
            value = getattr(new, member)
            if value in taken:
                raise ValueError(
                    f"`{member}` of backend {new.name!r} ({entry.origin}) is {value!r}, which backend {old.name!r} "
                    f"({other.origin}) already has as its `{taken[value]}`. Choose another, or, to replace "
                    f"{old.name!r}, use its `name` and register with override=True."
                )
        for reader, owner in ((entry, other), (other, entry)):
            taken_text = _misread(reader, owner)
            if taken_text is not None:
                raise ValueError(
                    f"`token` of backend {reader.name!r} ({reader.origin}) is {reader.names.token!r}, so it also "
                    f"reads {taken_text!r} of backend {owner.name!r} ({owner.origin}): build names would mean both."
                )


def _misread(reader: BackendEntry, owner: BackendEntry) -> str | None:
    """A name or accelerator of `owner` that `reader` takes for its own, if there is one."""
    names = [str(getattr(owner.names, member)) for member in _OWN]
    # A person would take a name that begins with the token for a version of it. The built-in ones are known.
    if reader.names.versioned and reader.root.origin.kind != "built-in":
        begun = [name for name in names if name.startswith(reader.names.token)]
        if begun:
            return begun[0]
    for accelerator in (*names, *_accelerators(owner)):
        try:
            if reader.parse_accelerator(accelerator) is not None:
                return accelerator
        except Exception:  # noqa: BLE001 - a plugin whose parser fails reads nothing
            continue
    return None


def _accelerators(owner: BackendEntry) -> list[str]:
    found = []
    for version in SAMPLE_VERSIONS if owner.names.versioned else (None,):
        try:
            found.append(owner.format_accelerator(version))
        except Exception:  # noqa: BLE001 - a version that it has no name for, or a plugin that fails
            continue
    return found
