"""What a Hub is asked: its branches, listings, files, publishers and repositories."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote, urlencode

from kernels.cache.records import Answer
from kernels.errors import HubUnavailable, InvalidRepository, RepositoryNotFound
from kernels.models.requirement import is_repo_id
from kernels.models.snapshot import MAX_FILES, RepoFile, Snapshot
from kernels.sources.http import Http, OtherKind, Patience
from kernels.sources.hub_errors import HubRefused, Moved, no_answer, not_found
from kernels.sources.hub_responses import (
    HISTORY_PAGE,
    PUBLISHER,
    REFS,
    REPOSITORIES_PAGE,
    REVISION,
    TREE_PAGE,
    CommitInfo,
    listed_files,
    named_commits,
)

if TYPE_CHECKING:
    from kernels.cache.store import RepoStore
    from kernels.sources.download import Gate

__all__ = ["HubApi"]

#: Commits of a page of a history, and entries of a page of repositories: the most that the public Hub gives.
_PAGE = 1000

#: Characters of all names in a listing: 250,000 names of 250.
_MAX_NAMES = 64 * 2**20

#: The most repositories of a Hub: a Hub that lists more does not end.
_MAX_REPOSITORIES = 1_000_000


class HubApi:
    """The questions to one Hub, as `sources/api.py` describes them.

    Args:
        client: Sends the requests.

    Attributes:
        endpoint: The Hub's URL.
        key: The same: what its answers are stored for.
    """

    kind: Literal["hub"] = "hub"
    connects = True

    def __init__(self, client: Http) -> None:
        self.endpoint = self.key = client.endpoint
        self._client = client

    @property
    def name(self) -> str:
        """`the Hub at https://…`."""
        return f"the Hub at {self.endpoint}"

    @property
    def offline(self) -> bool:
        """Whether no request may be sent."""
        return self._client.offline

    def heads(self, repo_id: str, last: Answer | None, patience: Patience) -> Answer:
        """The branches and tags of a repository."""
        try:
            answer = self._client.json(f"/api/kernels/{repo_id}/refs", patience, REFS)
        except HubRefused as error:
            if not error.repository_missing:
                raise no_answer(self.endpoint, repo_id, error) from error
            missing = not_found(self.endpoint, repo_id, error)
            if self._client.may_be_mirror and not error.code:
                advice = f"If it is a mirror, add the repository with `kernels mirror … --repo {repo_id}`."
                missing = missing.reworded(f"{missing} {advice}")
            raise missing from error
        return Answer(
            kind="hub",
            endpoint=self.endpoint,
            time=time.time(),
            branches=named_commits(answer.branches),
            tags=named_commits(answer.tags),
        )

    def files(
        self, repo_id: str, commit: str, last: Answer | None, patience: Patience
    ) -> tuple[Snapshot, Answer | None]:
        """The files of a commit."""
        files: list[RepoFile] = []
        entries = names = 0
        try:
            path = f"/api/kernels/{repo_id}/tree/{commit}?recursive=true&expand=false"
            for page in self._client.listing(path, patience, TREE_PAGE):
                entries += len(page)
                names += sum(len(entry.path) for entry in page)
                files += listed_files(page)
                if entries > 2 * MAX_FILES or len(files) > MAX_FILES:
                    raise InvalidRepository(
                        f"{repo_id} lists more than {MAX_FILES} files; a kernel repository has fewer."
                    )
                if names > _MAX_NAMES:
                    raise InvalidRepository(
                        f"{repo_id} lists names of more than {_MAX_NAMES} characters, the most that are read."
                    )
        except HubRefused as error:
            if not error.repository_missing and not error.revision_missing:
                raise no_answer(self.endpoint, repo_id, error) from error
            raise not_found(self.endpoint, repo_id, error, commit) from error
        return Snapshot(repo_id, commit, tuple(files)), None

    def known(self, repo_id: str, commit: str) -> None:
        """None: each listing is an answer of its own."""

    def revision(self, repo_id: str, revision: str, patience: Patience) -> CommitInfo | None:
        """The commit of any revision; None if there is none."""
        try:
            return self._client.json(f"/api/kernels/{repo_id}/revision/{quote(revision, safe='')}", patience, REVISION)
        except HubRefused as refusal:
            if refusal.access_refused:
                raise no_answer(self.endpoint, f"{revision} of {repo_id}", refusal) from refusal
        except Moved:
            pass
        return None

    def history(self, repo_id: str, revision: str) -> Iterator[list[str]]:
        """The commits that a branch or tag leads to, the newest first, in pages; none if it is gone."""
        path = f"/api/kernels/{repo_id}/commits/{quote(revision, safe='')}?limit={_PAGE}"
        try:
            for page in self._client.listing(path, Patience(), HISTORY_PAGE):
                yield [each.id for each in page]
        except HubRefused as error:
            if not error.revision_missing:
                raise no_answer(self.endpoint, f"the history of {repo_id}", error) from error

    def trusts(self, publisher: str, patience: Patience) -> bool:
        """Whether a publisher is marked as trusted."""
        try:
            answer = self._client.json(f"/api/organizations/{quote(publisher)}/overview", patience, PUBLISHER)
        except HubRefused as error:
            if error.status == 404:
                return False  # a user's account, or none
            raise no_answer(self.endpoint, publisher, error) from error
        if (answer.name or publisher).lower() != publisher.lower():
            return False  # an answer about another publisher
        return answer.trusted_kernel_publisher is True

    def repositories(self, publisher: str | None) -> Iterator[str]:
        """The kernel repositories of a publisher, or all, each once."""
        query = {"limit": str(_PAGE), **({} if publisher is None else {"author": publisher})}
        found: set[str] = set()
        try:
            for page in self._client.listing(f"/api/kernels?{urlencode(query)}", Patience(), REPOSITORIES_PAGE):
                for entry in page:
                    # A Hub that does not know the parameter lists all repositories.
                    wanted = publisher in (None, entry.id.partition("/")[0])
                    if is_repo_id(entry.id) and wanted and entry.id not in found:
                        found.add(entry.id)
                        yield entry.id
                if len(found) > _MAX_REPOSITORIES:
                    raise HubUnavailable(f"{self.endpoint} lists more than {_MAX_REPOSITORIES} repositories.")
        except (HubRefused, Moved) as error:
            if isinstance(error, HubRefused) and error.status != 404:
                raise no_answer(self.endpoint, publisher or "its repositories", error) from error
            message = f"{self.endpoint} does not list its kernel repositories; name them."
            if self._client.may_be_mirror:
                raise OtherKind(message) from error
            raise HubUnavailable(message) from error
        if publisher is not None and not found:
            raise RepositoryNotFound(f"The Hub at {self.endpoint} lists no kernel repository of {publisher!r}.")

    # Files

    def content(self, snapshot: Snapshot, file: RepoFile) -> bytes:
        """The content of a small file, checked against its listing."""
        from kernels.sources.download import resolve_path

        try:
            return self._client.content(resolve_path(snapshot, file), file)
        except HubRefused as error:
            if not error.repository_missing:
                raise no_answer(self.endpoint, f"{file.path} of {snapshot.repo_id}", error) from error
            raise not_found(self.endpoint, snapshot.repo_id, error) from error

    def download(
        self, store: RepoStore, snapshot: Snapshot, variant: str, files: list[RepoFile], gate: Gate | None = None
    ) -> None:
        """Put files of a build into the cache, each checked against its listing."""
        from kernels.sources.download import download

        download(self._client, store, snapshot, files, gate)
