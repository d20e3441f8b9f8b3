"""What a Hub or a mirror is asked about repositories, and what the cache has in place of an answer.

A mirror's documents lie where a Hub answers the first request: about a repository, or about a commit. So the first
answer of an address tells which of the two it is, and neither needs a request more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from kernels import settings
from kernels.cache.records import Answer
from kernels.cache.store import RepoStore
from kernels.errors import (
    HubUnavailable,
    InvalidMetadata,
    InvalidRepository,
    NotInCache,
    RepositoryNotFound,
    RevisionNotFound,
    UntrustedSignature,
)
from kernels.models.metadata import Metadata
from kernels.models.requirement import Requirement, is_commit
from kernels.models.snapshot import METADATA_FILE, Heads, Snapshot
from kernels.sources.api import Api
from kernels.sources.base import Moved, Source
from kernels.sources.http import BRIEF, OtherKind, Patience
from kernels.sources.hub_api import HubApi
from kernels.sources.hub_errors import of_hub
from kernels.sources.memory import Memory, memory_of
from kernels.support.formatting import plural
from kernels.support.logs import logger, warn_once

if TYPE_CHECKING:
    from kernels.mirror.stores.base import StoredDocument

__all__ = ["AskedSource", "not_in_cache"]

_log = logger(__name__)

_T = TypeVar("_T")


_Question = Callable[[Api, Patience], _T]


class AskedSource(Source):
    """A Hub or a mirror as a source: what it is asked.

    Args:
        api: What is asked.
        cache: The cache's folder.
        mirror: Makes what is asked where a mirror answers in the place of a Hub; None where that cannot be.

    Attributes:
        cache: The cache's folder.
        key: What the answers are stored for.
        memory: What this process knows of the address.
    """

    endpoint: str

    def __init__(self, api: Api, cache: Path, mirror: Callable[[], Api] | None = None) -> None:
        self.endpoint = api.endpoint
        self.cache = cache
        self.key = api.key
        self.memory: Memory = memory_of(api.key, cache)
        self._api = api
        self._make_mirror = mirror
        self._mirror: Api | None = None

    @property
    def name(self) -> str:
        """`the Hub at https://…`, or `the cache at /path` while offline."""
        return f"the cache at {self.cache}" if self.offline else self.answering

    @property
    def answering(self) -> str:
        """The name of what answers, also while offline."""
        undecided = self._make_mirror is not None and self.memory.kind is None
        return f"the Hub or mirror at {self.endpoint}" if undecided else self._of_kind(self.memory.kind).name

    @property
    def offline(self) -> bool:
        """Whether this source answers from the cache alone."""
        return self._api.offline

    @property
    def connects(self) -> bool:
        """Whether the answers come over a network."""
        return self._api.connects and not self.offline

    @property
    def asks_publishers(self) -> bool:
        """Whether a Hub answers. Of some addresses only the first answer tells it."""
        return self._api.kind == "hub" if self._make_mirror is None else self.memory.kind == "hub"

    # Which of the two answers, and whether it does

    def kind_of(self, repo_id: str) -> Literal["hub", "mirror"] | None:
        """What answers about a repository: what did so in this process, or before; None where that is not known."""
        if self._make_mirror is None:
            return self._api.kind
        stored = None if self.memory.kind is not None else self._stored_answer(repo_id)
        return self.memory.kind if stored is None else stored.kind

    def api_of(self, repo_id: str) -> Api:
        """What is asked about a repository."""
        return self._of_kind(self.kind_of(repo_id))

    @property
    def hub(self) -> HubApi:
        """What is asked where a Hub answers."""
        assert isinstance(self._api, HubApi)
        return self._api

    def _of_kind(self, kind: Literal["hub", "mirror"] | None) -> Api:
        if kind != "mirror" or self._make_mirror is None:
            return self._api
        self._mirror = self._mirror or self._make_mirror()
        return self._mirror

    def _other(self, api: Api, document: StoredDocument | None) -> Api:
        """What answers in the place of the one that was asked."""
        if api.kind == "hub":
            from kernels.sources.mirror_api import MirrorApi

            mirror = self._of_kind("mirror")
            return mirror.given(document) if isinstance(mirror, MirrorApi) and document is not None else mirror
        if self._make_mirror is None:  # who answers in the place of a signed mirror could as well be a Hub
            raise UntrustedSignature(
                f"{self.endpoint} answers as a Hub, and KERNELS_MIRROR_KEYS requires a signed mirror there. If it is a "
                "Hub, name it in HF_ENDPOINT, and `hub` in KERNELS_HUB. Nothing was downloaded."
            )
        return self._api

    def answer(self, repo_id: str, question: _Question[_T], patience: Patience | None = None) -> _T:
        """The answer to a question, of a Hub or a mirror, whichever answers.

        Args:
            repo_id: The repository that it is about.
            question: Asks.
            patience: The limits of retries; the default is that of a question that nothing else answers.

        Raises:
            UntrustedSignature: A Hub answers, and `KERNELS_MIRROR_KEYS` requires a mirror.
            HubUnavailable: There is no answer.
        """
        api, patience = self.api_of(repo_id), patience or Patience()
        try:
            found = question(api, patience)
        except OtherKind as other:
            api = self._other(api, other.document)
            found = question(api, patience)
        self.memory.kind, self.memory.answered = api.kind, True
        return found

    def ask(self, repo_id: str, question: _Question[_T], otherwise: Callable[[str], _T] | None = None) -> _T:
        """The answer to a question, or what there is in its place. What the cache may answer too is asked this way.

        An address that did not answer in the last 30 seconds is not asked what something else answers, and for the
        rest it is tried once: several kernels do not each wait for it.

        Args:
            repo_id: The repository that it is about.
            question: Asks.
            otherwise: Gives what there is in its place, by the reason why there is no answer; None if there is nothing.

        Raises:
            HubUnavailable: There is no answer, and nothing in its place.
        """
        away = self.memory.away
        if away and otherwise is not None:
            return otherwise(self.memory.last_error)
        try:
            return self.answer(repo_id, question, BRIEF if away or otherwise is not None else Patience())
        except HubUnavailable as error:
            self.memory.note_away(error)
            if otherwise is None:
                raise
            return otherwise(str(error))

    def store(self, repo_id: str) -> RepoStore:
        """A repository in the cache."""
        return RepoStore(self.cache, repo_id)

    # Repositories

    def origin(self, repo_id: str) -> str:
        """The Hub's URL; of a mirror that of the Hub that it was taken from."""
        said = self.said(repo_id)
        return self.endpoint if said is None else said.origin or self.endpoint

    def said(self, repo_id: str) -> Answer | None:
        """What was last said of a repository: in this process, or before."""
        return self.memory.answers.get(repo_id) or self._stored_answer(repo_id)

    def _stored_answer(self, repo_id: str) -> Answer | None:
        if repo_id not in self.memory.stored:
            self.memory.stored[repo_id] = self.store(repo_id).answer(self.key)
        return self.memory.stored[repo_id]

    def repositories(self, publisher: str | None = None) -> Iterable[str]:
        """The repositories of a publisher, or all; the cache does not know them."""
        if self.offline:
            raise NotInCache("Repositories cannot be listed: HF_HUB_OFFLINE is set.")
        return self.answer("", lambda api, patience: list(api.repositories(publisher)))

    def heads(self, repo_id: str) -> Heads:
        """The branches and tags of a repository: requested once per process, or from the cache without an answer.

        Raises:
            RepositoryNotFound: The Hub has no such repository.
            Moved: It has another name now.
            NotInCache: Offline, and not in the cache.
            HubUnavailable: The Hub did not answer, and it is not in the cache.
        """
        with self.memory.lock(repo_id):
            known = self.memory.heads.get(repo_id)
            if known is None:
                known = _heads(repo_id, self._answer_about(repo_id))
                if not self.offline:
                    self.memory.heads[repo_id] = known
            return known

    def _answer_about(self, repo_id: str) -> Answer:
        store = self.store(repo_id)
        stored = self._stored_answer(repo_id) or _of_another_tool(store)
        if stored is None:
            if self.offline:
                raise not_in_cache(repo_id, self.cache)
        elif self.offline or 0 <= time.time() - stored.time < settings.refresh_seconds():
            _log.debug("%s: the branches are those of %s ago", repo_id, _age(time.time() - stored.time))
            return stored

        def question(api: Api, patience: Patience) -> Answer:
            found = api.heads(repo_id, stored, patience)
            self._note(repo_id, found)
            return found

        if stored is None:
            return self.ask(repo_id, question)
        known = stored

        def instead(problem: str) -> Answer:
            self._warn(repo_id, problem, known.time)
            return known

        return self.ask(repo_id, question, instead)

    def _note(self, repo_id: str, said: Answer | None) -> None:
        """Remember what was said of a repository."""
        if said is not None:
            self.memory.answers[repo_id] = self.memory.stored[repo_id] = said
            self.store(repo_id).keep_answer(self.key, said)

    def find_commit(self, repo_id: str, revision: str) -> str | None:
        """The commit of a pull request's branch (`refs/pr/1`) or of a shortened commit."""
        if self.offline:
            return None
        found = self.ask(repo_id, lambda api, patience: api.revision(repo_id, revision, patience))
        return found.sha if found is not None and found.sha is not None and is_commit(found.sha) else None

    def commit_date(self, repo_id: str, commit: str) -> str | None:
        """When a commit was made, in ISO 8601; None if the Hub cannot be asked."""
        if self.offline:
            return None
        found = self.ask(repo_id, lambda api, patience: api.revision(repo_id, commit, patience), lambda problem: None)
        return None if found is None else found.last_modified

    # Snapshots

    def snapshot(self, requirement: Requirement, commit: str) -> Snapshot:
        """The repository at a commit: from the index, else from the Hub, else from the files in the cache."""
        return self.listing(requirement.repo_id, commit, str(requirement))

    def listing(self, repo_id: str, commit: str, asked: str = "") -> Snapshot:
        """The same, of a repository.

        Args:
            repo_id: The repository.
            commit: The commit.
            asked: What was asked for, for an error; the default is the repository.
        """
        key = repo_id, commit
        with self.memory.lock(f"{repo_id}@{commit}"):
            if key not in self.memory.snapshots:
                found = self._from_another_answer(repo_id, commit) or self._stored(repo_id, commit)
                self.memory.snapshots[key] = found or self._listed(repo_id, commit, asked or repo_id)
            return self.memory.snapshots[key]

    def listed_again(self, snapshot: Snapshot) -> Snapshot | None:
        """The snapshot as a mirror lists it now, if its stored listing may lack builds; None if it was not asked."""
        repo_id, commit = snapshot.repo_id, snapshot.commit
        api = self.api_of(repo_id)
        if self.offline or api.kind == "hub" or not snapshot.listed or api.known(repo_id, commit) is not None:
            return None
        with self.memory.lock(f"{repo_id}@{commit}"), suppress(RepositoryNotFound, RevisionNotFound):
            found = self._ask_files(repo_id, commit, lambda problem: snapshot)
            if found is not snapshot:
                self.memory.snapshots[repo_id, commit] = found
                return found
        return None

    def _from_another_answer(self, repo_id: str, commit: str) -> Snapshot | None:
        """A listing that came with another answer; it replaces a stored one, which may lack builds."""
        found = self.api_of(repo_id).known(repo_id, commit)
        if found is not None and self.store(repo_id).listed(self.key, commit) != found.files:
            self.store(repo_id).keep_listed(self.key, commit, found.files)
        return found

    def _stored(self, repo_id: str, commit: str) -> Snapshot | None:
        files = self.store(repo_id).listed(self.key, commit)
        if files is not None:
            with suppress(InvalidRepository):  # a damaged listing is not used
                found = Snapshot(repo_id, commit, files)
                _log.debug("%s: the files of commit %s are known", repo_id, commit[:12])
                return found
        return None

    def _listed(self, repo_id: str, commit: str, asked: str) -> Snapshot:
        store = self.store(repo_id)
        cached = store.snapshot(commit).is_dir()

        def on_disk(problem: str = "") -> Snapshot:
            """The files in the cache of a commit that this Hub never listed."""
            if problem:
                self._warn(repo_id, problem)
            return Snapshot(repo_id, commit, store.files(commit), listed=False)

        if self.offline:
            if not cached:
                raise not_in_cache(asked, self.cache)
            return on_disk()
        return store.one_process(
            f"{commit}-index",
            lambda: self._stored(repo_id, commit) or self._ask_files(repo_id, commit, on_disk if cached else None),
        )

    def _ask_files(self, repo_id: str, commit: str, otherwise: Callable[[str], Snapshot] | None) -> Snapshot:
        store = self.store(repo_id)

        def question(api: Api, patience: Patience) -> Snapshot:
            try:
                found, said = api.files(repo_id, commit, self.said(repo_id), patience)
            except RepositoryNotFound:
                if self.kind_of(repo_id) is None and self.heads(repo_id) and self.kind_of(repo_id) == "mirror":
                    raise OtherKind(f"{self.endpoint} is a mirror.") from None  # which says what it lacks
                raise
            self._note(repo_id, said)
            store.keep_listed(self.key, commit, found.files)
            return found

        return self.ask(repo_id, question, otherwise)

    def _warn(self, repo_id: str, problem: str, since: float = 0.0) -> None:
        """Warn that the cache is used: once for an address that does not answer, for any number of kernels."""
        if not self.memory.warned:
            self.memory.warned = True
            age = f" as it was {_age(time.time() - since)} ago" if since else ""
            warn_once(_log, f"The cache is used in place of an answer, such as for {repo_id}{age}. {problem}")


