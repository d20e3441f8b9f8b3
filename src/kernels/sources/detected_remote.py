"""The requests to a URL of which nobody knows beforehand whether a Hub or a mirror answers.

A mirror's documents lie where a Hub answers the first request: about a repository, or about a commit. So the first
answer tells which of them it is, and neither needs a request more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kernels import settings
from kernels.cache.repo_store import RepoStore
from kernels.errors import HubUnavailable, InvalidRepository, KernelsError, RepositoryNotFound, UntrustedSignature
from kernels.sources.base import Moved
from kernels.sources.http import BRIEF, Http, MirrorAnswer, Patience
from kernels.sources.hub_errors import NAME_ADVICE, HubRefused, of_hub
from kernels.sources.hub_remote import HubRemote
from kernels.sources.remote import Remote
from kernels.sources.session_cache import memory_of
from kernels.trust.publishers import PublisherTrust

if TYPE_CHECKING:
    from kernels.models.snapshot import Heads, RepoFile, Snapshot
    from kernels.sources.hub_responses import CommitInfo
    from kernels.sources.mirror_remote import MirrorRemote
    from kernels.trust.publishers import Publishers

__all__ = ["DetectedRemote"]

_T = TypeVar("_T")


class DetectedRemote(Remote):
    """The wire of a Hub or a mirror, whichever answers.

    Args:
        client: Sends the requests; it knows that an answer may be a mirror's.
        cache: The cache's folder.
        offline: Send no request.
    """

    def __init__(self, client: Http, cache: Path, *, offline: bool = False) -> None:
        self.endpoint = client.endpoint
        self.key = _key(client.endpoint)
        self._client = client
        self._cache = cache
        self._offline = offline
        self._memory = memory_of(self.key, cache)
        self._hub = HubRemote(client, cache)
        self._mirror: MirrorRemote | None = None
        self._guess: HubRemote | MirrorRemote | None = None  # what the cache says
        self.publishers: Publishers = DetectedPublishers(self)

    @property
    def name(self) -> str:
        """The name of what answered."""
        found = self._guess if self._memory.kind is None else self.found
        return f"the Hub or mirror at {self.endpoint}" if found is None else found.name

    @property
    def offline(self) -> bool:
        """Whether no request may be sent."""
        return self._client.offline

    @property
    def hub(self) -> HubRemote:
        """The wire, if it is a Hub."""
        return self._hub

    @property
    def mirror(self) -> MirrorRemote:
        """The wire, if it is a mirror."""
        if self._mirror is None:
            from kernels.sources.http_store import HttpStore
            from kernels.sources.mirror_remote import MirrorRemote, MirrorStores

            stores = MirrorStores(HttpStore(self._client), HttpStore(self._client, BRIEF))
            self._mirror = MirrorRemote(stores, self._cache, offline=self._offline)
        return self._mirror

    @property
    def found(self) -> HubRemote | MirrorRemote:
        """The wire of what answered; that of a Hub before."""
        return self.mirror if self._memory.kind == "mirror" else self._hub

    def origin(self, repo_id: str) -> str:
        """Where a repository is from: the URL of a Hub."""
        return self.likely(repo_id).origin(repo_id)

    def heads(self, repo_id: str, stored: Heads | None, patience: Patience) -> Heads:
        """The branches and tags of a repository."""
        if self._memory.kind is not None:
            return self.found.heads(repo_id, stored, patience)
        if self.known_mirror(repo_id):
            # A conditional request. What is not this mirror's document is asked for again as of anything else.
            with suppress(InvalidRepository, RepositoryNotFound):
                return self.mirror.heads(repo_id, stored, patience)
        return self._detect(
            repo_id,
            lambda: self._hub.heads(repo_id, stored, patience),
            lambda found: self.mirror.accept_index(repo_id, found.document),
        )

    def snapshot(self, repo_id: str, commit: str, patience: Patience) -> Snapshot:
        """The files of a commit."""
        if self._memory.kind is not None:
            return self.found.snapshot(repo_id, commit, patience)

        def accept(answer: MirrorAnswer) -> Snapshot:
            self.mirror.accept_commit(repo_id, commit, answer.document)
            return self.mirror.snapshot(repo_id, commit, patience)

        return self._detect(repo_id, lambda: self._hub.snapshot(repo_id, commit, patience), accept, commit)

    def repositories(self, publisher: str | None) -> Iterable[str]:
        """The repositories of a publisher, or all."""
        if self._memory.kind is None:
            with suppress(HubUnavailable):  # a Hub may answer with a page
                self._has_mirror_file()
        return self.found.repositories(publisher)

    def revision(self, repo_id: str, revision: str) -> CommitInfo | None:
        """The commit of any revision; None if there is none."""
        return self.likely(repo_id).revision(repo_id, revision)

    def content(self, snapshot: Snapshot, file: RepoFile) -> bytes | None:
        """The content of a small file, checked against its listing; None if it comes only with its whole build."""
        return self.asked(snapshot.repo_id).content(snapshot, file)

    def single_files(self, repo_id: str, files: Iterable[RepoFile]) -> list[RepoFile]:
        """The files, if a Hub answered, now or when the cache was filled."""
        is_hub = self.likely(repo_id) is self._hub and (self._memory.kind == "hub" or self._guess is self._hub)
        return self._hub.single_files(repo_id, files) if is_hub else []

    def file_content(self, snapshot: Snapshot, file: RepoFile) -> bytes:
        """The content of a small file of a build on a Hub, checked against its listing."""
        return self._hub.file_content(snapshot, file)

    def send_early(self, snapshot: Snapshot, files: Iterable[RepoFile]) -> ExitStack | None:
        """Send the first requests for files on a Hub; their downloads take the answers over."""
        return self._hub.send_early(snapshot, files)

    def download(self, store: RepoStore, snapshot: Snapshot, variant: str, files: list[RepoFile]) -> None:
        """Put files of a build into the cache, each checked against its listing."""
        self.asked(snapshot.repo_id).download(store, snapshot, variant, files)

    def known_snapshot(self, repo_id: str, commit: str) -> Snapshot | None:
        """A listing that an answer of this process has already given."""
        return self.found.known_snapshot(repo_id, commit)

    def may_grow(self, snapshot: Snapshot) -> bool:
        """Whether a stored listing of a commit may lack builds that are there now."""
        return self.likely(snapshot.repo_id).may_grow(snapshot)

    @property
    def asks_publishers(self) -> bool:
        """Whether a Hub has answered."""
        return self._memory.kind == "hub"

    # Which of the two it is

    def likely(self, repo_id: str) -> HubRemote | MirrorRemote:
        """The wire of what answered, or of what the cache says; that of a Hub if nothing is known."""
        if self._memory.kind is None and (self.known_mirror(repo_id) or settings.mirror_keys()):
            self._guess = self.mirror
        elif self._memory.kind is None and self._known(repo_id):
            self._guess = self._hub
        return self.found if self._memory.kind is not None or self._guess is None else self._guess

    def asked(self, repo_id: str) -> HubRemote | MirrorRemote:
        """The wire of what answers; where nothing is known, a repository is asked for.

        As for the branches, the wait is short if the cache may do instead, or nobody answered recently.
        """
        if self._memory.kind is None and not self.offline and not self._known(repo_id):
            cached = self._store(repo_id).folder.exists()
            with suppress(Moved), self._memory.lock(repo_id):
                try:
                    self.heads(repo_id, None, BRIEF if cached or self._memory.resting() else Patience())
                except HubUnavailable as error:
                    self._memory.rest(error)
                    raise
        return self.likely(repo_id)

    def resting(self) -> bool:
        """Whether nobody answered recently."""
        return self._memory.resting()

    def known_mirror(self, repo_id: str) -> bool:
        """Whether the cache has an answer of a mirror about a repository."""
        return self._store(repo_id).mirror(self.key) is not None

    def _known(self, repo_id: str) -> bool:
        """Whether the cache has an answer of either."""
        heads = self._store(repo_id).heads(self.key) is not None
        return heads or self._hub.publishers.knows(repo_id) or self.known_mirror(repo_id)

    def _store(self, repo_id: str) -> RepoStore:
        return RepoStore(self._cache, repo_id)

    def _detect(
        self, repo_id: str, ask: Callable[[], _T], accept: Callable[[MirrorAnswer], _T], commit: str | None = None
    ) -> _T:
        """The answer to a Hub's request, or what a mirror's document in its place says."""
        try:
            answer = ask()
        except MirrorAnswer as found:
            return accept(found)
        except Moved:
            self._settle_hub()
            raise
        except RepositoryNotFound as error:
            raise self._unknown(repo_id, error, commit) from error.__cause__
        self._settle_hub()
        self._store(repo_id).drop_mirror(self.key)  # a mirror was there before
        return answer

    def _settle_hub(self) -> None:
        """Record that a Hub answers.

        Raises:
            UntrustedSignature: Every mirror must be signed: who answers in the place of one could as well be a Hub.
        """
        if settings.mirror_keys():
            raise UntrustedSignature(
                f"{self.endpoint} answers as a Hub, and KERNELS_MIRROR_KEYS requires a signed mirror there. If it is a "
                "Hub, name it in HF_ENDPOINT, and `hub` in KERNELS_HUB. Nothing was downloaded."
            )
        self._memory.kind = "hub"

    def _unknown(self, repo_id: str, error: RepositoryNotFound, commit: str | None) -> KernelsError:
        """The error for a repository, or a commit, that a URL does not have, of which nobody knows what it is."""
        refusal = error.__cause__
        if not isinstance(refusal, HubRefused) or refusal.code or refusal.status != 404:
            return error  # a Hub's answer
        try:
            if self._has_mirror_file():
                mirror = self.mirror
                return mirror.no_repository(repo_id) if commit is None else mirror.no_commit(repo_id, commit)
        except HubUnavailable:
            return error
        missing = RepositoryNotFound(
            f"{self.endpoint} has no repository {repo_id}. Its answer is not that of a Hub, and it has no "
            f"mirror.json, as a mirror has: check its URL.{NAME_ADVICE} "
            f"({settings.token_source(self.endpoint).partition(',')[0]})."
        )
        return of_hub(missing, refusal)

    def _has_mirror_file(self) -> bool:
        """Whether a mirror's own index is there: a request that only errors, and what is rare, are worth."""
        from kernels.mirror.stores.base import EntryNotFound
        from kernels.models.mirror import MIRROR_FILE
        from kernels.models.mirror_form import MAX_DOCUMENT_BYTES, is_mirror_document
        from kernels.sources.http_store import HttpStore

        try:
            found = HttpStore(self._client, BRIEF).read(MIRROR_FILE, MAX_DOCUMENT_BYTES)
        except EntryNotFound:
            return False
        there = found is not None and is_mirror_document(found.content)
        if there:
            self._memory.kind = "mirror"
        return there


