"""Data alone: parsed from text and written to it, checked, and known by every other package."""

from __future__ import annotations

__all__ = ["LOCK_FILE"]

#: The name of a lockfile: here, so that it is known without importing what reads lockfiles.
LOCK_FILE = "kernels.lock"
