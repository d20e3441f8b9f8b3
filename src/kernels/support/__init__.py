"""What is needed everywhere and knows nothing about kernels."""

from __future__ import annotations

__all__ = ["GENERATED"]

#: How the file names of this package's generated functions begin.
GENERATED = "<kernels."
