"""The bytes of an archive: in one request, or in parts that arrive side by side; a break is resumed where it was."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager

from kernels.errors import HubUnavailable
from kernels.mirror.stores.base import ReadStore
from kernels.models.mirror import MirrorArchive
from kernels.support.logs import logger
from kernels.support.tasks import check_cancelled, pause, results_ahead

__all__ = ["archive_chunks"]

_log = logger(__name__)

#: Archives larger than this arrive in parts. Measured: docs/mirror-archives.md, "Speed".
_WHOLE_BYTES = 16 * 1024 * 1024

#: Bytes of a part. Four of them are in memory at most.
_PART_BYTES = 8 * 1024 * 1024
_AT_ONCE = 4

#: Bytes of the first part where nobody knows yet whether the store gives parts: one without ranges sends them twice.
_FIRST_BYTES = 1024 * 1024

#: Breaks in a row, each with less than a megabyte after the one before, until the store is given up.
_BREAKS = 5
_ADVANCE = 1024 * 1024

#: Seconds before the second of such tries; it doubles up to 8.
_WAIT = 0.5


@contextmanager
def archive_chunks(store: ReadStore, archive: MirrorArchive) -> Iterator[Iterator[bytes]]:
    """The bytes of an archive, as they arrive.

    Args:
        store: The store that has it.
        archive: The archive.

    Yields:
        Its bytes in order, in pieces. They are not checked. Requests that still run when the block ends are cancelled.

    Raises:
        EntryNotFound: The store does not have it.
        HubUnavailable: No answer, or breaks without progress.
    """
    whole = archive.size <= _WHOLE_BYTES
    with closing(_resumed(store, archive, 0, archive.size) if whole else _in_parts(store, archive)) as pieces:
        yield pieces


def _in_parts(store: ReadStore, archive: MirrorArchive) -> Generator[bytes, None, None]:
    start = 0
    if not store.parallel:
        start = _FIRST_BYTES
        yield from _resumed(store, archive, 0, start)  # a web server's answer says whether it knows ranges
        if not store.parallel:
            yield from _resumed(store, archive, start, archive.size)
            return
    with results_ahead(
        lambda start: list(_resumed(store, archive, start, min(start + _PART_BYTES, archive.size))),
        range(start, archive.size, _PART_BYTES),
        at_once=_AT_ONCE,
        name="archive",
    ) as parts:
        for part in parts:
            yield from part


def _resumed(store: ReadStore, archive: MirrorArchive, start: int, stop: int) -> Generator[bytes, None, None]:
    """The bytes from `start` to before `stop`."""
    breaks, resumed_at = 0, start
    while start < stop:
        with store.stream(archive.name, archive.size, start, stop) as pieces:
            try:
                for piece in pieces:
                    check_cancelled()
                    start += len(piece)
                    yield piece
                if start < stop:
                    raise HubUnavailable(f"{store.url}: {archive.name} ended after {start} of {stop} bytes.")
            except HubUnavailable as error:
                if start - resumed_at >= _ADVANCE:
                    breaks = 0
                breaks += 1
                if breaks >= _BREAKS:
                    raise
                _log.debug("%s: %s broke off at byte %d: %s", store.url, archive.name, start, error)
        if start < stop:
            resumed_at = start
            pause(min(_WAIT * 2 ** (breaks - 1), 8.0) * random.uniform(0.5, 1.0))
