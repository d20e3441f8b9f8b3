"""The interface of a source of kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kernels.errors import DigestMismatch, InvalidRepository, RequestError
from kernels.models.snapshot import Heads
from kernels.sources.hub_errors import Moved

if TYPE_CHECKING:
    from kernels.models.requirement import Requirement
    from kernels.models.snapshot import RepoFile, Snapshot
    from kernels.settings import Verify
    from kernels.sources.ahead import Ahead
    from kernels.trust.content import BuildContent
    from kernels.trust.publishers import Publishers

__all__ = ["Moved", "Source"]


class Source(ABC):
    """A place that kernels come from: a Hub, a folder of repositories, or one folder of the user.

    Every method may raise the errors of `kernels.errors`. A method that is not abstract has the answer of a plain
    folder, which has no branches and downloads nothing.

    Attributes:
        endpoint: The URL of the Hub; None for a folder.
        publishers: Says whether the publishers of the repositories are trusted; None for a folder of the user, which
            is always trusted.
        verify: When the content of builds is checked.
    """

    endpoint: str | None
    publishers: Publishers | None
    verify: Verify

    @property
    @abstractmethod
    def name(self) -> str:
        """The source's name in messages: `the Hub at https://…`, `the folder /mirror`."""

    @property
    def user_owned(self) -> bool:
        """Whether this is a folder of the user: it needs no trusted publisher, signature or lock."""
        return self.publishers is None

    @property
    def offline(self) -> bool:
        """Whether nothing can be downloaded."""
        return True

    @property
    def connects(self) -> bool:
        """Whether a network is used: not while offline, nor for a mirror in a folder."""
        return not self.offline

    @property
    def asks_publishers(self) -> bool:
        """Whether a question about a publisher is a request of its own; else the files of a commit come with it."""
        return False

    @property
    def named_build(self) -> str | None:
        """The one build that the user named by its folder; None where builds are to be chosen among."""
        return None

    # What there is

    def origin(self, repo_id: str) -> str:
        """Where a repository is from, as a mirror of this source records it: the URL of a Hub."""
        return self.endpoint or self.name

    def repositories(self, publisher: str | None = None) -> Iterable[str]:
        """The repositories of a publisher, or all, as far as the source lists them.

        Raises:
            RequestError: It lists none.
        """
        raise RequestError(f"{self.name} does not list its repositories; name them.")

    def heads(self, repo_id: str) -> Heads:
        """The branches and tags of a repository."""
        return Heads({})

    def find_commit(self, repo_id: str, revision: str) -> str | None:
        """The commit of a revision that is neither a branch nor a tag: a pull request, a shortened commit."""
        return None

    def commit_date(self, repo_id: str, commit: str) -> str | None:
        """When a commit was made, in ISO 8601; None where the source does not know."""
        return None

    @abstractmethod
    def snapshot(self, requirement: Requirement, commit: str) -> Snapshot:
        """The repository at a commit, with its files."""

    @abstractmethod
    def read(self, snapshot: Snapshot, file: RepoFile, limit: int) -> bytes:
        """The content of a small file, checked against its listing; at most `limit` bytes."""

    def listed_again(self, snapshot: Snapshot) -> Snapshot | None:
        """The snapshot as it is listed now, if a stored listing may lack builds; None if nothing was asked."""
        return None

    # Builds on disk

    @abstractmethod
    def on_disk(self, snapshot: Snapshot, variant: str) -> Path | None:
        """The folder of a build that is complete on disk; None where `fetch` has to download files.

        Raises:
            DigestMismatch: Files of the build are not as listed, and nothing may be downloaded.
            InvalidRepository: A link in it leads out of the cache.
        """

    def has(self, snapshot: Snapshot, variant: str) -> bool:
        """Whether a build is on disk. One that was changed there counts: it is refused where it is used."""
        try:
            return self.on_disk(snapshot, variant) is not None
        except (DigestMismatch, InvalidRepository):
            return True

    @abstractmethod
    def fetch(self, snapshot: Snapshot, variant: str) -> Path:
        """The folder of a build on disk, complete; what is missing is downloaded."""

    def prefetch(self, snapshot: Snapshot, variant: str, read: Collection[str]) -> Ahead | None:
        """Download files of a build that will probably be fetched, until they could be written.

        Args:
            snapshot: The snapshot, of a trusted publisher.
            variant: The build.
            read: The paths of the files that are read meanwhile.

        Returns:
            What is downloaded: `fetch` takes it over, and the caller drops it if the build is not fetched. None where
            there is nothing to request, or another process does it.
        """
        return None

    @abstractmethod
    def repair(self, snapshot: Snapshot, variant: str, content: BuildContent) -> None:
        """Compare the content of a build's files with the listing, and download those that differ again.

        Args:
            snapshot: The snapshot.
            variant: The build.
            content: Its files on disk.

        Raises:
            DigestMismatch: Files differ, and cannot be downloaded.
        """

    @abstractmethod
    def link_boundary(self, snapshot: Snapshot) -> Path | None:
        """The folder that no link in a build may leave; None where links may lead anywhere."""

    @abstractmethod
    def check_record(self, snapshot: Snapshot, variant: str) -> Path | None:
        """The file that records the checks of a build; None where no record is kept."""

    @abstractmethod
    def advice(self, repo_id: str, target: str) -> str:
        """How to get a build that is not on disk and cannot be downloaded, as a sentence."""
