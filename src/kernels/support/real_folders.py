"""Refuse links as folders of a cache, so that nothing outside of the cache is written or deleted.

In a shared cache another user may plant a link instead of a folder. The cache's own folder may be a link, as the user
named it. Every folder below it is checked before anything in it is written or deleted.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from pathlib import Path

__all__ = ["LinkedFolder", "check_folders", "is_real_folder", "make_folders", "real_path"]

#: A repository's folder in a cache.
_REPOSITORY = r"(kernel|model)s--[^/\\]+--[^/\\]+"

#: `<cache>/.locks/<kind>/<Hub>/<file>` is the deepest path of a lock or a record.
_MOST_FOLDERS = 3


class LinkedFolder(OSError):
    """A link was found instead of a folder."""


def is_real_folder(path: os.PathLike[str] | str) -> bool:
    """Whether a path is a folder itself, not a link (on Windows: a junction) to one.

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


def real_path(path: str, resolved: dict[str, str]) -> str:
    """`os.path.realpath` for many files in few folders: each folder is resolved once."""

    def folder(name: str) -> str:
        if name not in resolved:
            resolved[name] = os.path.realpath(name)
        return resolved[name]

    parent, name = os.path.split(path)
    try:
        target_folder, name = os.path.split(os.path.join(folder(parent), os.readlink(path)))
    except OSError:  # no link
        return os.path.join(folder(parent), name)
    target = os.path.join(folder(target_folder), name)
    return os.path.realpath(target) if name in ("", ".", "..") or os.path.islink(target) else target


def check_folders(folder: Path, root: Path | None = None) -> None:
    """Check that no folder of a cache, down to this one, is a link; they need not exist.

    Args:
        folder: The folder whose content will be read, written or deleted.
        root: The cache's folder, which may be a link. Default: the parent of `.locks` or of the repository's folder in
            the path; without either, only `folder` itself is checked.

    Raises:
        LinkedFolder: One is a link.
        OSError: One cannot be read.

    Example:
        >>> check_folders(Path("/cache/kernels--org--relu/blobs"))
    """
    with suppress(FileNotFoundError):  # then nothing below it exists
        for step in _steps(folder, root):
            _refuse_link(step, os.lstat(step))


def make_folders(folder: Path, root: Path | None = None) -> None:
    """Create a folder of a cache and its parents, none of which may be a link.

    Args:
        folder: The folder, which may exist.
        root: As of `check_folders`.

    Raises:
        LinkedFolder: One is a link.
        OSError: One cannot be created.

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
            except FileNotFoundError:  # the cache's own folder does not exist yet
                os.makedirs(step, exist_ok=True)
            facts = os.lstat(step)
        _refuse_link(step, facts)
        if not stat.S_ISDIR(facts.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), step)


def _refuse_link(step: str, facts: os.stat_result) -> None:
    if _is_link(facts):
        raise LinkedFolder(errno.ELOOP, f"{step} is a link; expected a folder. Remove it", step)


def _is_link(facts: os.stat_result) -> bool:
    # `lstat` shows a junction (Windows) as a folder.
    junction = getattr(stat, "IO_REPARSE_TAG_MOUNT_POINT", None)
    return stat.S_ISLNK(facts.st_mode) or (junction is not None and getattr(facts, "st_reparse_tag", 0) == junction)


def _steps(folder: Path, root: Path | None) -> list[str]:
    """The folders to check, from the one below the cache's own down to this one."""
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
        if not repository and re.fullmatch(_REPOSITORY, name):  # or a folder of `.locks`, which is seen next
            repository = count
        path = os.path.dirname(path)
        steps.append(path)
    return steps[: repository or 1][::-1]
