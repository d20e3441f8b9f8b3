"""The interface of what `CachedSource` asks: a Hub, or a mirror."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

from kernels.errors import RequestError

if TYPE_CHECKING:
    from kernels.cache.repo_store import RepoStore
    from kernels.models.snapshot import Heads, RepoFile, Snapshot
    from kernels.sources.http import Patience
    from kernels.sources.hub_responses import CommitInfo
    from kernels.trust.publishers import Publishers

__all__ = ["Remote"]


class Remote(Protocol):
    """Sends the requests of a `CachedSource`, which decides when one is needed and stores what it answers.

    A method raises `HubUnavailable` without an answer, and `Moved` where a repository has another name now.

    Attributes:
        endpoint: The URL, without a secret.
        key: What its answers are stored for.
        publishers: Says whether the publishers of the repositories are trusted.
    """

    endpoint: str
    key: str
    publishers: Publishers

    @property
    def name(self) -> str:
        """Its name in messages: `the Hub at https://…`."""
        ...

    @property
    def offline(self) -> bool:
        """Whether no request may be sent."""
        ...

    @property
    def connects(self) -> bool:
        """Whether its requests are sent over a network."""
        return not self.offline

    def origin(self, repo_id: str) -> str:
        """Where a repository is from: the URL of a Hub."""
        return self.endpoint

    def heads(self, repo_id: str, stored: Heads | None, patience: Patience) -> Heads:
        """The branches and tags of a repository.

        Args:
            repo_id: The repository.
            stored: What the cache has of the last answer.
            patience: The limits of retries.

        Raises:
            RepositoryNotFound: There is no such repository.
        """
        ...

    def repositories(self, publisher: str | None) -> Iterable[str]:
        """The repositories of a publisher, or all, in any order.

        Raises:
            RepositoryNotFound: There is no such publisher.
        """
        raise RequestError(f"{self.name} does not list its repositories; name them.")

    def revision(self, repo_id: str, revision: str) -> CommitInfo | None:
        """The commit of any revision; None if there is none.

        Args:
            repo_id: The repository.
            revision: A branch, tag, commit, part of a commit, or pull request.
        """
        ...

    def snapshot(self, repo_id: str, commit: str, patience: Patience) -> Snapshot:
        """The files of a commit.

        Raises:
            RepositoryNotFound, RevisionNotFound: There is no such repository, or no such commit.
            InvalidRepository: It has too many files, or files that cannot be written safely.
        """
        ...

    def content(self, snapshot: Snapshot, file: RepoFile) -> bytes | None:
        """The content of a small file, checked against its listing; None if it comes only with its whole build."""
        ...

    def single_files(self, repo_id: str, files: Iterable[RepoFile]) -> list[RepoFile]:
        """Those files that are certainly requested one by one, as a Hub gives them."""
        return []

    def file_content(self, snapshot: Snapshot, file: RepoFile) -> bytes:
        """The content of a small one of `single_files`, checked against its listing."""
        raise RequestError(f"{self.name} gives no files one by one.")

    def send_early(self, snapshot: Snapshot, files: Iterable[RepoFile]) -> ExitStack | None:
        """Send the requests that `content` and `download` send first for some of `single_files`, in this order.

        Those methods take the answers over, whose bodies are not read before.
        """
        return None

    def download(self, store: RepoStore, snapshot: Snapshot, variant: str, files: list[RepoFile]) -> None:
        """Put files of a build into the cache, each checked against its listing.

        Raises:
            StoreError: The cache cannot be written.
        """
        ...

    # What only a mirror knows

    def known_snapshot(self, repo_id: str, commit: str) -> Snapshot | None:
        """A listing that an answer of this process has already given."""
        return None

    def may_grow(self, snapshot: Snapshot) -> bool:
        """Whether a stored listing of a commit may lack builds that are there now."""
        return False

    @property
    def asks_publishers(self) -> bool:
        """Whether a question about a publisher is a request of its own; a mirror's index has the answer."""
        return True
