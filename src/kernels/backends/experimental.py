"""A backend that its vendor still tries out says so, once."""

from __future__ import annotations

from kernels.backends import lookup
from kernels.backends.base import Backend
from kernels.support.warn import warn_once

__all__ = ["mention_experimental"]


def mention_experimental(backend: Backend) -> None:
    """Warn, once a process, when an experimental backend is used.

    Example:
        >>> from kernels import get_backend
        >>> mention_experimental(get_backend("cpu"))
    """
    if backend.experimental:
        origin = next((str(entry.origin) for entry in lookup.entries() if entry.backend is backend), "not registered")
        warn_once(f"Backend {backend.name!r} ({origin}) is experimental: it may change, or not work yet.")
