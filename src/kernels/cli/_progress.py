"""The progress of downloads, at a terminal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kernels.cli._output import console, format_size

if TYPE_CHECKING:
    import rich.progress

__all__ = ["ProgressDisplay", "download_progress"]

#: A download that takes less has no progress display.
_DELAY_SECONDS = 0.4

#: A longer name would leave no space for the bar.
_LONGEST_NAME = 30


@contextmanager
def download_progress(verb: str, kernels: list[str]) -> Iterator[ProgressDisplay | None]:
    """One progress display for all files, on standard error if that is a terminal; None if it is not wanted.

    Args:
        verb: What is done: `Downloading`.
        kernels: The kernels; a single one is named.
    """
    from kernels import settings

    out = console(stderr=True)
    if not out.is_terminal or settings.progress_disabled():
        yield None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Display
    from rich.text import Text

    def once_known(column: Any) -> ProgressColumn:
        """A column that is empty until the size is known."""

        class Known(column):  # type: ignore[misc]
            def render(self, task: rich.progress.Task) -> Any:
                return Text() if task.total is None else super().render(task)

        made: ProgressColumn = Known()
        return made

    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[files]}"),
        *map(once_known, (DownloadColumn, TransferSpeedColumn, TimeRemainingColumn)),
    ]
    display = Display(*columns, console=out, transient=True)
    timer = threading.Timer(_DELAY_SECONDS, display.start)
    timer.daemon = True
    timer.start()
    try:
        yield ProgressDisplay(display, verb, kernels)
    finally:
        timer.cancel()
        timer.join()
        display.stop()


class ProgressDisplay:
    """The display of one download.

    Args:
        display: The display.
        verb: What is done: `Downloading`.
        kernels: The kernels; a single one is named.
    """

    def __init__(self, display: rich.progress.Progress, verb: str, kernels: list[str]) -> None:
        self._display = display
        self._name = verb + (f" {kernels[0]}" if len(kernels) == 1 and len(kernels[0]) <= _LONGEST_NAME else "")
        self._task = display.add_task("Choosing builds", total=None, files="")
        self._files = self._of = self._size = self._stored = 0
        self._guard = threading.Lock()

    def start(self, files: int, size: int) -> None:
        """Add files to download, and their bytes."""
        with self._guard:
            self._of += files
            self._size += size
            self._display.update(self._task, description=self._name, total=self._size)
        self.arrived(0, 0)

    def arrived(self, files: int, size: int) -> None:
        """Add what has arrived."""
        with self._guard:
            self._files += files
            self._display.update(self._task, advance=size, files=self._text())

    def stored(self, size: int) -> None:
        """Add the bytes of an archive that was sent on."""
        with self._guard:
            self._stored += size
            self._display.update(self._task, files=self._text())

    def _text(self) -> str:
        sent = f", {format_size(self._stored)} sent" if self._stored else ""
        return f"{self._files}/{self._of} files{sent}"
