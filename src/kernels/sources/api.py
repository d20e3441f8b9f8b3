"""The questions to a Hub or a mirror."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from kernels.cache.records import Answer
    from kernels.cache.store import RepoStore
    from kernels.models.snapshot import RepoFile, Snapshot
    from kernels.sources.download import Gate
    from kernels.sources.http import Patience
    from kernels.sources.hub_responses import CommitInfo

__all__ = ["Api"]


class Api(Protocol):
    """The questions to one Hub, or to one mirror. `sources/asked.py` decides when one is asked, and stores the answer.

    A method raises `HubUnavailable` without an answer, `OtherKind` where a mirror answers in the place of a Hub or the
    other way round, and `Moved` where a repository has another name now.
    """

    @property
    def kind(self) -> Literal["hub", "mirror"]:
        """Which of the two it is."""

    @property
    def endpoint(self) -> str:
        """The URL, without a secret."""

    @property
    def key(self) -> str:
        """What its answers are stored for: the URL, and the keys that must have signed them."""

    @property
    def name(self) -> str:
        """Its name in messages: `the Hub at https://…`."""

    @property
    def offline(self) -> bool:
        """Whether no question may be asked."""

    @property
    def connects(self) -> bool:
        """Whether a question is a request over a network: not to a mirror in a folder."""

    def heads(self, repo_id: str, last: Answer | None, patience: Patience) -> Answer:
        """The branches and tags of a repository.

        Args:
            repo_id: The repository.
            last: The last answer, which may still hold.
            patience: The limits of retries.

        Raises:
            RepositoryNotFound: There is no such repository.
        """

    def files(
        self, repo_id: str, commit: str, last: Answer | None, patience: Patience
    ) -> tuple[Snapshot, Answer | None]:
        """The files of a commit, and what the same answer says of the repository.

        Raises:
            RepositoryNotFound, RevisionNotFound: There is no such repository, or no such commit.
            InvalidRepository: It has too many files, or files that cannot be written safely.
        """

    def known(self, repo_id: str, commit: str) -> Snapshot | None:
        """The files of a commit, if another answer of this process had them."""

    def revision(self, repo_id: str, revision: str, patience: Patience) -> CommitInfo | None:
        """The commit of a branch, tag, commit, part of a commit, or pull request; None if there is none."""

    def repositories(self, publisher: str | None) -> Iterable[str]:
        """The repositories of a publisher, or all."""

    def content(self, snapshot: Snapshot, file: RepoFile) -> bytes | None:
        """The content of a small file, checked against its listing; None if it comes only with its whole build."""

    def download(
        self, store: RepoStore, snapshot: Snapshot, variant: str, files: list[RepoFile], gate: Gate | None = None
    ) -> None:
        """Put files of a build into the cache, each checked against its listing.

        Args:
            store: The repository in the cache.
            snapshot: The snapshot.
            variant: The build.
            files: Its files.
            gate: Waited for before anything is written.

        Raises:
            StoreError: The cache cannot be written.
        """
