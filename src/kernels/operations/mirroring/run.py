"""A run of `kernels mirror`: the requested kernels, batch by batch, into the mirror.

Archives are sent before the documents of their commits, those before the repository's index, and that before the
mirror's: a reader never finds a document that names something that is not there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kernels import settings
from kernels.cache.work_folders import work_folder
from kernels.errors import PublisherUnknown, RequestError, StoreError, UntrustedPublisher
from kernels.mirror.signing import MirrorSigner, active_signer
from kernels.mirror.stores.base import WriteStore
from kernels.mirror.stores.opening import open_store
from kernels.mirror.zstd_frame import compressor
from kernels.models.mirror import MirrorBuild
from kernels.operations.call import check_user_agent, distinct_targets
from kernels.operations.download_plan import PROBLEMS, DownloadFailure, KernelPlan, WantedBuild
from kernels.operations.install import AT_ONCE
from kernels.operations.mirroring.builds import BuildTaker
from kernels.operations.mirroring.choices import RequestedChoices
from kernels.operations.mirroring.outcome import MirrorOutcome
from kernels.operations.mirroring.pages import update_pages
from kernels.operations.mirroring.request import (
    MirroredBuild,
    MirroredCommit,
    MirrorProgress,
    MirrorRequest,
    MirrorResult,
)
from kernels.operations.mirroring.state import MirrorState
from kernels.operations.mirroring.taking import Taking, prepare
from kernels.operations.mirroring.wanted import (
    Examined,
    MirrorChoice,
    UnchangedCommit,
    WantedRepository,
    examine,
    gather,
    verdict,
)
from kernels.operations.mirroring.writing import write_documents, write_verdict
from kernels.operations.open_sources import open_sources
from kernels.resolver.context import ResolveContext
from kernels.resolver.locks import NO_LOCK
from kernels.resolver.target import Target
from kernels.sources.cached import CachedSource
from kernels.sources.call_sources import Sources
from kernels.sources.memory import forget
from kernels.support.tasks import side_by_side
from kernels.tracebacks import public
from kernels.trust.policy import active_policy
from kernels.trust.publishers import TrustPolicy

__all__ = ["PlannedMirroring", "mirror"]

#: Builds that are fetched, packed and sent at once: each needs the disk twice, and a processor.
_BUILDS_AT_ONCE = 4


@public
def mirror(request: MirrorRequest, progress: MirrorProgress | None = None) -> MirrorResult:
    """Put kernels into a mirror, or bring it up to date.

    Args:
        request: What to take, and where to put it.
        progress: Receives the progress.

    Returns:
        What the mirror has now, and what could not be taken.

    Raises:
        RequestError: An argument is invalid, or the place has other files, or is signed and there is no key. Nothing
            was changed.
        LockError: A lockfile cannot be read.
        HubUnavailable: The mirror cannot be read.
        StoreError: The mirror or the cache cannot be written. What was sent before stays, and is not sent again.

    Example:
        ```python
        from kernels.operations.mirroring.request import MirrorRequest
        from kernels.operations.mirroring.run import mirror

        result = mirror(MirrorRequest("s3://bucket/kernels", repositories=["kernels-community/activation"]))
        print(len(result.builds), result.sent)
        ```
    """
    check_user_agent(request.user_agent)
    store = open_store(request.url)
    forget()  # a process that runs for long has heads that are old
    signer = active_signer(None if request.sign_key is None else Path(request.sign_key))
    run = _Run(request, store, _open_source(request), signer, progress)
    if request.dry_run:
        return run.take_requested(None)
    with work_folder(settings.cache_dir()) as work:
        return run.take_requested(work)


class PlannedMirroring:
    """Puts what was planned elsewhere into a mirror, as `kernels download --to` does.

    Args:
        url: The mirror.
        sources: Where the plans' kernels come from.
        repositories: The repositories that were asked for.
        progress: Receives the progress.

    Raises:
        RequestError: The place has other files, or is signed and there is no key. Nothing was changed.
    """

    def __init__(
        self, url: str, sources: Sources, repositories: Sequence[str], progress: MirrorProgress | None = None
    ) -> None:
        request = MirrorRequest(url, repositories=repositories)
        self._run = _Run(request, open_store(url), sources, active_signer(), progress)
        self._run.open()

    def put(self, plans: Iterable[KernelPlan]) -> MirrorResult:
        """Put the builds of plans into the mirror, with the branches, redirects and verdicts on publishers.

        Raises:
            StoreError: The mirror or the cache cannot be written. What was sent before stays, and is not sent again.
        """
        with work_folder(settings.cache_dir()) as work:
            return self._run.take_planned(plans, work)

    def archive(self, build: MirroredBuild) -> str:
        """The path of a build's archive in the mirror."""
        return self._run.archive(build)


