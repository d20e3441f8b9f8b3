"""The links of a snapshot to its contents, and copies where a file system has no links."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["NO_LINKS", "link_to", "real_path"]

#: The errors of a file system without symbolic links.
NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.ENOTSUP})


def link_to(link: Path, blob: Path) -> None:
    """Make a path a link to a content, or a copy of it on a file system without links.

    Args:
        link: The path, in a folder that exists. What is there is replaced.
        blob: The content.
    """
    target = os.path.relpath(blob, link.parent)
    # Not beside the link: a leftover of a kill must not be a file of the build.
    temporary = blob.with_name(f"{os.urandom(6).hex()}.incomplete")
    try:
        try:
            os.symlink(target, temporary)
        except OSError as error:
            if sys.platform != "win32" and error.errno not in NO_LINKS:
                raise
            if _is_copy(link, blob):  # do not replace a file that another process may have open
                return
            shutil.copyfile(blob, temporary)
        os.replace(temporary, link)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def _is_copy(path: Path, blob: Path) -> bool:
    import filecmp

    try:
        return not path.is_symlink() and filecmp.cmp(path, blob, shallow=False)
    except OSError:
        return False


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
