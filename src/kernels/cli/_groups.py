"""The commands by what they are for, in the order in which `kernels --help` and the documentation list them."""

from __future__ import annotations

__all__ = ["GROUPS"]

#: The names of the commands below the title of their group. Each is a module of this package and its function.
GROUPS: dict[str, tuple[str, ...]] = {
    "Look at a machine and at kernels": ("doctor", "backends", "explain", "versions", "info"),
    "Pin, carry and serve kernels": ("lock", "download", "mirror", "cache", "serve"),
    "Verify kernels": ("verify", "verify-signature"),
    "Write and publish kernels": (
        "init",
        "build",
        "test",
        "check",
        "benchmark",
        "card",
        "wheel",
        "upload",
        "skills",
    ),
}
