"""Installed distributions, without reading each of them: their metadata folders, and who mentions an entry point group.

`importlib.metadata` reads and parses the entry points of every distribution for each question. Here the files are read
once, and only those that mention the group are parsed, by `importlib.metadata`.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

__all__ = [
    "entry_points",
    "forget_entry_points",
    "installed_from",
    "installed_version",
    "metadata_folder",
    "metadata_folders",
]

_SUFFIXES = (".dist-info", ".egg-info")

#: The most bytes of a `direct_url.json`; one has some hundred.
_LARGEST_RECORD = 64 << 10

#: The metadata folders in a folder, with its state when they were listed.
_listed: dict[str, tuple[object, tuple[str, ...]]] = {}

#: Each `entry_points.txt` of a folder of packages by the metadata folder it is in, with that folder's state.
_texts: dict[str, tuple[object, dict[str, bytes]]] = {}


def metadata_folders(folder: str) -> tuple[str, ...]:
    """The names of the `.dist-info` and `.egg-info` folders in a folder, sorted; listed again when it has changed.

    Example:
        >>> metadata_folders("/nowhere")
        ()
    """
    state = _state(folder)
    known = _listed.get(folder)
    if known is None or known[0] != state:
        known = state, ()
        if state is not None:
            try:
                known = state, tuple(sorted(name for name in os.listdir(folder) if name.endswith(_SUFFIXES)))
            except OSError:
                pass  # a file, or a folder that may not be read
        _listed[folder] = known
    return known[1]


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of installed distributions in a group, as `importlib.metadata` finds them.

    Args:
        group: The group's name, such as `torch.backends`.

    Example:
        >>> entry_points("a.group.that.nobody.has")
        ()
    """
    folders = _plain_folders()
    if folders is None:
        import importlib.metadata

        return tuple(importlib.metadata.entry_points(group=group))
    needle = group.encode()
    mentions = [(folder, name) for folder in folders for name, text in _texts_in(folder).items() if needle in text]
    return tuple(
        point for folder, name in mentions if _is_first(name, folder, folders) for point in _of(folder, name, group)
    )


def forget_entry_points() -> None:
    """Read the entry points again when they are next asked for: a package may be in the middle of its installation."""
    _texts.clear()


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution, from its metadata; None where it is not installed.

    Args:
        distribution: Its name, in any spelling.

    Example:
        >>> installed_version("no-such-distribution") is None
        True
    """
    wanted = _project(f"{distribution.replace('-', '_')}.")
    for folder in _plain_folders() or ():
        for name in metadata_folders(folder):
            found = _version_in(os.path.join(folder, name)) if _project(name) == wanted else None
            if found is not None:
                return found
    import importlib.metadata

    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def metadata_folder(distribution: Distribution) -> str | None:
    """The folder of an installed distribution's metadata; None where it is in an archive or has none.

    Args:
        distribution: As `importlib.metadata` finds it, which has no public name for the folder.

    Example:
        >>> import importlib.metadata
        >>> os.path.isdir(metadata_folder(importlib.metadata.distribution("msgspec")))
        True
    """
    folder = getattr(distribution, "_path", None)
    return str(folder) if isinstance(folder, os.PathLike) else None


def installed_from(distribution: str, folder: str) -> str | None:
    """What the copy of a distribution in a folder was installed from, as its installer recorded it.

    The record is `direct_url.json` (https://packaging.python.org/en/latest/specifications/direct-url/).

    Args:
        distribution: Its name.
        folder: The folder of its package, such as `/env/lib/python3.11/site-packages/kernels`.

    Returns:
        `git+https://host/path@<commit>`, the URL of an archive, or a folder. None where there is no record: it came
        from a package index, or the folder was never installed.

    Example:
        >>> installed_from("no-such-distribution", "/nowhere") is None
        True
    """
    import importlib.metadata
    from pathlib import Path
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    from kernels.support.documents import load_json
    from kernels.support.files import read_bounded
    from kernels.support.text import one_line

    try:
        found = importlib.metadata.distribution(distribution)
        info = metadata_folder(found)
        if info is None:
            return None
        record = load_json(read_bounded(os.path.join(info, "direct_url.json"), _LARGEST_RECORD))
        url = record["url"]
        path = url2pathname(urlsplit(url).path) if url.startswith("file:") else None
        editable = bool(record.get("dir_info", {}).get("editable"))
        # Another copy may come first on the path than the one with the record.
        place = Path(path).resolve() if editable and path else Path(str(found.locate_file(""))).resolve()
        if not Path(folder).resolve().is_relative_to(place):
            return None
        if "vcs_info" in record:
            return one_line(f"{record['vcs_info']['vcs']}+{url}@{record['vcs_info']['commit_id']}")
        return one_line(f"{path}{' (editable)' if editable else ''}" if path else url)
    except (importlib.metadata.PackageNotFoundError, ValueError, TypeError, KeyError, AttributeError, OSError):
        return None  # no record, or none that says anything


def _version_in(info: str) -> str | None:
    for file in ("METADATA", "PKG-INFO"):
        try:
            with open(os.path.join(info, file), encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    if line.startswith("Version:"):
                        return line.partition(":")[2].strip() or None
                    if not line.strip():  # the description follows
                        break
        except OSError:
            continue
    return None


def _plain_folders() -> list[str] | None:
    """The folders that are searched for packages; None where `importlib.metadata` looks into other places as well."""
    for finder in sys.meta_path:
        if hasattr(finder, "find_distributions") and getattr(finder, "__module__", "") != "_frozen_importlib_external":
            return None
    folders = []
    for entry in dict.fromkeys(sys.path):
        folder = entry or "."
        if folder.endswith(".egg") or os.path.isfile(folder):  # an archive, or a distribution by itself
            return None
        folders.append(folder)
    return folders


def _texts_in(folder: str) -> dict[str, bytes]:
    state = _state(folder)
    known = _texts.get(folder)
    if known is None or known[0] != state:
        known = state, {}
        for name in metadata_folders(folder):
            try:
                known[1][name] = _content(f"{folder}{os.sep}{name}{os.sep}entry_points.txt")
            except OSError:
                continue  # most have none
        _texts[folder] = known
    return known[1]


def _content(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))  # `open` makes three objects for each file
    try:
        parts = []
        while part := os.read(descriptor, 1 << 20):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def _is_first(name: str, folder: str, folders: list[str]) -> bool:
    """Whether no folder before has a distribution of the same project, which would be the one that is imported."""
    project = _project(name)
    before = folders[: folders.index(folder)]
    return all(_project(other) != project for each in before for other in metadata_folders(each))


def _project(info: str) -> str:
    """The project's name in the name of a metadata folder, in one spelling."""
    return re.sub(r"[-_.]+", "_", info.rpartition(".")[0].partition("-")[0]).lower()


def _of(folder: str, name: str, group: str) -> tuple[EntryPoint, ...]:
    from importlib.metadata import PathDistribution
    from pathlib import Path

    return tuple(PathDistribution(Path(folder, name)).entry_points.select(group=group))


def _state(folder: str) -> object:
    try:
        found = os.stat(folder)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns
