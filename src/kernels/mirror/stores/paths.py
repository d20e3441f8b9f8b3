"""Which paths a mirror may have: a store never leaves its root, whatever a document or a listing names."""

from __future__ import annotations

from kernels.errors import InvalidRepository
from kernels.support.formatting import format_value
from kernels.support.text import is_safe

__all__ = ["check_path"]

#: The longest path: of an archive it has 79 characters, of a commit's document less than 300.
_LONGEST = 1024


def check_path(path: str, where: str) -> str:
    r"""A path of a mirror, if it stays below the mirror's root.

    Args:
        path: The path.
        where: The mirror's address, for the message.

    Raises:
        InvalidRepository: It leaves the root, or no store can have it.

    Example:
        >>> check_path("archives/0a/0a.tar.zst", "s3://bucket")
        'archives/0a/0a.tar.zst'
        >>> check_path("archives/../..", "s3://bucket")
        Traceback (most recent call last):
        kernels.errors.InvalidRepository: s3://bucket: 'archives/../..' is not a path within a mirror.
    """
    parts = path.split("/")
    if (
        not {"", ".", ".."}.isdisjoint(parts)
        or "\\" in path
        or ":" in parts[0]
        or len(path) > _LONGEST
        or not is_safe(path)
    ):
        raise InvalidRepository(f"{where}: {format_value(path, 200)} is not a path within a mirror.")
    return path
