"""What a value of a mapping must be, at the path where programs for the existing client import it."""

from __future__ import annotations

from kernels.layer.mapping import RepositoryProtocol

__all__ = ["RepositoryProtocol"]
