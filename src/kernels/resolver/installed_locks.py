"""The locks of installed distributions: which one belongs to a file among installed packages."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache

from kernels.models import LOCK_FILE
from kernels.resolver.caller import SITE_FOLDERS

__all__ = ["locks_of_owners", "metadata_locks", "owners", "package_start", "site_folder"]

#: The largest RECORD that is read: one of 100,000 files has some 15 MB.
_MAX_RECORD_BYTES = 256 * 1024 * 1024

#: The largest top_level.txt that is read; it has a few names.
_MAX_NAMES_BYTES = 1024 * 1024

#: Where a lockfile is in a distribution's metadata: as setuptools writes it, and as other build backends do.
_IN_METADATA = (LOCK_FILE, f"extra_metadata/{LOCK_FILE}")


def site_folder(path: str) -> str | None:
    """The folder of installed packages that a file is in, or None."""
    parts = path.split(os.sep)
    for number in range(len(parts) - 2, 0, -1):
        if parts[number] in SITE_FOLDERS:
            return os.sep.join(parts[: number + 1])
    return None


@cache
def locks_of_owners(site: str, inside: str) -> tuple[str, ...]:
    """The lockfiles in the metadata of the distributions that a file belongs to."""
    # Few distributions have a lockfile; where the file belongs to none of these, no other one is read.
    if not any(metadata_locks(info) and _has(info, inside, _package(inside)) for info in _distributions(site)):
        return ()
    return tuple(lock for info in owners(site, inside) for lock in metadata_locks(info))


@cache
def owners(site: str, inside: str) -> tuple[str, ...]:
    """The metadata folders of the distributions that a file belongs to, with a lockfile or without."""
    found = [info for info in _distributions(site) if _has(info, inside, _package(inside))]
    # A list of files is more exact than the name of a package, which several distributions may share.
    return tuple([info for info in found if os.path.lexists(os.path.join(info, "RECORD"))] or found)


@cache
def metadata_locks(info: str) -> tuple[str, ...]:
    """The lockfiles in a metadata folder."""
    return tuple(filter(os.path.lexists, (os.path.join(info, *place.split("/")) for place in _IN_METADATA)))


def package_start(folder: str) -> str | None:
    """The name of a package's `__init__`, compiled or not; None for a namespace package, which nobody owns."""
    with suppress(OSError, ValueError):
        return next((name for name in sorted(os.listdir(folder)) if name.startswith("__init__.")), None)
    return None


@cache
def _distributions(site: str) -> tuple[str, ...]:
    from kernels.support.installed import metadata_folders  # where a package calls

    return tuple(os.path.join(site, name) for name in metadata_folders(site) if name.endswith(".dist-info"))


def _package(inside: str) -> str:
    return inside.partition(os.sep)[0]


def _has(info: str, file: str, package: str) -> bool:
    """Whether a file belongs to the distribution with that metadata."""
    from kernels.support.files import read_bounded

    path = file.replace(os.sep, "/").encode()
    with suppress(OSError):
        record = b"\n" + read_bounded(os.path.join(info, "RECORD"), _MAX_RECORD_BYTES)
        return b"\n" + path + b"," in record or b'\n"' + path + b'",' in record
    # Installed without a wheel: only the names of the packages are known.
    with suppress(OSError):
        names = read_bounded(os.path.join(info, "top_level.txt"), _MAX_NAMES_BYTES)
        return os.fsencode(package.removesuffix(".py")) in map(bytes.strip, names.splitlines())
    return False
