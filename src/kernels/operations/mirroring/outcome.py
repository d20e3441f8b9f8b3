"""What a run finds: the commits that the mirror has, what could not be taken, and what was left out."""

from __future__ import annotations

import threading
from dataclasses import replace

from kernels.operations.download_plan import DownloadFailure
from kernels.operations.mirroring.request import LeftOut, MirroredCommit

__all__ = ["MirrorOutcome"]


class MirrorOutcome:
    """What a run has found so far.

    Attributes:
        failures: What could not be taken.
        left_out: What was not taken, which is no failure.
    """

    def __init__(self) -> None:
        self.failures: list[DownloadFailure] = []
        self.left_out: list[LeftOut] = []
        self._guard = threading.Lock()
        self._commits: dict[tuple[str, str], MirroredCommit] = {}

    @property
    def commits(self) -> tuple[MirroredCommit, ...]:
        """The commits, sorted."""
        return tuple(self._commits[key] for key in sorted(self._commits))

    def add(self, found: MirroredCommit) -> None:
        """Add what was found of a commit, from any thread; several choices may lead to it."""
        key = (found.repo_id, found.commit)
        with self._guard:
            known = self._commits.get(key)
            if known is None:
                self._commits[key] = found
                return
            builds = {each.variant: each for each in (*found.builds, *known.builds)}  # new in this run stays new
            self._commits[key] = replace(
                found,
                names=tuple(sorted({*known.names, *found.names})),
                builds=tuple(builds[variant] for variant in sorted(builds)),
                changed=known.changed or found.changed,
            )
