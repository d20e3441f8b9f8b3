"""A file that belongs to several installed distributions, each with a lockfile: they must say the same."""

from __future__ import annotations

import os
from pathlib import Path

from kernels.errors import LockError
from kernels.models.lockfile import hashes_path
from kernels.resolver.lock_pins import file_state
from kernels.resolver.lock_places import lock_exists
from kernels.support.files import read_bounded

__all__ = ["check_agreement"]

#: The largest lockfile, or file of hashes beside it, that is compared with another one.
_COMPARED_BYTES = 64 * 1024 * 1024

#: Lockfiles that were found to be equal, with the state of their files then.
_agreed: dict[tuple[str, ...], object] = {}


def check_agreement(file: str, places: tuple[str, ...]) -> None:
    """Raise an error where distributions that a file belongs to have different lockfiles.

    Args:
        file: The file.
        places: Where their lockfiles are.

    Raises:
        LockError: Two differ, or one cannot be examined.
    """
    places = tuple(filter(lock_exists, places))
    state = [(file_state(place), file_state(hashes_path(Path(place)))) for place in places]
    if _agreed.get(places) == state:
        return
    if len({_content_of(place) for place in places}) > 1:
        owners = " and ".join(dict.fromkeys(_owner(place) for place in places))
        raise LockError(
            f"{file} belongs to {owners}, with different lockfiles: {', '.join(places)}. Uninstall the distribution "
            "that is not needed, or name the lockfile to use with KERNELS_LOCKFILE."
        )
    _agreed[places] = state


def _content_of(place: str) -> tuple[bytes | None, bytes | None]:
    """The content of a lockfile and of the hashes beside it; one that cannot be read is equal to no other."""
    hashes = hashes_path(Path(place))
    try:
        lock = read_bounded(place, _COMPARED_BYTES)
        return lock, read_bounded(hashes, _COMPARED_BYTES) if os.path.lexists(hashes) else None
    except OSError:
        return os.fsencode(place), None


def _owner(place: str) -> str:
    """The name and version of the distribution in whose metadata a lockfile is."""
    folder = os.path.dirname(place)
    folder = os.path.dirname(folder) if os.path.basename(folder) == "extra_metadata" else folder
    return os.path.basename(folder).rpartition(".")[0]
