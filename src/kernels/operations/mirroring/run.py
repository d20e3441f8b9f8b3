"""A run of `kernels mirror`: what is asked for, batch by batch, into the mirror.

Archives are sent before the documents of their commits, those before the repository's index, and that before the
mirror's: a reader never finds a document that names something that is not there.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

from kernels import settings
from kernels._version import __version__
from kernels.catalog.card import MAX_IMAGE_BYTES, MAX_IMAGES_BYTES, named_images
from kernels.errors import PublisherUnknown, RequestError, StoreError, UntrustedPublisher
from kernels.mirror.signing import MirrorSigner, active_signer
from kernels.mirror.stores.base import WriteStore
from kernels.mirror.stores.opening import open_store
from kernels.models.lockfile import HASHES_FILE, LOCK_FILE
from kernels.models.mirror import (
    MIRROR_FILE,
    MirrorBuild,
    MirroredRepository,
    MirrorFile,
    MirrorIndex,
    MirrorOrigin,
    RepositoryIndex,
    format_time,
)
from kernels.models.requirement import Requirement
from kernels.models.snapshot import STATUS_FILE, Snapshot
from kernels.operations.download_plan import PROBLEMS, DownloadFailure, KernelPlan, WantedBuild
from kernels.operations.load import AT_ONCE, check_user_agent, target_of
from kernels.operations.mirroring.builds import BuildTaker, check_pinned, content_of, work_folder
from kernels.operations.mirroring.documents import MirrorDocuments
from kernels.operations.mirroring.merging import (
    TakenCommit,
    TakenRepository,
    listed_repository,
    merge_commit,
    merge_mirror,
    merge_repository,
    merge_verdict,
)
from kernels.operations.mirroring.pages import update_pages
from kernels.operations.mirroring.request import (
    LeftOut,
    MirroredBuild,
    MirroredCommit,
    MirrorProgress,
    MirrorRequest,
    MirrorResult,
    parse_date,
)
from kernels.operations.mirroring.wanted import (
    Examined,
    MirrorChoice,
    UnchangedCommit,
    WantedRepository,
    examine,
    expand,
    gather,
    verdict,
)
from kernels.operations.open_sources import open_sources
from kernels.resolver.active_lock import active_lock
from kernels.resolver.context import ResolveContext
from kernels.resolver.lock_pins import NO_LOCK
from kernels.resolver.target import Target
from kernels.sources import Sources
from kernels.sources.cached import CachedSource
from kernels.sources.session_cache import forget
from kernels.support.concurrency import side_by_side
from kernels.support.formatting import format_value
from kernels.tracebacks import public
from kernels.trust import Policy
from kernels.trust.publishers import TrustPolicy

__all__ = ["PlannedMirroring", "mirror"]

#: Repositories that are looked at together, before the builds of all of them are taken.
_BATCH = 16

#: Builds that are fetched, packed and sent at once: each needs the disk twice, and a processor.
_BUILDS_AT_ONCE = 4

#: Indexes of repositories that are kept in memory, of up to some megabytes each.
_KEPT_INDEXES = 64

#: Seconds between two writes of the mirror's index in a long run.
_MIRROR_SECONDS = 60.0

#: Documents of older commits that are searched for the builds of a new one.
_OLDER_READ = 8

#: The largest text that is taken of a repository: its card, or its redirect.
_MAX_TEXT_BYTES = 256 * 1024

#: All texts of one commit: its card, and the images that the card shows.
_MAX_TEXTS_BYTES = 384 * 1024

_CARD = "README.md"


@public
def mirror(request: MirrorRequest, progress: MirrorProgress | None = None) -> MirrorResult:
    """Put kernels into a mirror, or bring it up to date.

    Args:
        request: What to take, and where to put it.
        progress: Receives the progress.

    Returns:
        What the mirror has now, and what could not be taken.

    Raises:
        RequestError: An argument is invalid, or the place has other files. Nothing was changed.
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
    signer = active_signer(None if request.sign_key is None else Path(request.sign_key), request.sigstore)
    run = _Run(request, store, _open_source(request), signer, progress)
    if request.dry_run:
        return run.result(None)
    with work_folder() as work:
        return run.result(work)


