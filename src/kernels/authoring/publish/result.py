"""The result of an upload, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kernels.authoring.publish.card import Card
from kernels.authoring.publish.local_builds import Skipped

__all__ = ["FileChange", "Upload"]

ChangeKind = Literal["added", "changed", "unchanged", "deleted"]


@dataclass(frozen=True)
class FileChange:
    """What an upload does to a file of the branch.

    Attributes:
        path: Its path in the repository.
        kind: What happens to it.
        size: Its size in bytes: the new one, or that of a deleted file.
    """

    path: str
    kind: ChangeKind
    size: int


@dataclass(frozen=True)
class Upload:
    """The result of an upload.

    Attributes:
        repo_id: The repository.
        branch: Its branch.
        commit: The commit with the builds: a new one, or the head if nothing changed; None in a dry run for a branch
            that does not exist.
        variants: The builds that were uploaded.
        sent: Paths of the new and changed files.
        deleted: Deleted paths; a folder's ends in `/`.
        pull_request: URL of the pull request, if one was opened.
        url: URL of the branch, for a browser.
        files: Every file of the folder's builds, and every deleted one, with what happens to it.
        kept: Builds on the branch that are not in the folder and stay, with the reason.
        skipped: What in the folder was not sent.
        notes: What the author should know.
        card: The card.
        main_commit: The commit of the card on `main`, if it changed there.
        dry_run: Whether nothing was sent.
    """

    repo_id: str
    branch: str
    commit: str | None
    variants: tuple[str, ...]
    sent: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    pull_request: str | None = None
    url: str = field(default="", compare=False)
    files: tuple[FileChange, ...] = field(default=(), compare=False)
    kept: dict[str, str] = field(default_factory=dict, compare=False)
    skipped: tuple[Skipped, ...] = field(default=(), compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)
    card: Card | None = field(default=None, compare=False)
    main_commit: str | None = field(default=None, compare=False)
    dry_run: bool = field(default=False, compare=False)

    @property
    def changed(self) -> bool:
        """Whether the branch changed; False if the Hub had everything already."""
        return bool(self.sent or self.deleted)

    @property
    def size(self) -> int:
        """Bytes of the new and changed files."""
        return sum(each.size for each in self.files if each.kind in ("added", "changed"))
