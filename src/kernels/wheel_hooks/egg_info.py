"""setuptools puts a project's lock into `<name>.dist-info/`: a writer of the group `egg_info.writers`."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from kernels.models.lockfile import LOCK_FILE
from kernels.wheel_hooks import shipment

__all__ = ["EggInfo", "write"]


class EggInfo(Protocol):
    """What of setuptools's command `egg_info` is used here."""

    def write_or_delete_file(self, what: str, filename: str, data: str) -> None:
        """Write a file, or delete it where there is nothing to be written."""
        ...

    def warn(self, msg: str) -> None:
        """Tell whoever builds the project."""
        ...


def write(command: EggInfo, basename: str, filename: str) -> None:
    """Write one of the files that belong into the metadata of the project in the current folder.

    Args:
        command: setuptools's command.
        basename: The file's name there: `kernels.lock` or `kernels.hashes.json`.
        filename: The path to write to. Where the project has no such file, what an earlier build left is deleted.

    Raises:
        RequestError: The project's table of kernels is not what is allowed.
        LockError: Its lock cannot be read.
    """
    # setuptools calls this in the project's folder (PEP 517).
    found = shipment(Path.cwd())
    if basename == LOCK_FILE:  # once for both files
        for warning in found.warnings:
            command.warn(warning)
    file = found.files.get(basename)
    command.write_or_delete_file(basename, filename, "" if file is None else file.read_text(encoding="utf-8"))
