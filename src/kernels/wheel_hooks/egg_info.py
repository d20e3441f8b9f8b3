"""Put a project's lockfile into `<name>.dist-info/` with setuptools: a writer of the group `egg_info.writers`."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from kernels.models.lockfile import LOCK_FILE
from kernels.wheel_hooks import wheel_files

__all__ = ["EggInfo", "write"]


class EggInfo(Protocol):
    """The part of setuptools's command `egg_info` that is used here."""

    def write_or_delete_file(self, what: str, filename: str, data: str) -> None:
        """Write a file, or delete it if there is no data."""
        ...

    def warn(self, msg: str) -> None:
        """Print a warning."""
        ...


def write(command: EggInfo, basename: str, filename: str) -> None:
    """Write one of the metadata files of the project in the current folder.

    Args:
        command: setuptools's command.
        basename: The file's name there: `kernels.lock` or `kernels.hashes.json`.
        filename: The path to write to. If the project has no such file, the one of an earlier build is deleted.

    Raises:
        RequestError: The project's table of kernels is not valid.
        LockError: Its lockfile cannot be read.
    """
    # setuptools calls this in the project's folder (PEP 517).
    found = wheel_files(Path.cwd())
    if basename == LOCK_FILE:  # once for both files
        for warning in found.warnings:
            command.warn(warning)
    file = found.files.get(basename)
    command.write_or_delete_file(basename, filename, "" if file is None else file.read_text(encoding="utf-8"))
