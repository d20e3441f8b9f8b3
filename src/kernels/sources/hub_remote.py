"""The requests to a Hub: its branches, listings and files."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from kernels.errors import InvalidRepository
from kernels.models.snapshot import MAX_FILES, Heads, RepoFile, Snapshot
from kernels.sources.http import BRIEF, Http, Patience
from kernels.sources.hub_errors import HubRefused, Moved, no_answer, not_found
from kernels.sources.hub_publishers import HubPublishers
from kernels.sources.hub_responses import (
    HISTORY_PAGE,
    REFS,
    REVISION,
    TREE_PAGE,
    CommitInfo,
    listed_files,
    named_commits,
)
from kernels.sources.remote import Remote
from kernels.sources.session_cache import memory_of
from kernels.sources.wire import sent_early

if TYPE_CHECKING:
    from kernels.cache.repo_store import RepoStore

__all__ = ["HubRemote"]

#: Commits of a page of a history: the most that the public Hub gives.
_HISTORY_PAGE = 1000

#: Characters of all names in a listing: 250,000 names of 250.
_MAX_NAMES = 64 * 2**20


class HubRemote(Remote):
    """The wire of one Hub.

    Args:
        client: Sends the requests.
        cache: The cache's folder, where the verdicts on publishers are kept.
    """

    def __init__(self, client: Http, cache: Path) -> None:
        self.endpoint = self.key = client.endpoint
        self.publishers: HubPublishers = HubPublishers(self, client, cache)
        self._client = client
        self._memory = memory_of(client.endpoint, cache)

    @property
    def name(self) -> str:
        """`the Hub at https://…`."""
        return f"the Hub at {self.endpoint}"

    @property
    def offline(self) -> bool:
        """Whether no request may be sent."""
        return self._client.offline

    def heads(self, repo_id: str, stored: Heads | None, patience: Patience) -> Heads:
        """The branches and tags of a repository."""
        try:
            answer = self._client.json(f"/api/kernels/{repo_id}/refs", patience, REFS)
        except HubRefused as error:
            if not error.repository_missing:
                raise no_answer(self.endpoint, repo_id, error) from error
            raise not_found(self.endpoint, repo_id, error) from error
        self._memory.answered = True
        return Heads(named_commits(answer.branches), named_commits(answer.tags), time.time())

    def repositories(self, publisher: str | None) -> Iterator[str]:
        """The kernel repositories of a publisher, or all."""
        from kernels.sources.hub_listing import listed_repositories

        return listed_repositories(self._client, publisher)

    def revision(self, repo_id: str, revision: str) -> CommitInfo | None:
        """The commit of any revision; None if there is none."""
        try:
            return self._client.json(f"/api/kernels/{repo_id}/revision/{quote(revision, safe='')}", BRIEF, REVISION)
        except HubRefused as refusal:
            if refusal.access_refused:
                raise no_answer(self.endpoint, f"{revision} of {repo_id}", refusal) from refusal
        except Moved:
            pass
        return None

    def history(self, repo_id: str, revision: str) -> Iterator[list[str]]:
        """The commits that a branch or tag leads to, the newest first, in pages; none if it is gone.

        Args:
            repo_id: The repository.
            revision: The branch or tag.
        """
        path = f"/api/kernels/{repo_id}/commits/{quote(revision, safe='')}?limit={_HISTORY_PAGE}"
        try:
            for page in self._client.listing(path, Patience(), HISTORY_PAGE):
                yield [each.id for each in page]
        except HubRefused as error:
            if not error.revision_missing:
                raise no_answer(self.endpoint, f"the history of {repo_id}", error) from error

    def snapshot(self, repo_id: str, commit: str, patience: Patience) -> Snapshot:
        """The files of a commit."""
        path = f"/api/kernels/{repo_id}/tree/{commit}?recursive=true&expand=false"
        files: list[RepoFile] = []
        entries = names = 0
        try:
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
        self._memory.answered = True
        return Snapshot(repo_id, commit, tuple(files))

    def content(self, snapshot: Snapshot, file: RepoFile) -> bytes:
        """The content of a small file, checked against its listing."""
        from kernels.sources.download import resolve_path

        try:
            content = self._client.content(resolve_path(snapshot, file), file, Patience())
        except HubRefused as error:
            if not error.repository_missing:
                raise no_answer(self.endpoint, f"{file.path} of {snapshot.repo_id}", error) from error
            raise not_found(self.endpoint, snapshot.repo_id, error) from error
        self._memory.answered = True
        return content

    def single_files(self, repo_id: str, files: Iterable[RepoFile]) -> list[RepoFile]:
        """All files."""
        return list(files)

    def file_content(self, snapshot: Snapshot, file: RepoFile) -> bytes:
        """The content of a small file of a build, checked against its listing."""
        from kernels.sources.download import small_content

        return small_content(self._client, snapshot, file)

    def send_early(self, snapshot: Snapshot, files: Iterable[RepoFile]) -> ExitStack | None:
        """Send the first requests for files; their downloads take the answers over."""
        from kernels.sources.download import first_request_of

        opened = ExitStack()
        opened.enter_context(sent_early([first_request_of(self._client, snapshot, file) for file in files]))
        return opened

    def download(self, store: RepoStore, snapshot: Snapshot, variant: str, files: list[RepoFile]) -> None:
        """Put files of a build into the cache, each checked against its listing."""
        from kernels.sources.download import download

        download(self._client, store, snapshot, files)