def not_in_cache(what: str, cache: Path) -> NotInCache:
    """The error for what is not in the cache while nothing may be downloaded.

    Args:
        what: The subject of the message.
        cache: The cache's folder.
    """
    hub = ", not from KERNELS_HUB either" if settings.environment().get("KERNELS_HUB") else ""
    error = NotInCache(
        f"{what} is not in the cache at {cache}, and nothing may be downloaded (HF_HUB_OFFLINE, or "
        f"local_files_only){hub}. Download it while online, or set KERNELS_CACHE to the folder that has it."
    )
    return of_hub(error)


def _heads(repo_id: str, said: Answer) -> Heads:
    if said.moved_to is not None:
        raise Moved(repo_id, said.moved_to)
    return Heads(said.branches, said.tags, said.time)


def _of_another_tool(store: RepoStore) -> Answer | None:
    """The branches of a cache that another tool filled: those it recorded, and the versions in the builds' metadata."""
    branches: dict[str, str] = {}
    commits = store.commits()
    for commit in commits:  # the newest commit of a version first
        version = _stated_version(store.snapshot(commit))
        if version is not None:
            branches.setdefault(f"v{version}", commit)
    branches |= store.foreign_branches()
    return Answer(kind="hub", endpoint="", time=0.0, branches=branches) if branches or commits else None


def _stated_version(snapshot: Path) -> int | None:
    for path in sorted(snapshot.glob(f"build/*/{METADATA_FILE}")):
        with suppress(InvalidMetadata):
            return Metadata.read_from_file(path).version
    return None


def _age(seconds: float) -> str:
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1)):
        if seconds >= size:
            return plural(int(seconds // size), unit)
    return "0 seconds"