class PlannedMirroring:
    """Puts what was planned elsewhere into a mirror, as `kernels download --to` does.

    Args:
        url: The mirror.
        sources: Where the plans' kernels come from.
        repositories: The repositories that were asked for.
        progress: Receives the progress.

    Raises:
        RequestError: The place has other files. Nothing was changed.
    """

    def __init__(
        self, url: str, sources: Sources, repositories: Sequence[str], progress: MirrorProgress | None = None
    ) -> None:
        request = MirrorRequest(url, repositories=repositories)
        self._run = _Run(request, open_store(url), sources, active_signer(None, False), progress)
        self._run.open()

    def put(self, plans: Iterable[KernelPlan]) -> MirrorResult:
        """Put the builds of plans into the mirror, with the branches, redirects and verdicts on publishers.

        Raises:
            StoreError: The mirror or the cache cannot be written. What was sent before stays, and is not sent again.
        """
        with work_folder() as work:
            return self._run.put(plans, work)

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


@dataclass
class _Taking:
    """What is taken of one repository in a batch.

    Attributes:
        wanted: What is wanted.
        base: The repository's index in the mirror, when the batch began.
        contents: The content of each build, by commit and name.
        present: Builds that the mirror has, by content.
        taken: Builds that were taken in this batch, by content.
        failed: The builds that could not be taken.
    """

    wanted: WantedRepository
    base: RepositoryIndex | None
    contents: dict[tuple[str, str], str] = field(default_factory=dict)
    present: dict[str, MirrorBuild] = field(default_factory=dict)
    taken: dict[str, MirrorBuild] = field(default_factory=dict)
    failed: set[tuple[str, str]] = field(default_factory=set)


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
        self._store = store
        self._examine_archives = False
        self._source = sources.default
        self._documents = MirrorDocuments(store, signer)
        self._progress = progress
        self._started = time.time()
        self._machines: list[Target | None] = [None]
        if request.targets:
            self._machines = list({str(each): each for each in map(target_of, request.targets)}.values())
        self._context = ResolveContext(
            sources=sources,
            target=Target.current(),
            trust=TrustPolicy.of(request.trust_remote_code),
            signing=Policy.active(),
            lock=NO_LOCK,
            prerequisites=False,  # they are checked on the machine where the kernel will run
        )
        self._indexes: OrderedDict[tuple[str, str | None], RepositoryIndex | None] = OrderedDict()
        self._guard = threading.Lock()
        self._listed: dict[str, MirroredRepository] = {}
        self._mirror: MirrorIndex | None = None
        self._mirror_written = time.monotonic()
        self._commits: dict[tuple[str, str], MirroredCommit] = {}
        self._failures: list[DownloadFailure] = []
        self._left_out: list[LeftOut] = []

    def open(self) -> None:
        """Read the mirror's index, or see that nothing else is there."""
        self._mirror = self._open_mirror()

    def put(self, plans: Iterable[KernelPlan], work: Path) -> MirrorResult:
        """Take the builds of plans."""
        self._examine_archives = True  # a folder may have been copied without some of them
        taker = BuildTaker(self._store, work, keep=True, progress=self._progress)
        self._take(gather(plans), taker)
        self._write_mirror()
        return self._result(taker)

    def archive(self, build: MirroredBuild) -> str:
        """The path of a build's archive."""
        document = self._known(build.repo_id, build.commit)
        found = None if document is None else document.build(build.commit, build.variant)
        assert found is not None
        return found.archive.name

    def result(self, work: Path | None) -> MirrorResult:
        """Take everything; without a work folder, only plan it."""
        self.open()
        # Named kernels are few, and are probably used here too; a whole Hub would fill the cache.
        keep = not (self._request.publishers or self._request.takes_everything)
        taker = None if work is None else BuildTaker(self._store, work, keep=keep, progress=self._progress)
        seen: set[tuple[str, str | None, str | None]] = set()
        repositories = deque(self._repositories())
        choices = deque(self._pinned())
        while choices or repositories:
            if not choices:
                choices.extend(self._expanded([repositories.popleft() for _ in range(min(_BATCH, len(repositories)))]))
            batch: list[MirrorChoice] = []
            while choices and len(batch) < _BATCH:
                choice = choices.popleft()
                if choice.key not in seen:
                    seen.add(choice.key)
                    batch.append(choice)
            examined = side_by_side(self._examine, batch, at_once=AT_ONCE, name="plan")
            for each in examined:
                self._failures += each.failures
                if taker is not None:
                    self._withdraw(each.failures)
                self._left_out += each.left_out
                choices.extend(each.following)
                if each.unchanged is not None:
                    self._keep_unchanged(each.unchanged)
            self._take(gather(plan for each in examined for plan in each.plans), taker)
            self._forget_listings(taker)
            if taker is not None and time.monotonic() - self._mirror_written > _MIRROR_SECONDS:
                self._write_mirror()
        if taker is not None and self._listed:
            self._write_mirror()
        return self._result(taker)

    def _result(self, taker: BuildTaker | None) -> MirrorResult:
        changed = any(each.changed for each in self._commits.values())
        pages = (
            None
            if taker is None
            else update_pages(self._store, self._documents, wanted=self._request.html, changed=changed)
        )
        return MirrorResult(
            url=self._store.url,
            origin=self._source.endpoint or self._source.name,
            commits=tuple(self._commits[key] for key in sorted(self._commits)),
            left_out=tuple(dict.fromkeys(self._left_out)),
            failures=tuple(self._failures),
            dry_run=self._request.dry_run,
            sent=0 if taker is None else taker.sent,
            pages=pages,
        )

    def _forget_listings(self, taker: BuildTaker | None) -> None:
        """Keep the memory of a run within bounds: a Hub may have 10,000 repositories of a thousand files each."""
        if isinstance(self._source, CachedSource):
            self._source.forget_snapshots()
        if taker is not None:
            taker.forget_listings()

    # What to take

    def _open_mirror(self) -> MirrorIndex | None:
        found = self._documents.mirror()
        if found is None:
            _check_empty(self._store)
        return found

    def _repositories(self) -> Iterable[tuple[str, bool]]:
        """The repositories to take, and whether the user named each, or its publisher."""
        found = dict.fromkeys(self._request.repositories, True)
        for publisher in self._request.publishers:
            try:
                found.update(dict.fromkeys(self._source.repositories(publisher), True))
            except PROBLEMS as error:
                self._failures.append(DownloadFailure(publisher, None, error))
        if self._request.takes_everything:
            found.update(dict.fromkeys(self._source.repositories(), False))
        return found.items()

    def _pinned(self) -> Iterable[MirrorChoice]:
        for path in self._request.lockfiles:
            locked = active_lock(file=path)
            assert locked.lock is not None
            context = replace(self._context, lock=locked)
            for pin in locked.lock.pins:
                named = (
                    pin.requirement
                    if pin.requirement.branch
                    else Requirement(pin.requirement.repo_id, revision=pin.commit)
                )
                yield MirrorChoice(named, context, True)

    def _expanded(self, repositories: list[tuple[str, bool]]) -> Iterable[MirrorChoice]:
        def versions(item: tuple[str, bool]) -> tuple[list[MirrorChoice], list[LeftOut]] | DownloadFailure:
            repo_id, named = item
            try:
                return expand(self._request, self._context, repo_id, self._started, named=named)
            except PROBLEMS as error:
                return DownloadFailure(repo_id, None, error)

        for found in side_by_side(versions, repositories, at_once=AT_ONCE, name="versions"):
            if isinstance(found, DownloadFailure):
                self._failures.append(found)
            else:
                self._left_out += found[1]
                yield from found[0]

    def _examine(self, choice: MirrorChoice) -> Examined:
        return examine(choice, self._machines, self._signed, choice.context.lock.lock, self._started)

    def _signed(self, repo_id: str, commit: str | None) -> RepositoryIndex | None:
        """An index or a commit's document that needs no new signature."""
        found = self._known(repo_id, commit)
        return None if self._documents.lacks_signature(repo_id) else found

    def _known(self, repo_id: str, commit: str | None) -> RepositoryIndex | None:
        """An index or a commit's document in the mirror."""
        key = (repo_id, commit)
        with self._guard:
            if key in self._indexes:
                return self._indexes[key]
        found = self._documents.repository(repo_id) if commit is None else self._documents.commit(repo_id, commit)
        self._remember(key, found)
        return found

    def _remember(self, key: tuple[str, str | None], index: RepositoryIndex | None) -> None:
        with self._guard:
            self._indexes[key] = index
            while len(self._indexes) > _KEPT_INDEXES:
                self._indexes.popitem(last=False)

    # What is there

    def _keep_unchanged(self, unchanged: UnchangedCommit) -> None:
        document, commit = unchanged.index, unchanged.commit
        entry = document.commits[commit]
        builds = [
            MirroredBuild(document.repo_id, commit, variant, build.size, build.archive.size, False)
            for variant, content in entry.variants.items()
            for build in [document.builds[content]]
        ]
        self._add(MirroredCommit(document.repo_id, commit, unchanged.names, tuple(builds), False, entry.absent))
        index = self._known(document.repo_id, None)
        if index is not None:
            self._listed[index.repo_id] = listed_repository(index)

    def _add(self, found: MirroredCommit) -> None:
        """Add what was found of a commit; several choices may lead to it."""
        key = (found.repo_id, found.commit)
        known = self._commits.get(key)
        if known is None:
            self._commits[key] = found
            return
        builds = {each.variant: each for each in (*found.builds, *known.builds)}  # new in this run stays new
        self._commits[key] = replace(
            found,
            names=tuple(sorted({*known.names, *found.names})),
            builds=tuple(builds[variant] for variant in sorted(builds)),
            changed=known.changed or found.changed,
        )

    # From a batch into the mirror

    def _take(self, wanted: Mapping[str, WantedRepository], taker: BuildTaker | None) -> None:
        prepared = side_by_side(self._prepare, wanted.values(), at_once=AT_ONCE, name="index")
        taking = [each for each in prepared if isinstance(each, _Taking)]
        self._failures += [each for each in prepared if isinstance(each, DownloadFailure)]
        new: dict[str, tuple[_Taking, WantedBuild]] = {}
        for each in taking:
            for key, content in each.contents.items():
                if content not in each.present:
                    new.setdefault(content, (each, each.wanted.builds[key]))
        if taker is None:
            for each in taking:
                self._plan_only(each)
            return
        if taking and self._mirror is None:
            # Before anything is fetched: an address that cannot be written is an error at once.
            self._write_mirror()
        if new and self._progress is not None:
            self._progress.start(
                sum(each.files for _, each in new.values()), sum(each.size for _, each in new.values())
            )
        for _, build in new.values():
            taker.announce(build)

        def bring(item: tuple[str, tuple[_Taking, WantedBuild]]) -> MirrorBuild | DownloadFailure:
            content, (_, build) = item
            try:
                return taker.take(build, content)
            except StoreError:  # of every other build too
                raise
            except PROBLEMS as error:
                snapshot = build.planned.snapshot
                return DownloadFailure(f"{snapshot.repo_id} {build.planned.variant}", None, error)

        results = dict(zip(new, side_by_side(bring, new.items(), at_once=_BUILDS_AT_ONCE, name="build"), strict=True))
        self._failures += [each for each in results.values() if isinstance(each, DownloadFailure)]
        for each in taking:
            for key, content in each.contents.items():
                found = results.get(content)
                if isinstance(found, DownloadFailure):
                    each.failed.add(key)
                elif found is not None:
                    each.taken[content] = found
        self._failures += filter(None, side_by_side(self._write, taking, at_once=AT_ONCE, name="write"))
        for content in new:
            taker.forget(content)

    def _withdraw(self, failures: Iterable[DownloadFailure]) -> None:
        """Record of publishers that their origin marks as trusted no more, so that no reader trusts them either."""
        for failure in failures:
            refused = isinstance(failure.error, UntrustedPublisher) and not isinstance(failure.error, PublisherUnknown)
            repo_id = "" if failure.requirement is None else failure.requirement.repo_id
            known = self._known(repo_id, None) if refused and repo_id else None
            if known is not None and known.publisher.trusted and verdict(self._source, repo_id) is False:
                self._set_verdict(known, False)

    def _set_verdict(self, index: RepositoryIndex, trusted: bool) -> None:
        """Write what the origin says of a publisher into all documents of a repository; the index is the last."""
        now = format_time(time.time())

        def say(before: RepositoryIndex | None) -> RepositoryIndex:
            assert before is not None
            return merge_verdict(before, trusted, now)

        for commit in (*index.commits, *index.older):
            if self._documents.commit(index.repo_id, commit) is not None:
                self._documents.change_commit(index.repo_id, commit, say)
        changed = self._documents.change_repository(index.repo_id, say)
        self._remember((index.repo_id, None), changed)
        self._listed[index.repo_id] = listed_repository(changed)

    def _prepare(self, wanted: WantedRepository) -> _Taking | DownloadFailure:
        """What the mirror has of a repository."""
        try:
            base = self._known(wanted.repo_id, None)
            self._check_origin(wanted, base)
            self._check_spelling(wanted.repo_id)
            taking = _Taking(wanted, base)
            for commit, variant in wanted.builds:
                snapshot = wanted.snapshots[commit]
                taking.contents[commit, variant] = content_of(wanted.source, snapshot, variant)
            if base is not None:
                taking.present.update(base.builds)
                older = [commit for commit in wanted.snapshots if commit in base.older]
                if not set(taking.contents.values()) <= set(taking.present):
                    older += islice((each for each in reversed(base.older) if each not in older), _OLDER_READ)
                for commit in older:
                    document = self._known(wanted.repo_id, commit)
                    taking.present.update({} if document is None else document.builds)
            if self._examine_archives:
                for content in set(taking.contents.values()) & taking.present.keys():
                    archive = taking.present[content].archive
                    if self._store.size(archive.name) != archive.size:
                        del taking.present[content]
            for (commit, variant), content in taking.contents.items():
                if content in taking.present:
                    check_pinned(wanted.builds[commit, variant].planned)
            return taking
        except PROBLEMS as error:
            return DownloadFailure(wanted.repo_id, None, error)

    def _check_origin(self, wanted: WantedRepository, base: RepositoryIndex | None) -> None:
        origin = wanted.source.origin(wanted.repo_id)
        if base is not None and base.origin.url != origin and self._request.source is None:
            raise RequestError(
                f"{base.repo_id} in {self._store.url} comes from {format_value(base.origin.url, 200)}, and this run "
                f"takes it from {origin}. Use another mirror; or, to replace it, name the source: --from {origin}"
            )

    def _check_spelling(self, repo_id: str) -> None:
        listed = () if self._mirror is None else self._mirror.repositories
        other = next((each for each in listed if each != repo_id and each.lower() == repo_id.lower()), None)
        if other is not None:
            raise RequestError(f"{repo_id} is {other} in {self._store.url}: take it by that name.")

    def _plan_only(self, taking: _Taking) -> None:
        for commit in taking.wanted.snapshots:
            builds = self._rows(taking, commit)
            names = _names_of(taking.wanted, commit)
            self._add(MirroredCommit(taking.wanted.repo_id, commit, names, builds, any(each.new for each in builds)))

    def _write(self, taking: _Taking) -> DownloadFailure | None:
        """Write the documents of a repository, after all of its archives."""
        repo_id = taking.wanted.repo_id
        try:
            taken = self._taken(taking)
            number = 0 if taking.base is None else taking.base.number
            now = format_time(time.time())
            unsigned = self._documents.lacks_signature(repo_id)
            documents = {}
            for commit in taken.commits:
                documents[commit] = self._documents.change_commit(
                    repo_id, commit, partial(merge_commit, taken=taken, commit=commit, number=number, time=now)
                )
                self._remember((repo_id, commit), documents[commit])
            if not documents and taken.moved_to is None:
                return None  # nothing of it could be taken
            index = self._documents.change_repository(
                repo_id,
                partial(merge_repository, base=taking.base, taken=taken, documents=documents, time=now),
            )
            for commit in (*index.commits, *index.older) if unsigned else ():
                self._documents.sign_commit(repo_id, commit)
        except PROBLEMS as error:
            if isinstance(error, StoreError):
                raise
            return DownloadFailure(repo_id, None, error)
        self._remember((repo_id, None), index)
        with self._guard:
            self._listed[index.repo_id] = listed_repository(index)
            for commit, document in documents.items():
                rows = self._rows(taking, commit)
                names = tuple(name for name, at in {**index.tags, **index.branches}.items() if at == commit)
                absent = document.commits[commit].absent
                is_changed = taking.base is None or index.number != taking.base.number
                self._add(MirroredCommit(repo_id, commit, names, rows, is_changed, absent))
        return None

    def _taken(self, taking: _Taking) -> TakenRepository:
        wanted = taking.wanted
        builds = {**taking.present, **taking.taken}
        commits, whole = {}, set()
        for commit, snapshot in wanted.snapshots.items():
            keys = [key for key in wanted.builds if key[0] == commit]
            variants = {key[1]: taking.contents[key] for key in keys if key not in taking.failed}
            if keys and not variants:
                continue  # all of its builds failed
            if not any(key in taking.failed for key in keys):
                whole.add(commit)
            files, texts, date = self._beside_builds(wanted, snapshot, taking.base)
            commits[commit] = TakenCommit(variants, tuple(snapshot.builds), date, files, texts)
        known = taking.base

        def kept(names: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
            # A name never moves from a commit that is whole to one that is not: builds that were there would be gone.
            return {
                name: commit
                for name, commit in names.items()
                if commit in commits and (commit in whole or name not in before)
            }

        return TakenRepository(
            repo_id=wanted.repo_id,
            repo_type=next(iter(wanted.snapshots.values())).repo_type if wanted.snapshots else "kernel",
            origin=MirrorOrigin(wanted.source.origin(wanted.repo_id), format_time(self._started)),
            trusted=verdict(wanted.source, wanted.repo_id),
            branches=kept(wanted.branches, {} if known is None else known.branches),
            tags=kept(wanted.tags, {} if known is None else known.tags),
            pinned={name: commit for name, commit in wanted.pinned.items() if commit in commits},
            moved_to=wanted.moved_to,
            commits=commits,
            builds={content: builds[content] for each in commits.values() for content in each.variants.values()},
        )

    def _beside_builds(
        self, wanted: WantedRepository, snapshot: Snapshot, base: RepositoryIndex | None
    ) -> tuple[tuple[MirrorFile, ...], dict[str, str], str]:
        """The files outside `build/` of a commit, their texts, and when it was made."""
        document = base
        if base is not None and snapshot.commit in base.older:
            document = self._known(wanted.repo_id, snapshot.commit)
        known = None if document is None else document.commits.get(snapshot.commit)
        if known is not None:
            return known.files, known.texts, known.date
        files: list[MirrorFile] = []
        texts: dict[str, str] = {}
        wished = [_CARD, STATUS_FILE]
        for path in wished:
            file = snapshot.file(path)
            taken = sum(each.size for each in files if each.path.endswith(".svg"))
            limit = min(MAX_IMAGE_BYTES, MAX_IMAGES_BYTES - taken) if path.endswith(".svg") else _MAX_TEXT_BYTES
            if file is None or not file.blob or file.size > limit:
                continue
            if sum(each.size for each in files) + file.size > _MAX_TEXTS_BYTES:
                continue  # every reader of the repository reads them
            try:
                texts[path] = wanted.source.read(snapshot, file, _MAX_TEXT_BYTES).decode()
            except UnicodeDecodeError:
                continue
            files.append(MirrorFile(path, file.size, file.oid, file.sha256))
            if path == _CARD:
                wished += named_images(texts[path])
        date = wanted.source.commit_date(wanted.repo_id, snapshot.commit) or ""
        return tuple(files), texts, date if parse_date(date) is not None else ""

    def _rows(self, taking: _Taking, commit: str) -> tuple[MirroredBuild, ...]:
        rows = []
        for (at, variant), content in sorted(taking.contents.items()):
            if at == commit and (at, variant) not in taking.failed:
                build = taking.taken.get(content) or taking.present.get(content)
                size = None if build is None else build.archive.size
                new = content not in taking.present
                wanted = taking.wanted.builds[at, variant]
                rows.append(MirroredBuild(taking.wanted.repo_id, commit, variant, wanted.size, size, new))
        return tuple(rows)

    def _write_mirror(self) -> None:
        now, writer = format_time(time.time()), f"kernels {__version__}"
        self._mirror = self._documents.change_mirror(lambda before: merge_mirror(before, self._listed, writer, now))
        self._mirror_written = time.monotonic()


def _names_of(wanted: WantedRepository, commit: str) -> tuple[str, ...]:
    named = {**wanted.tags, **wanted.pinned, **wanted.branches}
    return tuple(sorted(name for name, at in named.items() if at == commit))


def _check_empty(store: WriteStore) -> None:
    """Raise if a place without a mirror has something else.

    Raises:
        RequestError: It has.
    """
    for entry in islice(store.entries(), 1000):
        if entry.path.endswith("/.kernels.json"):
            raise RequestError(
                f"{store.url} was written by an older `kernels download --to`. Make a mirror of it in a new place: "
                f"kernels mirror NEW --from {store.url}"
            )
        if not entry.path.startswith(("api/kernels/", "archives/")) and entry.path not in (LOCK_FILE, HASHES_FILE):
            raise RequestError(
                f"{store.url} is not empty, and has no {MIRROR_FILE}: {format_value(entry.path, 200)} in it was not "
                "written by `kernels mirror`. Name an empty or a new place."
            )
