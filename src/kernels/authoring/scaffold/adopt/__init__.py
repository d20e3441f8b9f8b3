"""A kernel's folder around a file that somebody has (`kernels init --from`)."""

from __future__ import annotations

from kernels.authoring.scaffold.adopt.from_files import Adopted, adopt_kernel

__all__ = ["Adopted", "adopt_kernel"]
