"""Who calls this package: the code whose lock is active."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from types import FrameType
from typing import NamedTuple

__all__ = ["AT_A_TERMINAL", "SITE_FOLDERS", "Caller", "caller"]

#: Folders that packages are installed into.
SITE_FOLDERS = ("site-packages", "dist-packages")


class Caller(NamedTuple):
    """The code that calls this package.

    Attributes:
        file: The module's file; None for a terminal, a notebook or a command.
    """

    file: str | None


#: A caller without a file: the current folder decides.
AT_A_TERMINAL = Caller(None)


def caller(own: int = 0) -> Caller:
    """The code that called this package: the first frame outside of it, of kernels and of the standard library.

    Args:
        own: How many frames above the function that calls this one are known to be of this package.

    Example:
        >>> Caller("/project/model.py").file
        '/project/model.py'
    """
    frame: FrameType | None = sys._getframe(1 + own)
    while frame is not None:
        names = frame.f_globals
        name, file = names.get("__name__"), names.get("__file__")
        frame = frame.f_back
        if isinstance(name, str) and name.startswith("kernels") and name[7:8] in ("", "."):
            if name.startswith("kernels.cli."):
                return AT_A_TERMINAL
            continue
        if isinstance(file, str) and file:
            # What a kernel requests while it is used counts as requested by the code that uses it.
            by = _code_in(file)
            if by is not None and not type(names.get("__loader__")).__module__.startswith("kernels."):
                return by
        elif name == "__main__":
            return AT_A_TERMINAL
    # A thread that runs a function of this package: the program is the caller.
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Caller(file) if isinstance(file, str) and file else AT_A_TERMINAL


_LIBRARY = os.path.dirname(os.__file__) + os.sep


@lru_cache(maxsize=4096)
def _code_in(file: str) -> Caller | None:
    """The code in a file; None in the standard library, such as a thread pool: it passes on the calls of others."""
    is_library = file.startswith(("<frozen", _LIBRARY)) and not any(site in file for site in SITE_FOLDERS)
    return None if is_library else Caller(file)
