"""Data alone: parsed from text and written to it, checked, and known by every other package."""

from __future__ import annotations

__all__ = ["LOCK_FILE", "MIRROR_FILE", "PROJECT_FILE"]

#: The names of a lockfile, of a mirror's index and of a project: here, so that they are known without importing what
#: reads these files.
LOCK_FILE = "kernels.lock"
MIRROR_FILE = "mirror.json"
PROJECT_FILE = "pyproject.toml"
