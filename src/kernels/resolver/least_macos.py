"""The macOS that a backend's compiled builds need, asked of the backend with examples: no other place has a list."""

from __future__ import annotations

from kernels.backends import Backend
from kernels.resolver.target import Target

__all__ = ["least_macos"]

_LAST = 60


def least_macos(backend: Backend) -> int:
    """The first major version of macOS that loads a backend's compiled builds; 0 if any does.

    Args:
        backend: The backend, which is asked with examples.
    """
    for version in range(1, _LAST):
        mac = Target(os="darwin", cpu="aarch64", os_version=f"{version}.0", default_backend=backend.name)
        if backend.platform_reason(mac) is None:
            return version if version > 1 else 0
    return 0
