"""The values of settings: the URL of a Hub, without a password; a path, or several."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from kernels.errors import RequestError

__all__ = ["folder_in", "is_url", "split_paths", "url_in", "without_password"]


def is_url(value: str) -> bool:
    """Whether a value is a URL and not a path."""
    return value.lower().startswith(("http://", "https://"))


def url_in(name: str, value: str, expected: str, *, token: str, shown: str | None = None) -> str:
    """The URL in a variable, without a trailing slash.

    Args:
        name: The variable.
        value: Its value.
        expected: The valid values, for the message.
        token: The variable for a token, which a URL must not hold.
        shown: The value as the message shows it; the default is the value without a password.

    Raises:
        RequestError: It is not a URL with a host, or holds a user or a password.
    """
    shown = without_password(value) if shown is None else shown
    try:
        parts = urlsplit(value)
        valid = is_url(value) and parts.hostname is not None and (parts.port is None or parts.port > 0)
    except ValueError:  # brackets that hold no address, a port that is no number
        valid = False
    if not valid or not value.isprintable() or " " in value:
        raise RequestError(f"`{name}` is {shown!r}; expected {expected}.")
    if "@" in parts.netloc:
        # Every message that names the Hub would show it.
        raise RequestError(f"`{name}` is {shown!r}, with a user or a password; put a token in `{token}` instead.")
    return value.rstrip("/")


def without_password(value: str) -> str:
    """A value without the `user:password@` of a URL."""
    before, at, host = value.rpartition("@")
    scheme, slashes, _ = before.partition("//")
    if at and slashes:
        return f"{scheme}//(hidden)@{host}"
    if at and ":" in before and "/" not in before:  # a URL that lacks its scheme
        return f"(hidden)@{host}"
    return value


def folder_in(name: str, value: str) -> Path:
    """The absolute path in a variable.

    Args:
        name: The variable.
        value: Its value, or a part of it.

    Raises:
        RequestError: It starts with `~` and a user that does not exist.
    """
    try:
        return Path(value).expanduser().absolute()
    except RuntimeError:
        raise RequestError(f"`{name}` has the path {value!r}, and that user has no home.") from None


def split_paths(value: str) -> list[str]:
    """The entries of a value that are separated by colons.

    Example:
        >>> split_paths("org/name=/kernels:org/other=C:/kernels")
        ['org/name=/kernels', 'org/other=C:/kernels']
    """
    # A Windows path has a colon of its own (`org/name=C:\kernels`): a colon separates only where an entry follows.
    entries: list[str] = []
    for part in value.split(":"):
        if entries and part[:1] in "\\/" and entries[-1][-2:-1] in ("=", "") and entries[-1][-1:].isalpha():
            entries[-1] += ":" + part
        elif part:
            entries.append(part)
    return entries