class DetectedPublishers:
    """The publishers of a Hub or a mirror, whichever answers.

    Args:
        remote: The wire.
    """

    def __init__(self, remote: DetectedRemote) -> None:
        self._remote = remote
        self._problems: dict[str, str] = {}

    @property
    def authority(self) -> str:
        """The name of what answered."""
        return self._remote.name

    def trust(self, repo_id: str) -> PublisherTrust:
        """What is known of a repository's publisher."""
        try:
            if self._remote.resting():
                return self._remote.likely(repo_id).publishers.trust(repo_id)
            return self._remote.asked(repo_id).publishers.trust(repo_id)
        except (HubUnavailable, RepositoryNotFound) as error:
            self._problems[repo_id] = str(error)
            return PublisherTrust.UNKNOWN

    def problem(self, repo_id: str) -> str | None:
        """Why nothing is known of a repository's publisher, a sentence; None where something is."""
        return self._problems.get(repo_id) or self._remote.likely(repo_id).publishers.problem(repo_id)

    def publishes(self, repo_id: str, commit: str) -> bool:
        """Whether a branch or tag leads to a commit."""
        return self._remote.likely(repo_id).publishers.publishes(repo_id, commit)

    def may_use_cached(self, snapshot: Snapshot) -> bool:
        """Whether the cached files of a snapshot may be loaded although nothing is known of its publisher."""
        return self._remote.likely(snapshot.repo_id).publishers.may_use_cached(snapshot)

    def remember_allowed(self, snapshot: Snapshot) -> None:
        """Record that the caller allowed a snapshot."""
        self._remote.likely(snapshot.repo_id).publishers.remember_allowed(snapshot)


def _key(endpoint: str) -> str:
    if not settings.mirror_keys():
        return endpoint
    from kernels.mirror.read_index import records_key

    return records_key(endpoint)
