"""Which package of the name `kernels` is installed, in the words of `kernels --version` and `kernels doctor`."""

from __future__ import annotations

from kernels.support.text import one_line

__all__ = ["installation_lines"]


def installation_lines(folder: str, origin: str | None) -> tuple[str, str]:
    """Where this package is, what it was installed from, and which of two packages of one name it is.

    Args:
        folder: The folder that it was imported from.
        origin: What `kernels.support.installed.installed_from` gives.

    Example:
        >>> print(*installation_lines("/env/kernels", None), sep="\\n")
        in /env/kernels, installed from no recorded URL or folder
        This is not the client that package indexes have under the name kernels.
    """
    return (
        f"in {one_line(folder)}, installed from {origin or 'no recorded URL or folder'}",
        "This is not the client that package indexes have under the name kernels.",
    )
