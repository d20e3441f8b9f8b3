"""The cache: whether this user can use it, and what of it is ignored."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

import msgspec

from kernels import settings
from kernels.cache.records import ignored_records
from kernels.diagnosis.finding import Findings
from kernels.errors import RequestError
from kernels.support.formatting import format_names, format_text, plural
from kernels.support.record_file import is_owner

__all__ = ["CacheReport", "check_cache"]

#: Less room than one build of a large kernel takes.
_ROOM = 1_000_000_000
#: Fewer files than some kernels have.
_FILES = 1000
#: Seconds for looking at the files of a large cache.
_SECONDS = 5.0
#: Bytes of a file's name (NAME_MAX in limits.h).
_LONGEST_NAME = 255
_ANOTHER = "name another folder with KERNELS_CACHE"


class CacheReport(msgspec.Struct, frozen=True):
    """The cache: its path, its number of repositories, and their size on disk in bytes."""

    path: str
    repositories: int = 0
    bytes: int = 0
    note: str | None = None


def check_cache() -> tuple[CacheReport, Findings]:
    """Whether the cache can be read and written, belongs to this user, and has room; and its records."""
    found = Findings("cache")
    try:
        path = settings.cache_dir()
    except RequestError as error:  # reported with the variables
        return CacheReport("", note=format_text(error)), found
    try:
        report = _look(path, found)
    except (OSError, ValueError) as error:
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        found.problem(f"{path} cannot be examined: {why}.", f"Check the path, or {_ANOTHER}.")
        report = CacheReport(str(path), note=f"cannot be examined: {why}")
    return report, found


def _look(path: Path, found: Findings) -> CacheReport:
    if any(len(os.fsencode(part)) > _LONGEST_NAME for part in path.parts):
        found.problem("The path of the cache has a name that is longer than file systems allow.", f"N{_ANOTHER[1:]}.")
        return CacheReport(format_text(path, 200), note="cannot be made")
    nearest = path
    while not os.path.lexists(nearest) and nearest.parent != nearest:
        nearest = nearest.parent
    if not os.path.isdir(nearest):
        kind = "leads to nothing" if os.path.islink(nearest) and not os.path.exists(nearest) else "is not a folder"
        found.problem(f"{_named(path, nearest)} {kind}.", f"Move it away, or {_ANOTHER}.")
        return CacheReport(str(path), note=f"cannot be used: {nearest} {kind}")
    note = None if nearest == path else "does not exist yet"
    facts = os.stat(nearest)
    writable = _check_writable(path, nearest, found)
    if nearest == path:
        if not is_owner(facts):
            found.problem(
                f"{path} belongs to {_user(facts.st_uid)}: what that user recorded there is not trusted.",
                f"Take it over (chown -R), or {_ANOTHER}.",
            )
            note = f"belongs to {_user(facts.st_uid)}"
        elif hasattr(os, "geteuid") and facts.st_mode & stat.S_IWOTH:
            found.note(f"Every user may write to {path}.", "Take that right away: chmod o-w.")
    if writable:
        _check_room(nearest, found)
    else:
        note = "is not writable"
    try:
        folders = [entry for entry in path.iterdir() if entry.is_dir()] if nearest == path else []
    except OSError as error:
        found.problem(f"{path} cannot be read: {error.strerror or error}.", f"Give this user the right, or {_ANOTHER}.")
        return CacheReport(str(path), note=f"cannot be read: {error.strerror or error}")
    end = time.monotonic() + _SECONDS
    _check_records([each for each in folders if each.name.startswith(("kernels--", "models--"))], found, end)
    kernels = [each for each in folders if each.name.startswith("kernels--")]
    size, complete = 0, True
    for each in kernels:
        own, complete = _bytes_below(each, end)
        size += own
        if not complete:
            break
    if not complete:
        found.note(f"{path} has more than {size} bytes; they were not all counted.", "See: kernels cache size")
    return CacheReport(str(path), len(kernels), size, note)


def _named(path: Path, nearest: Path) -> str:
    return str(path) if nearest == path else f"{path} cannot be made: {nearest}"


def _check_writable(path: Path, nearest: Path, found: Findings) -> bool:
    """Write a file: what the rights say is not what a read-only file system or root may do."""
    try:
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(b"0" * 4096)
            file.flush()
    except OSError as error:
        what = f"{path} is not writable" if nearest == path else f"{path} cannot be made: {nearest} is not writable"
        found.problem(f"{what}: {error.strerror or error}.", f"Give this user the right, or {_ANOTHER}.")
        return False
    return True


def _check_room(nearest: Path, found: Findings) -> None:
    free = shutil.disk_usage(nearest).free
    fix = f"Free some space (kernels cache prune), or {_ANOTHER}."
    if free < _ROOM:
        found.problem(f"The disk of {nearest} is nearly full: {free / 1e6:.0f} MB are free.", fix)
    if hasattr(os, "statvfs"):
        system = os.statvfs(nearest)
        if system.f_files > 0 and system.f_favail < _FILES:
            found.problem(f"The disk of {nearest} has room for {system.f_favail} more files only (inodes).", fix)


def _check_records(folders: list[Path], found: Findings, end: float) -> None:
    ignored: list[tuple[Path, bool]] = []
    for folder in folders:
        if time.monotonic() > end:
            break
        ignored += ignored_records(folder)
    for damaged, reason, fix in (
        (
            False,
            "somebody may write, or another user owns",
            "Restore them (chown -R, and chmod a-w) if nobody changed them, or remove them: they are made again.",
        ),
        (True, "cannot be read", "Remove them: they are made again."),
    ):
        paths = [path for path, is_damaged in ignored if is_damaged == damaged]
        if paths:
            found.problem(
                f"Ignored {plural(len(paths), 'record')}, which {reason}: {format_names(paths, limit=2)}.", fix
            )


def _bytes_below(folder: Path, end: float) -> tuple[int, bool]:
    """Size of the files in a folder, and whether there was time for all; hard links to one file are counted once."""
    sizes: dict[tuple[int, int], int] = {}
    for parent, _, names in os.walk(folder):
        if time.monotonic() > end:
            return sum(sizes.values()), False
        for name in names:
            try:
                facts = os.lstat(os.path.join(parent, name))
            except OSError:
                continue  # removed meanwhile
            sizes[facts.st_dev, facts.st_ino] = facts.st_size
    return sum(sizes.values()), True


def _user(number: int) -> str:
    try:
        import pwd

        return f"{pwd.getpwuid(number).pw_name} (user {number})"
    except (ImportError, KeyError, OSError):
        return f"user {number}"
