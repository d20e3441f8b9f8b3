"""Publish builds on a branch of a Hub: plan, send, commit; again if someone else changed the branch meanwhile."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from kernels.authoring.compile.sources.workspace import Workspace
from kernels.authoring.publish.card import CARD_FILE, Card, PublishedCards, make_card, read_facts
from kernels.authoring.publish.card.facts import BuildFact
from kernels.authoring.publish.hub_client import (
    BranchMoved,
    PublishClient,
    RemoteBranch,
    same_file,
)
from kernels.authoring.publish.local_builds import LocalBuilds, LocalFile
from kernels.authoring.publish.plan import OtherBuilds, ReleasePlan, overlaps, plan_release, sort_other_builds
from kernels.authoring.publish.result import Upload
from kernels.authoring.publish.sending import PAUSES, send_files, try_again, wait_after
from kernels.errors import HubUnavailable, InvalidMetadata, InvalidVariant, KernelsError, RequestError, RevisionNotFound
from kernels.models.metadata import Metadata
from kernels.models.snapshot import BUILD_FOLDER, METADATA_FILE
from kernels.resolver.variant import parse_variant
from kernels.support.formatting import format_names, plural
from kernels.support.tasks import side_by_side

__all__ = ["Publishing"]

_MAIN = "main"
_VERSION_BRANCH = re.compile(r"v([0-9]{1,9})")

#: How many `metadata.json` are read at once.
_AT_ONCE = 8


@dataclass(frozen=True)
class _Prepared:
    """What is about to be done to a branch."""

    others: OtherBuilds
    card: Card
    plan: ReleasePlan


@dataclass(frozen=True)
class Publishing:
    """An upload of a folder's builds to one branch.

    Attributes:
        client: The Hub.
        builds: The folder's builds.
        workspace: Their sources, if present.
        repo_id: The repository.
        branch: The branch.
        create_pr: Open a pull request instead of changing the branch.
        keep_variants: Keep the branch's other builds and benchmarks.
        remove_variants: Remove them.
        replace_card: Replace a card that was edited on the Hub.
        say: Called with a line for each step.
    """

    client: PublishClient
    builds: LocalBuilds
    workspace: Workspace | None
    repo_id: str
    branch: str
    create_pr: bool
    keep_variants: bool
    remove_variants: bool
    replace_card: bool
    say: Callable[[str], None]

    def plan(self, branches: Mapping[str, str]) -> Upload:
        """What `publish` would do; nothing is changed.

        Args:
            branches: The repository's branches and their heads.
        """
        head = branches.get(self.branch)
        remote = RemoteBranch("", {}) if head is None else self.client.remote(self.repo_id, head)
        prepared = self._prepare(remote, branches)
        self._say_plan(prepared, "Would send", "would delete")
        return replace(self._result(prepared, head), dry_run=True)

    def publish(self, branches: Mapping[str, str]) -> Upload:
        """Publish the builds in one commit, and the card on `main` if the branch has the newest version.

        Args:
            branches: The repository's branches and their heads, among them the one to publish to.
        """
        head = branches[self.branch]
        prepared = self._prepare(self.client.remote(self.repo_id, head), branches)
        done = self._result(prepared, head)
        if not prepared.plan.empty:
            self._say_plan(prepared, "Sending", "deleting")
            with self.client.writing(self.repo_id, self.branch):
                done = self._commit(prepared, branches)
        if self._main_shows_it(branches) and done.card is not None and done.commit is not None:
            done = replace(done, main_commit=self._publish_card(done.card, done.commit, branches))
        return done

    def _prepare(self, remote: RemoteBranch, branches: Mapping[str, str]) -> _Prepared:
        where = f"{self.repo_id}, branch {self.branch},"
        others = sort_other_builds(
            self.builds, self.workspace, remote, where, keep=self.keep_variants, remove=self.remove_variants
        )
        facts = read_facts(self.builds, self.workspace, self.repo_id, self.branch, self._kept_facts(others, remote))
        main = branches.get(_MAIN) if self._main_shows_it(branches) else None
        published = PublishedCards(
            self._page(remote.head, remote.files.get(CARD_FILE)),
            None
            if main is None
            else self._page(main, self.client.files_at(self.repo_id, main, [CARD_FILE]).get(CARD_FILE)),
        )
        card = make_card(facts, self.builds.template, self.builds.readme, published, replace=self.replace_card)
        return _Prepared(others, card, plan_release(self.builds, remote, others, card, keep=self.keep_variants))

    def _kept_facts(self, others: OtherBuilds, remote: RemoteBranch) -> dict[str, BuildFact]:
        """The builds that stay, with their metadata, for the card."""

        def read(name: str) -> BuildFact | None:
            try:
                variant = parse_variant(name)
            except InvalidVariant:
                return None
            path = f"{BUILD_FOLDER}/{name}/{METADATA_FILE}"
            listed = remote.files.get(path)
            data = None if listed is None else self.client.read(self.repo_id, remote.head, path, listed)
            try:
                return BuildFact(variant, None if data is None else Metadata.from_bytes(data))
            except InvalidMetadata:
                return BuildFact(variant)

        found = side_by_side(read, others.kept, at_once=_AT_ONCE, name="metadata")
        return {name: fact for name, fact in zip(others.kept, found, strict=True) if fact is not None}

    def _page(self, commit: str, listed: tuple[int, str] | None) -> str | None:
        data = None if listed is None else self.client.read(self.repo_id, commit, CARD_FILE, listed)
        try:
            return None if data is None else data.decode("utf-8-sig").replace("\r\n", "\n")
        except UnicodeDecodeError:
            return None

    def _say_plan(self, prepared: _Prepared, sending: str, deleting: str) -> None:
        for name, reason in prepared.others.kept.items():
            if not self.keep_variants:
                self.say(f"Kept: {name}: {reason}; --remove-variants removes them")
        for note in prepared.card.notes:
            self.say(f"Note: {note}")
        plan = prepared.plan
        self.say(f"{sending} {plural(len(plan.changes.files), 'file')}, {deleting} {_paths(len(plan.changes.deleted))}")
        for path in plan.changes.deleted:
            self.say(f"  deleted: {path}")

    def _commit(self, prepared: _Prepared, branches: Mapping[str, str]) -> Upload:
        """Send the files and commit; again without an answer, and on top of what someone else committed meanwhile."""
        pauses = iter(PAUSES)
        while True:
            plan = prepared.plan
            operations = send_files(
                self.client, self.repo_id, self.branch, plan.changes.files, create_pr=self.create_pr, say=self.say
            )
            done = self._result(prepared, None)
            try:
                commit, pull_request = self.client.commit(
                    self.repo_id,
                    self.branch,
                    operations,
                    plan.changes.deleted,
                    message=self._message(),
                    parent=plan.remote.head,
                    create_pr=self.create_pr,
                )
            except KeyboardInterrupt:
                self.say("Interrupted: it is not known whether the commit was made. Run the same command again.")
                raise
            except (BranchMoved, HubUnavailable) as error:
                seconds = next(pauses, None)
                if seconds is None or self.create_pr:  # a second pull request would be one too many
                    raise
                prepared = self._after(error, seconds, prepared, branches)
                if prepared.plan.empty:  # an answer was lost, or someone published the same
                    return replace(done, commit=prepared.plan.remote.head, card=prepared.card)
            else:
                return replace(done, commit=commit, pull_request=pull_request)

    def _after(self, error: KernelsError, seconds: float, before: _Prepared, branches: Mapping[str, str]) -> _Prepared:
        """The plan after a commit that was not made, or may not have been; raises if both uploads change a file."""
        now = try_again(lambda: self.client.branches(self.repo_id), self.say)
        head = (now or {}).get(self.branch)
        if now is None or head is None:
            raise error
        if head == before.plan.remote.head:
            if isinstance(error, BranchMoved):
                raise error
            wait_after(error, seconds, self.say)
            return before
        prepared = self._prepare(self.client.remote(self.repo_id, head), {**branches, **now})
        common = overlaps(before.plan, prepared.plan)
        if common and not prepared.plan.empty:
            raise BranchMoved(
                f"Someone else changed the branch meanwhile: {self.repo_id}, branch {self.branch}, is at {head}. Both "
                f"uploads change {format_names(common, limit=5)}. Nothing was published; check that commit, and run "
                "this again."
            ) from None
        if not prepared.plan.empty:
            self.say(f"Someone else committed {head} meanwhile, to other files: publishing on top of it")
        return prepared

    def _message(self) -> str:
        return f"Builds of {self.builds.metadata.name}: {', '.join(self.builds.builds)}"[:200]

    def _result(self, prepared: _Prepared, commit: str | None) -> Upload:
        changes = prepared.plan.changes
        return Upload(
            self.repo_id,
            self.branch,
            commit,
            tuple(self.builds.builds),
            tuple(changes.files),
            tuple(changes.deleted),
            url=f"{self.client.url}/kernels/{self.repo_id}/tree/{self.branch}",
            files=prepared.plan.files,
            kept=dict(prepared.others.kept),
            skipped=self.builds.skipped,
            notes=prepared.card.notes,
            card=prepared.card,
        )

    def _main_shows_it(self, branches: Mapping[str, str]) -> bool:
        """Whether the card belongs on `main`, which a Hub shows: that of the newest version does."""
        version = _VERSION_BRANCH.fullmatch(self.branch)
        if version is None or self.create_pr or _MAIN not in branches:
            return False
        versions = [int(match[1]) for name in branches if (match := _VERSION_BRANCH.fullmatch(name))]
        return int(version[1]) >= max(versions, default=0)

    def _publish_card(self, card: Card, commit: str, branches: Mapping[str, str]) -> str | None:
        """Publish the card and its images on `main`, after the builds.

        Args:
            card: The card.
            commit: The commit of the builds.
            branches: The repository's branches and their heads.

        Returns:
            The commit on `main`; None if it has the card already, or the Hub refused it.
        """
        try:
            try:
                return self._commit_card(card, branches[_MAIN])
            except (BranchMoved, RevisionNotFound):  # another upload's card, or an edit, which the card then keeps
                branches = self.client.branches(self.repo_id) or branches
                card = self._prepare(self.client.remote(self.repo_id, commit), branches).card
                return self._commit_card(card, branches[_MAIN])
        except (HubUnavailable, RequestError, RevisionNotFound) as error:
            self.say(f"Note: the builds are published. The card on {_MAIN} is not: {error}")
            return None

    def _commit_card(self, card: Card, main: str) -> str | None:
        wanted: dict[str, bytes | LocalFile] = {CARD_FILE: card.text.encode()}
        wanted |= {path: LocalFile.of(file) for path, file in card.files.items()}
        there = self.client.files_at(self.repo_id, main, list(wanted))
        files = {path: content for path, content in wanted.items() if not same_file(there.get(path), content)}
        if not files:
            return None
        with self.client.writing(self.repo_id, _MAIN):
            operations = send_files(self.client, self.repo_id, _MAIN, files, create_pr=False, say=self.say)
            message = f"Card of {self.builds.metadata.name}"
            made, _ = self.client.commit(
                self.repo_id, _MAIN, operations, (), message=message, parent=main, create_pr=False
            )
        return made


def _paths(number: int) -> str:
    return f"{number} path{'' if number == 1 else 's'}"
