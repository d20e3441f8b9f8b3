"""The builds that a call will probably use, by their names: they are downloaded while metadata is read.

That saves a round trip. Only builds of trusted publishers are requested, nothing of them is on disk before the plan is
complete (`sources/download.py`), and a build that is not used is dropped.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING

from kernels.models.snapshot import BUILD_FOLDER, BUNDLE_FILE, METADATA_FILE
from kernels.resolver.metadata_of import metadata_bytes

if TYPE_CHECKING:
    from kernels.resolver.found import FoundSnapshot, SnapshotKey
    from kernels.sources.ahead import Ahead

__all__ = ["LikelyBuilds"]

#: The most builds of a snapshot that are requested before the one to use is known: usually the first suits.
_MOST = 2

#: The most snapshots of which builds are requested; kernels depend on a few others.
_MOST_SNAPSHOTS = 8


class LikelyBuilds:
    """The builds of one call that are requested before it is known that they are used.

    At the end of the block, those that were not fetched are dropped.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()  # kernels that are planned side by side may have one build
        self._begun: dict[SnapshotKey, dict[str, Ahead | None]] = {}
        self._ended = False

    def expect(self, found: FoundSnapshot, variant: str, *, signed: bool) -> None:
        """Request the files of the build that is now the likeliest of a snapshot; drop those of another one.

        Args:
            found: The snapshot, of a trusted publisher.
            variant: The build.
            signed: Whether its signature is read as well.
        """
        self.settle(found, variant)
        with self._guard:
            if self._ended or (found.key not in self._begun and len(self._begun) >= _MOST_SNAPSHOTS):
                return
            begun = self._begun.setdefault(found.key, {})
            if variant in begun or len(begun) == _MOST or not metadata_bytes(found.snapshot, variant):
                return
            begun[variant] = None
        names = (METADATA_FILE, BUNDLE_FILE) if signed else (METADATA_FILE,)
        read = [f"{BUILD_FOLDER}/{variant}/{name}" for name in names]
        ahead = found.source.prefetch(found.snapshot, variant, read)
        with self._guard:
            begun[variant] = ahead
        self._drop_if_ended()

    def settle(self, found: FoundSnapshot, variant: str | None) -> None:
        """Drop what was requested of a snapshot, but for the build to use, if any."""
        with self._guard:
            begun = list(self._begun.get(found.key, {}).items())
        for name, ahead in begun:
            if name != variant and ahead is not None:
                ahead.drop()

    def __enter__(self) -> LikelyBuilds:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended = True
        self._drop_if_ended()

    def _drop_if_ended(self) -> None:
        with self._guard:  # also what a thread began while the call ended
            begun = [ahead for each in self._begun.values() for ahead in each.values()] if self._ended else []
        for ahead in begun:
            if ahead is not None:
                ahead.drop()
