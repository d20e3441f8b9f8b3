"""The folders of a cache are folders and never links: nothing is written or deleted outside of the cache.

In a cache that others can write, somebody may plant a link in the place of a folder. The cache's own folder may be one:
the user named it. Every folder below it is looked at before anything in it is written or deleted.

A look with `lstat` costs about a microsecond, and less than what follows it: a file that is created and renamed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from pathlib import Path

__all__ = ["LinkedFolder", "check_folders", "is_real_folder", "make_folders"]

#: A repository's folder in a cache.
_REPOSITORY = re.compile(r"(kernel|model)s--[^/\\]+--[^/\\]+")

#: `<cache>/.locks/<kind>/<Hub>/<file>` is the deepest path of a lock or a record.
_MOST_FOLDERS = 3


class LinkedFolder(OSError):
    """A link stands where a folder must be."""


def is_real_folder(path: os.PathLike[str] | str) -> bool:
    """Whether a path is a folder itself, and no link (on Windows: no junction) to one.

    Example:
        >>> import tempfile
        >>> is_real_folder(tempfile.mkdtemp())
        True
    """
    try:
        facts = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and not _is_link(facts)


def check_folders(folder: Path, root: Path | None = None) -> None:
    """Make sure that no folder of a cache, down to this one, is a link; they need not be there.

    Args:
        folder: The folder that holds what is to be read, written or deleted.
        root: The cache's folder, which may be a link. Default: the folder that holds `.locks` or the repository's
            folder, as the path has them; where it has neither, only `folder` itself is looked at.

    Raises:
        LinkedFolder: One is a link.
        OSError: One cannot be looked at.

    Example:
        >>> check_folders(Path("/cache/kernels--org--relu/blobs"))
    """
    with suppress(FileNotFoundError):  # nor is there anything below it
        for step in _steps(folder, root):
            _refuse_link(step, os.lstat(step))


def make_folders(folder: Path, root: Path | None = None) -> None:
    """Make a folder of a cache and those on the way to it, none of which may be a link.

    Args:
        folder: The folder; one that is there is fine.
        root: As of `check_folders`.

    Raises:
        LinkedFolder: One is a link.
        OSError: One cannot be made.

    Example:
        >>> import tempfile
        >>> make_folders(Path(tempfile.mkdtemp()) / ".locks" / "kernels--org--relu")
    """
    for step in _steps(folder, root):
        try:
            facts = os.lstat(step)
        except FileNotFoundError:
            try:
                os.mkdir(step)
            except FileExistsError:
                pass
            except FileNotFoundError:  # the cache's own folder is not there yet
                os.makedirs(step, exist_ok=True)
            facts = os.lstat(step)
        _refuse_link(step, facts)
        if not stat.S_ISDIR(facts.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), step)


def _refuse_link(step: str, facts: os.stat_result) -> None:
    if _is_link(facts):
        raise LinkedFolder(errno.ELOOP, f"{step} is a link; expected a folder. Remove it", step)


def _is_link(facts: os.stat_result) -> bool:
    # Of a junction (Windows), which needs no privilege, `lstat` says that it is a folder.
    junction = getattr(stat, "IO_REPARSE_TAG_MOUNT_POINT", None)
    return stat.S_ISLNK(facts.st_mode) or (junction is not None and getattr(facts, "st_reparse_tag", 0) == junction)


def _steps(folder: Path, root: Path | None) -> list[str]:
    """The folders to look at, from the cache's own folder, which is left out, down to this one."""
    path = os.fspath(folder)
    steps = [path]
    if root is not None:
        top = "" if root == Path() else os.fspath(root)
        while (path := os.path.dirname(path)) != top:
            if len(path) <= len(top):
                raise ValueError(f"{folder} must be below {root}")
            steps.append(path)
        return steps[::-1]
    repository = 0
    for count in range(1, _MOST_FOLDERS + 1):
        name = os.path.basename(path)
        if name == ".locks":
            return steps[::-1]
        if not repository and _REPOSITORY.fullmatch(name):  # or a folder of `.locks`, which is seen next
            repository = count
        path = os.path.dirname(path)
        steps.append(path)
    return steps[: repository or 1][::-1]
