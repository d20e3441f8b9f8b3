"""Installed distributions, without reading each of them: their metadata folders, and who mentions an entry point group.

`importlib.metadata` reads and parses the entry points of every distribution for each question. Here the files are read
once, and only those that mention the group are parsed, by `importlib.metadata`.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["entry_points", "installed_from", "installed_version", "metadata_folders"]


def metadata_folders(folder: str) -> tuple[str, ...]:
    """The names of the `.dist-info` and `.egg-info` folders in a folder, sorted; listed again when it has changed.

    Example:
        >>> metadata_folders("/nowhere")
        ()
    """
    return _metadata_folders(folder, _changed(folder))


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """The entry points in a group, of the distributions in the folders of `sys.path`.

    Args:
        group: The group's name, such as `torch.backends`.

    Example:
        >>> entry_points("a.group.that.nobody.has")
        ()
    """
    needle = group.encode()
    found: list[EntryPoint] = []
    seen: set[str] = set()  # of two distributions of a project the first is the one that is imported
    for folder in _folders():
        files = _entry_point_files(folder, _changed(folder))
        for name in metadata_folders(folder):
            if needle in files.get(name, b"") and _project(name) not in seen:
                from importlib.metadata import PathDistribution
                from pathlib import Path

                found += PathDistribution(Path(folder, name)).entry_points.select(group=group)
            seen.add(_project(name))
    return tuple(found)


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution, as the name of its metadata folder has it; None without one.

    Args:
        distribution: Its name, in any spelling.

    Example:
        >>> installed_version("no-such-distribution") is None
        True
    """
    wanted = _project(f"{distribution.replace('-', '_')}.")
    for folder in _folders():
        for name in metadata_folders(folder):
            if _project(name) == wanted and "-" in name:
                return name.rpartition(".")[0].split("-")[1]
    return None


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
    import json
    from pathlib import Path
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    from kernels.support.text import one_line

    try:
        found = importlib.metadata.distribution(distribution)
        record = json.loads(found.read_text("direct_url.json") or "")
        url, editable = record["url"], bool(record.get("dir_info", {}).get("editable"))
        path = url2pathname(urlsplit(url).path) if url.startswith("file:") else None
        origin = path or url
        if "vcs_info" in record:
            origin = f"{record['vcs_info']['vcs']}+{url}@{record['vcs_info']['commit_id']}"
    except (importlib.metadata.PackageNotFoundError, ValueError, LookupError, AttributeError, TypeError):
        return None  # no record, or not one of an installer
    # Another copy may come first on the path than the one with the record.
    place = path if editable and path else found.locate_file("")
    if not Path(folder).resolve().is_relative_to(Path(str(place)).resolve()):
        return None
    return one_line(f"{origin}{' (editable)' if editable else ''}")


def _folders() -> list[str]:
    return [entry or "." for entry in dict.fromkeys(sys.path)]


def _changed(folder: str) -> int | None:
    """When a folder was last changed; None where there is none."""
    try:
        return os.stat(folder).st_mtime_ns
    except (OSError, ValueError):
        return None


@functools.lru_cache
def _metadata_folders(folder: str, changed: int | None) -> tuple[str, ...]:
    try:
        return tuple(sorted(name for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-info"))))
    except (OSError, ValueError):  # an archive, or a folder that may not be read
        return ()


@functools.lru_cache
def _entry_point_files(folder: str, changed: int | None) -> Mapping[str, bytes]:
    """Each `entry_points.txt` in a folder of packages, by the metadata folder it is in."""
    found: dict[str, bytes] = {}
    for name in _metadata_folders(folder, changed):
        try:
            with open(os.path.join(folder, name, "entry_points.txt"), "rb", buffering=0) as file:
                found[name] = file.read()
        except OSError:
            continue  # most have none
    return found


@functools.cache
def _project(info: str) -> str:
    """The project's name in the name of a metadata folder, in one spelling."""
    return re.sub(r"[-_.]+", "_", info.rpartition(".")[0].partition("-")[0]).lower()