def _open_source(request: MirrorRequest) -> Sources:
    address = None
    if request.source is not None:
        address = settings.parse_address("--from", request.source)
    elif len(settings.hub_addresses()) > 1:
        raise RequestError("`KERNELS_HUB` has several addresses; name the one to take kernels from: --from ADDRESS")
    return open_sources(user_agent=request.user_agent, overrides=False, address=address)


class _Run:
    """One run: its state, and what it found."""

    def __init__(
        self,
        request: MirrorRequest,
        store: WriteStore,
        sources: Sources,
        signer: MirrorSigner | None,
        progress: MirrorProgress | None,
    ) -> None:
        self._request = request
        self._source = sources.default
        self._progress = progress
        self._started = time.time()
        self._state = MirrorState(store, signer, repair=request.repair)
        self._outcome = MirrorOutcome()
        self._look_at_archives = False
        self._broken: StoreError | None = None
        self._machines: list[Target | None] = [*distinct_targets(request.targets)] or [None]
        self._context = ResolveContext(
            sources=sources,
            target=Target.current(),
            trust=TrustPolicy.of(request.trust_remote_code),
            signing=active_policy(),
            lock=NO_LOCK,
            prerequisites=False,  # they are checked on the machine where the kernel will run
        )

    def open(self) -> None:
        """Read the mirror's index, or see that nothing else is there; and that archives can be packed."""
        if not self._request.dry_run:
            compressor(0)
        self._state.open(writing=not self._request.dry_run)

    def take_requested(self, work: Path | None) -> MirrorResult:
        """Take what the request names; without a work folder, only plan it."""
        self.open()
        # Named kernels are few, and are probably used here too; a whole Hub would fill the cache.
        keep = not (self._request.publishers or self._request.takes_everything)
        taker = None if work is None else self._taker(work, keep=keep)
        choices = RequestedChoices(self._request, self._context, self._started, self._outcome)
        for batch in choices.batches():
            examined = side_by_side(self._examine, batch, at_once=AT_ONCE, name="plan")
            for each in examined:
                choices.follow(each.following)
                self._note(each, taker)
            self._take(gather(plan for each in examined for plan in each.plans), taker)
            self._forget_listings(taker)
            if taker is not None and (self._broken is not None or self._state.is_due):
                self._write_index()
        if taker is not None and self._state.has_listed:
            self._write_index()
        return self._result(taker)

    def take_planned(self, plans: Iterable[KernelPlan], work: Path) -> MirrorResult:
        """Take the builds of plans."""
        self._look_at_archives = True  # a folder may have been copied without some of them
        taker = self._taker(work, keep=True)
        self._take(gather(plans), taker)
        self._write_index()
        return self._result(taker)

    def archive(self, build: MirroredBuild) -> str:
        """The path of a build's archive."""
        document = self._state.known(build.repo_id, build.commit)
        found = None if document is None else document.build(build.commit, build.variant)
        assert found is not None
        return found.archive.name

    def _write_index(self) -> None:
        """Write the mirror's index; and end the run if the mirror or the cache could not be written before."""
        try:
            self._state.write_index()
        except StoreError as error:
            self._broken = self._broken or error
        if self._broken is not None:
            raise self._broken

    def _taker(self, work: Path, *, keep: bool) -> BuildTaker:
        return BuildTaker(self._state.store, work, keep=keep, send_again=self._request.repair, progress=self._progress)

    def _result(self, taker: BuildTaker | None) -> MirrorResult:
        store, commits = self._state.store, self._outcome.commits
        pages = None
        if taker is not None:
            changed = any(each.changed for each in commits)
            pages = update_pages(store, self._state.documents, wanted=self._request.html, changed=changed)
        return MirrorResult(
            url=store.url,
            origin=self._source.endpoint or self._source.name,
            commits=commits,
            left_out=tuple(dict.fromkeys(self._outcome.left_out)),
            failures=tuple(self._outcome.failures),
            dry_run=self._request.dry_run,
            sent=0 if taker is None else taker.sent,
            documents=self._state.documents.written,
            pages=pages,
        )

    def _forget_listings(self, taker: BuildTaker | None) -> None:
        """Keep the memory of a run within bounds: a Hub may have 10,000 repositories of a thousand files each."""
        if isinstance(self._source, CachedSource):
            self._source.forget_snapshots()
        if taker is not None:
            taker.forget_listings()

    # From choices to plans

    def _examine(self, choice: MirrorChoice) -> Examined:
        # To be repaired, what is unchanged is looked at as well.
        known = _nothing if self._request.repair else self._state.signed
        return examine(choice, self._machines, known, choice.context.lock.lock, self._started)

    def _note(self, examined: Examined, taker: BuildTaker | None) -> None:
        self._outcome.failures += examined.failures
        self._outcome.left_out += examined.left_out
        if taker is not None:
            self._withdraw(examined.failures)
        if examined.unchanged is not None:
            self._keep_unchanged(examined.unchanged)

    def _withdraw(self, failures: Iterable[DownloadFailure]) -> None:
        """Record of publishers that their origin marks as trusted no more, so that no reader trusts them either."""
        for failure in failures:
            refused = isinstance(failure.error, UntrustedPublisher) and not isinstance(failure.error, PublisherUnknown)
            repo_id = "" if failure.requirement is None else failure.requirement.repo_id
            known = self._state.known(repo_id, None) if refused and repo_id else None
            if known is not None and known.publisher.trusted and verdict(self._source, repo_id) is False:
                write_verdict(known, False, self._state)

    def _keep_unchanged(self, unchanged: UnchangedCommit) -> None:
        document, commit = unchanged.index, unchanged.commit
        entry = document.commits[commit]
        builds = [
            MirroredBuild(document.repo_id, commit, variant, build.size, build.archive.size, False)
            for variant, content in entry.variants.items()
            for build in [document.builds[content]]
        ]
        self._outcome.add(MirroredCommit(document.repo_id, commit, unchanged.names, tuple(builds), False, entry.absent))
        index = self._state.known(document.repo_id, None)
        if index is not None:
            self._state.list_repository(index)

    # From plans into the mirror

    def _take(self, wanted: Mapping[str, WantedRepository], taker: BuildTaker | None) -> None:
        prepared = side_by_side(self._prepare, wanted.values(), at_once=AT_ONCE, name="index")
        taking = [each for each in prepared if isinstance(each, Taking)]
        self._outcome.failures += [each for each in prepared if isinstance(each, DownloadFailure)]
        if taker is None:
            for each in taking:
                self._plan_only(each)
            return
        if taking and self._state.index is None:
            # Before anything is fetched: an address that cannot be written is an error at once.
            self._state.write_index()
        missing: dict[str, WantedBuild] = {}
        for each in taking:
            for content, build in each.missing():
                missing.setdefault(content, build)
        taken = self._send(missing, taker)
        for each in taking:
            each.receive(taken)
        written = side_by_side(self._write, taking, at_once=AT_ONCE, name="write")
        self._outcome.failures += filter(None, written)
        unwritten = {
            content
            for each, failure in zip(taking, written, strict=True)
            if failure is not None
            for content in each.contents.values()
        }
        for content in missing.keys() - unwritten:  # an archive that no document names is not sent again
            taker.forget(content)

    def _prepare(self, wanted: WantedRepository) -> Taking | DownloadFailure:
        try:
            return prepare(
                wanted,
                self._state,
                other_origin=self._request.source is not None,
                look_at_archives=self._look_at_archives,
                read_archives=self._request.repair,
            )
        except PROBLEMS as error:
            return DownloadFailure(wanted.repo_id, None, error)

    def _plan_only(self, taking: Taking) -> None:
        for commit in taking.wanted.snapshots:
            builds = taking.rows(commit)
            changed = any(each.new for each in builds)
            self._outcome.add(MirroredCommit(taking.wanted.repo_id, commit, taking.names(commit), builds, changed))

    def _send(self, missing: Mapping[str, WantedBuild], taker: BuildTaker) -> dict[str, MirrorBuild | None]:
        """Put the archives of builds into the mirror; the value of a build that could not be taken is None."""
        if missing and self._progress is not None:
            self._progress.start(
                sum(each.files for each in missing.values()), sum(each.size for each in missing.values())
            )
        for build in missing.values():
            taker.announce(build)

        def bring(item: tuple[str, WantedBuild]) -> MirrorBuild | DownloadFailure:
            content, build = item
            kernel = f"{build.planned.snapshot.repo_id} {build.planned.variant}"
            try:
                if self._broken is not None:  # of every other build too; what has arrived gets its documents
                    raise self._broken
                return taker.take(build, content)
            except PROBLEMS as error:
                self._note_broken(error)
                return DownloadFailure(kernel, None, error)

        found = side_by_side(bring, missing.items(), at_once=_BUILDS_AT_ONCE, name="build")
        self._outcome.failures += [each for each in found if isinstance(each, DownloadFailure)]
        return {
            content: None if isinstance(each, DownloadFailure) else each
            for content, each in zip(missing, found, strict=True)
        }

    def _write(self, taking: Taking) -> DownloadFailure | None:
        try:
            write_documents(taking, self._state, self._started, self._outcome)
            return None
        except PROBLEMS as error:
            self._note_broken(error)
            return DownloadFailure(taking.wanted.repo_id, None, error)

    def _note_broken(self, error: Exception) -> None:
        if self._broken is None and isinstance(error, StoreError):
            self._broken = error


def _nothing(repo_id: str, commit: str | None) -> None:
    """What a mirror has of a repository, for a run that looks at all of it."""
