"""The progress of a download, as callers receive it."""

from __future__ import annotations

import threading
from typing import Protocol

__all__ = ["ArrivalCounter", "Progress"]


class Progress(Protocol):
    """Receives the progress of a download, from any thread."""

    def start(self, files: int, size: int) -> None:
        """The number and total size of the files to download."""

    def arrived(self, files: int, size: int) -> None:
        """The number of files and bytes that have arrived since the last call."""


class ArrivalCounter:
    """Counts what has arrived of one build, each byte once, also if it was on disk or is downloaded again.

    Args:
        files: The number of its files.
        size: Their bytes.
        progress: Receives the progress.
    """

    def __init__(self, files: int, size: int, progress: Progress) -> None:
        self._left = [files, size]
        self._progress = progress
        self._guard = threading.Lock()

    def __call__(self, files: int, size: int) -> None:
        with self._guard:
            files, size = min(files, self._left[0]), min(size, self._left[1])
            self._left = [self._left[0] - files, self._left[1] - size]
        self._progress.arrived(files, size)

    def finish(self) -> None:
        """Count what was on disk already."""
        self(*self._left)
