"""Whether the publishers of repositories are trusted: a Hub is asked, a mirror's document says what its origin said."""

from __future__ import annotations

import time
from collections.abc import Iterator

from kernels.cache.records import Answer
from kernels.errors import HubUnavailable, NotInCache, RepositoryNotFound, RevisionNotFound
from kernels.models.snapshot import Heads, Snapshot
from kernels.sources.asked import AskedSource
from kernels.sources.base import Moved
from kernels.sources.http import BRIEF, Patience
from kernels.trust.publishers import VERDICT_SECONDS, Verdicts

__all__ = ["AskedPublishers"]

#: Branches and tags in whose history a commit is looked for, and the pages that are read beside the first one of each.
_MAX_REFS, _MAX_FURTHER_PAGES = 100, 10

_OFFLINE = "No request may be sent (HF_HUB_OFFLINE, or local_files_only)."


class AskedPublishers:
    """The publishers of one Hub or mirror.

    Args:
        source: Asks it.
    """

    def __init__(self, source: AskedSource) -> None:
        self._source = source
        self._memory = source.memory
        self._verdicts = Verdicts(source.cache, source.endpoint, self._ask)
        self._problems: dict[str, str] = {}

    @property
    def authority(self) -> str:
        """`the Hub at https://…`."""
        return self._source.answering

    def trusts(self, repo_id: str) -> bool | None:
        """Whether a repository's publisher is trusted; None if it is not known."""
        try:
            if self._is_of_hub(repo_id):
                return self._verdicts.trusts(repo_id.partition("/")[0])
            said = self._said(repo_id)
        except (HubUnavailable, NotInCache, RepositoryNotFound, RevisionNotFound, Moved) as error:
            self._problems[repo_id] = str(error)
            return None
        if said.publisher.lower() != repo_id.partition("/")[0].lower():
            return False  # a verdict on another publisher
        if said.trusted is None:
            where = self._source.endpoint
            self._problems[repo_id] = f"The mirror at {where} was written without asking a Hub about the publisher."
        return said.trusted

    def problem(self, repo_id: str) -> str | None:
        """Why nothing is known of a repository's publisher, a sentence; None where something is."""
        return self._problems.get(repo_id)

    def publishes(self, repo_id: str, commit: str) -> bool:
        """Whether a branch or tag leads to a commit: by what is stored, else by the branches, else by their history.

        A yes is stored for ever, as a commit never changes. A no is known to this process only. What a mirror lists was
        judged by its writer.

        Raises:
            HubUnavailable, NotInCache: Nothing that is stored tells it, and nobody can be asked.
        """
        with self._memory.lock(f"{repo_id}@{commit} published"):
            known = self._memory.published.get((repo_id, commit))
            if known is None:
                try:
                    known = self._is_published(repo_id, commit)
                except (HubUnavailable, NotInCache, RepositoryNotFound, RevisionNotFound, Moved) as error:
                    self._problems[repo_id] = str(error)
                    if isinstance(error, HubUnavailable):
                        self._memory.note_away(error)  # it is not asked a second time by the same call
                    raise HubUnavailable(str(error)) from error
                self._memory.published[repo_id, commit] = known
        return known

    def may_use_cached(self, snapshot: Snapshot) -> bool:
        """Whether the cached files of a snapshot may be loaded although nothing is known of its publisher.

        Not while other questions are answered: else suppressing one answer would be enough to load a kernel of an
        untrusted publisher. A snapshot that was listed here was downloaded by a call that admitted it, or by a command
        that runs no code and admits any publisher: the record of what a caller allowed tells the two apart. What
        another tool downloaded counts as admitted by the user who ran it.
        """
        if self._memory.answered and not self._source.offline:
            return False
        store = self._source.store(snapshot.repo_id)
        return store.is_marked("allowed", self._source.key, snapshot.commit) or not store.was_fetched(snapshot.commit)

    def remember_allowed(self, snapshot: Snapshot) -> None:
        """Record beside the list of the commit's files that a caller allowed the snapshot."""
        if snapshot.listed:
            self._source.store(snapshot.repo_id).keep_mark("allowed", self._source.key, snapshot.commit)

    def _is_of_hub(self, repo_id: str) -> bool:
        """Whether a Hub answers about a repository; where that is not known, the repository is asked for."""
        source = self._source
        if source.kind_of(repo_id) is None and not source.offline:
            source.heads(repo_id)
        return source.kind_of(repo_id) != "mirror"

    # A mirror's verdict

    def _said(self, repo_id: str) -> Answer:
        """What a mirror says of a repository; it is asked if the last answer is older than a day, or was a no."""
        source = self._source
        said = source.said(repo_id)
        is_young = said is not None and said.trusted and 0 <= time.time() - said.time < VERDICT_SECONDS
        if repo_id not in self._memory.answers and not is_young and not source.offline:
            source.heads(repo_id)
            said = source.said(repo_id)
        if said is None:
            raise NotInCache(_OFFLINE)
        return said

    # A Hub's

    def _ask(self, publisher: str, urgent: bool) -> bool:
        if self._source.offline:
            raise NotInCache(_OFFLINE)
        if self._memory.away:
            raise HubUnavailable(self._memory.last_error)
        try:
            return self._source.hub.trusts(publisher, Patience() if urgent else BRIEF)
        except HubUnavailable as error:
            self._memory.note_away(error)
            raise

    def _is_published(self, repo_id: str, commit: str) -> bool:
        source, store = self._source, self._source.store(repo_id)
        if not self._is_of_hub(repo_id):
            if not source.listing(repo_id, commit).listed:
                raise HubUnavailable(f"{source.endpoint} did not list commit {commit}.")
            return True

        def is_stored() -> bool:
            if store.is_marked("published", source.key, commit):
                return True
            said = store.answer(source.key)
            found = said is not None and commit in {*said.branches.values(), *said.tags.values()}
            if found:
                store.keep_mark("published", source.key, commit)  # the branch may move on
            return found

        def ask() -> bool:
            if is_stored():
                return True
            if source.offline:
                raise NotInCache(_OFFLINE)
            known = self._leads_to(repo_id, commit)
            if known:
                store.keep_mark("published", source.key, commit)
            return known

        return is_stored() or store.one_process(f"{commit}-published", ask)

    def _leads_to(self, repo_id: str, commit: str) -> bool:
        heads = self._source.heads(repo_id)
        if not heads.time:  # those of a cache that another tool filled: what it calls a branch may be a pull request
            raise HubUnavailable(self._memory.last_error)
        if commit in {*heads.branches.values(), *heads.tags.values()}:
            return True
        if self._memory.away:
            raise HubUnavailable(self._memory.last_error)
        return any(commit in page for page in self._history(repo_id, heads))

    def _history(self, repo_id: str, heads: Heads) -> Iterator[list[str]]:
        """The history of branches and tags, the versions' first, up to a number of pages."""
        branches = dict.fromkeys([*heads.versions.values(), *heads.branches])
        refs = [*((each, heads.branches[each]) for each in branches), *heads.tags.items()]
        seen: set[str] = set()
        further = _MAX_FURTHER_PAGES
        for name, head in refs[:_MAX_REFS]:
            if head in seen:
                continue
            for number, page in enumerate(self._source.hub.history(repo_id, name)):
                seen.update(page)
                yield page
                further -= number > 0
                if not further:
                    break
