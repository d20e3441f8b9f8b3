"""Where a command may write: an untrusted checkout can have links in the place of files and folders."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from kernels.errors import RequestError

__all__ = ["stay_inside"]


def stay_inside(path: os.PathLike[str] | str, *roots: os.PathLike[str] | str) -> Path:
    """The real path of a file or folder to write, which links may not lead out of the folder that it is in.

    Args:
        path: The file or folder; it need not exist.
        roots: Folders that it may be in, such as a project. The current folder is one, too. A path in none of them is
            one that the user has named.

    Raises:
        RequestError: A link leads out of the first of these folders that it is in.

    Example:
        >>> import tempfile
        >>> folder = Path(os.path.realpath(tempfile.mkdtemp()))
        >>> stay_inside(folder / "kernels.lock", folder) == folder / "kernels.lock"
        True
    """
    place, real = Path(os.path.abspath(path)), Path(os.path.realpath(path))
    tops = list(roots)
    with suppress(OSError):  # the current folder was deleted
        tops.append(os.getcwd())
    root = next((each for each in tops if place.is_relative_to(os.path.abspath(each))), None)
    if root is not None and not real.is_relative_to(os.path.realpath(root)):
        raise RequestError(
            f"{path} is a link, or in one, to {real}, outside of {os.path.abspath(root)}. Nothing was written there. "
            "Remove the link, or name the other place itself."
        )
    return real
