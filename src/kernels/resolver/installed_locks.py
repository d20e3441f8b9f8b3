"""The locks of installed distributions: which one belongs to a file among installed packages."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from functools import cache
from io import BufferedReader

from kernels.models import LOCK_FILE
from kernels.resolver.caller import SITE_FOLDERS

__all__ = ["locks_of_owners", "site_folder"]

#: The largest top_level.txt that is read; it has a few names.
_MAX_NAMES_BYTES = 1024 * 1024

#: Where a lockfile is in a distribution's metadata: as setuptools writes it, and as other build backends do.
_IN_METADATA = (LOCK_FILE, f"extra_metadata/{LOCK_FILE}")


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
    try:
        names = os.listdir(folder)
    except OSError:  # an archive, or a folder that may not be read
        return None
    # A folder with only an `.egg-info` is one of sources, where a build left it: the project's lockfile is newer.
    return folder if any(name.endswith(".dist-info") for name in names) else None


@cache
def _distributions(site: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The metadata folders in a folder of installed packages, each with its lockfiles."""
    from kernels.support.installed import metadata_folders  # where a package calls

    found = []
    for name in metadata_folders(site):
        info = os.path.join(site, name)
        locks = [os.path.join(info, *place.split("/")) for place in _IN_METADATA]
        found.append((info, tuple(lock for lock in locks if os.path.lexists(lock))))
    return tuple(found)


def _has(info: str, file: str, package: str) -> bool:
    """Whether a file belongs to the distribution with that metadata."""
    from kernels.support.files import open_regular, read_bounded

    path = file.replace(os.sep, "/").encode()
    with suppress(OSError), BufferedReader(open_regular(os.path.join(info, "RECORD"))) as record:  # type: ignore[type-var]
        return any(line.strip(b'"').startswith((path + b",", path + b'",')) for line in record)
    # Installed without a wheel: only the names of the packages are known.
    with suppress(OSError):
        names = read_bounded(os.path.join(info, "top_level.txt"), _MAX_NAMES_BYTES)
        return os.fsencode(package.removesuffix(".py")) in map(bytes.strip, names.splitlines())
    return False
