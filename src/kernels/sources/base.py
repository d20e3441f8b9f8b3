"""What every source of kernels can be asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kernels.support.text import SafeText

if TYPE_CHECKING:
    from kernels.models.requirement import Requirement
    from kernels.models.snapshot import Heads, RepoFile, Snapshot
    from kernels.settings import Verify
    from kernels.trust.publishers import Publishers

__all__ = ["Moved", "Source"]


class Moved(SafeText):
    """A repository is now another one: to be asked for, and trusted or refused, on its own.

    Args:
        repo_id: What was asked for.
        destination: What there is instead.
    """

    def __init__(self, repo_id: str, destination: str) -> None:
        super().__init__(f"{repo_id} is now {destination}")
        self.repo_id = repo_id
        self.destination = destination


class Source(Protocol):
    """A place that kernels come from.

    A source answers for repositories by name; which of its answers are kept on disk is its own business. Every method
    may raise the errors of `kernels.errors` that say what could not be had and why.
    """

    @property
    def name(self) -> str:
        """What to call the source in a message: `the Hub at https://…`, `the folder /mirror`."""
        ...

    @property
    def verified(self) -> bool:
        """Whether what comes from here is the user's own choice and needs no publisher's verdict."""
        ...

    @property
    def publishers(self) -> Publishers | None:
        """Who answers for the publishers of its repositories; None where they are the user's own."""
        ...

    def heads(self, repo_id: str) -> Heads:
        """The branches and tags of a repository."""
        ...

    def look_up(self, repo_id: str, revision: str) -> str | None:
        """The commit of a revision that is neither a branch nor a tag: a pull request, a shortened commit."""
        ...

    def date(self, repo_id: str, commit: str) -> str | None:
        """When a commit was made, in ISO 8601, where the source knows."""
        ...

    def snapshot(self, requirement: Requirement, commit: str) -> Snapshot:
        """The repository at a commit, with its files."""
        ...

    def read(self, snapshot: Snapshot, file: RepoFile, limit: int) -> bytes:
        """The content of a small file, checked against its listing; `limit` bytes at most."""
        ...

    def is_local(self, snapshot: Snapshot, variant: str) -> bool:
        """Whether a build is complete on disk, so that nothing has to be downloaded for it."""
        ...

    def damaged(self, snapshot: Snapshot, variant: str) -> Sequence[str]:
        """The files of a build that is on disk which are not as large as listed, or lost; none where it is not here."""
        ...

    def advice(self, repo_id: str, target: str) -> str:
        """What to do for a build that is not here and cannot be downloaded, as a sentence."""
        ...

    def fetch(self, snapshot: Snapshot, variant: str) -> Path:
        """A build on disk, complete and as it was listed: its folder."""
        ...

    def boundary(self, snapshot: Snapshot) -> Path | None:
        """The folder that no link in a build may leave; None where links are the user's own."""
        ...

    @property
    def verify(self) -> Verify:
        """When the content of builds from here is checked."""
        ...

    def findings(self, snapshot: Snapshot, variant: str) -> Path | None:
        """Where to keep what was found of a build's files; None where nothing is kept."""
        ...

    def mend(self, snapshot: Snapshot, variant: str) -> None:
        """Compare the content of a build's files with the listing, and have those fetched again that are others."""
        ...
