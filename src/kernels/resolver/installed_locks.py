"""The locks of installed distributions: which one belongs to a file among installed packages."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from functools import cache
from io import BufferedReader
from pathlib import Path

from kernels.errors import LockError
from kernels.models.lockfile import LOCK_FILE, hashes_path
from kernels.resolver.caller import SITE_FOLDERS
from kernels.resolver.lock_pins import file_state
from kernels.support.files import open_regular, read_bounded

__all__ = ["check_agreement", "lock_exists", "locks_of_owners", "site_folder"]

#: The largest top_level.txt that is read; it has a few names.
_MAX_NAMES_BYTES = 1024 * 1024

#: Where a lockfile is in a distribution's metadata: as setuptools writes it, and as other build backends do.
_IN_METADATA = (LOCK_FILE, f"extra_metadata/{LOCK_FILE}")

#: The largest lockfile, or file of hashes beside it, that is compared with another one.
_COMPARED_BYTES = 64 * 1024 * 1024


def lock_exists(place: str) -> bool:
    """Whether there is a lockfile; one that cannot be read is one as well, so that it is not ignored silently."""
    try:
        os.stat(place)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return os.path.islink(place)
    except OSError as error:
        raise LockError(f"Cannot examine {place}: {error.strerror or error}.") from error
    return True


@cache
def locks_of_owners(site: str, inside: str, package: str) -> tuple[str, ...]:
    """The lockfiles in the metadata of the distributions that a file belongs to."""
    owners = [(info, locks) for info, locks in _distributions(site) if locks and _has(info, inside, package)]
    # A list of files is more exact than the name of a package, which several distributions may share.
    owners = [each for each in owners if os.path.lexists(os.path.join(each[0], "RECORD"))] or owners
    # An .egg-info of an older installer counts only where there is no .dist-info of the same project.
    newer = {_project(info) for info, _ in owners if info.endswith(".dist-info")}
    return tuple(
        lock for info, locks in owners if info.endswith(".dist-info") or _project(info) not in newer for lock in locks
    )


def _project(info: str) -> str:
    """The project's name in the name of a metadata folder: the part before the version, without dashes."""
    name = os.path.basename(info).rpartition(".")[0].partition("-")[0]
    return re.sub(r"[-_.]+", "-", name).lower()


#: Lockfiles that were found to be equal, with the state of their files then.
_agreed: dict[tuple[str, ...], object] = {}


def check_agreement(file: str) -> None:
    """Raise `LockError` if a file belongs to several distributions with different lockfiles."""
    path = os.path.abspath(file)
    site = site_folder(path)
    if site is None:
        return
    inside = path[len(site) :].lstrip(os.sep)
    places = locks_of_owners(site, inside, inside.partition(os.sep)[0])
    if len(places) < 2:
        return
    places = tuple(place for place in places if lock_exists(place))
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


def site_folder(path: str) -> str | None:
    """The folder of installed packages that a file is in, or None."""
    parts = path.split(os.sep)
    for number in range(len(parts) - 2, 0, -1):
        if parts[number] in SITE_FOLDERS:
            return os.sep.join(parts[: number + 1])
    # A folder that `pip install --target` filled has any name.
    above = [each for each in map(os.path.abspath, filter(None, sys.path)) if path.startswith(each + os.sep)]
    folder = max(above, key=len, default=None)
    if folder is None:
        return None
    # A folder with only an `.egg-info` is one of sources, where a build left it: the project's lockfile is newer.
    return folder if any(info.endswith(".dist-info") for info, _ in _distributions(folder)) else None


@cache
def _distributions(site: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The metadata folders in a folder of installed packages, each with its lockfiles."""
    found = []
    with suppress(OSError), os.scandir(site) as entries:
        for entry in entries:
            if entry.name.endswith((".dist-info", ".egg-info")):
                locks = [os.path.join(entry.path, *name.split("/")) for name in _IN_METADATA]
                found.append((entry.path, tuple(lock for lock in locks if os.path.lexists(lock))))
    return tuple(sorted(found))


def _has(info: str, file: str, package: str) -> bool:
    """Whether a file belongs to the distribution with that metadata."""
    path = file.replace(os.sep, "/").encode()
    with suppress(OSError), BufferedReader(open_regular(os.path.join(info, "RECORD"))) as record:  # type: ignore[type-var]
        return any(line.strip(b'"').startswith((path + b",", path + b'",')) for line in record)
    # Installed without a wheel: only the names of the packages are known.
    with suppress(OSError):
        names = read_bounded(os.path.join(info, "top_level.txt"), _MAX_NAMES_BYTES)
        return os.fsencode(package.removesuffix(".py")) in map(bytes.strip, names.splitlines())
    return False
