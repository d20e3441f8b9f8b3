"""What a mirror is to take, and what became of it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Protocol

from kernels.catalog import CatalogChanges
from kernels.errors import RequestError
from kernels.models.requirement import check_repo_id
from kernels.models.snapshot import Heads
from kernels.operations.download_plan import DownloadFailure
from kernels.resolver.target import Target
from kernels.support.formatting import format_value

__all__ = [
    "ALL_VERSIONS",
    "LeftOut",
    "MirrorProgress",
    "MirrorRequest",
    "MirrorResult",
    "MirrorVersions",
    "MirroredBuild",
    "MirroredCommit",
    "parse_date",
    "parse_since",
]

_NEWEST = re.compile(r"newest:([1-9][0-9]{0,5})")
_LISTED = re.compile(r"(0|[1-9][0-9]{0,5})(,(0|[1-9][0-9]{0,5}))*")
_AGE = re.compile(r"([1-9][0-9]{0,5})([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@dataclass(frozen=True)
class MirrorVersions:
    """Which versions of a repository to take.

    Attributes:
        newest: The number of the newest versions; None for all, or those of `numbers`.
        numbers: The versions.

    Example:
        >>> MirrorVersions.parse("newest:2").of(Heads({"v1": "a", "v2": "b", "v3": "c"}))
        [3, 2]
    """

    newest: int | None = None
    numbers: tuple[int, ...] = ()

    @staticmethod
    def parse(text: str) -> MirrorVersions:
        """Read `all`, `newest:2` or `1,3`.

        Args:
            text: The versions, as the commands take them.

        Raises:
            RequestError: It is none of these.
        """
        text = text.strip()
        newest = _NEWEST.fullmatch(text)
        if text == "all":
            return ALL_VERSIONS
        if newest is not None:
            return MirrorVersions(newest=int(newest[1]))
        if _LISTED.fullmatch(text):
            return MirrorVersions(numbers=tuple(dict.fromkeys(map(int, text.split(",")))))
        raise RequestError(f"`versions` is {format_value(text)}; expected all, newest:2, or versions such as 1,3.")

    def of(self, heads: Heads) -> list[int]:
        """The versions of a repository to take, the newest first; those of `numbers` also if it does not have them.

        Args:
            heads: The branches of the repository, with their commits.
        """
        return list(self.numbers) or list(heads.versions)[: self.newest]


ALL_VERSIONS = MirrorVersions()
"""Every version."""


def parse_since(text: str) -> float:
    """The seconds since 1970 of a date such as `2026-01-31`, of a time in ISO 8601, or of an age such as `7d`.

    Raises:
        RequestError: It is none of these, or in the future.

    Example:
        >>> parse_since("1970-01-02")
        86400.0
    """
    age = _AGE.fullmatch(text.strip())
    if age is not None:
        return time.time() - int(age[1]) * _SECONDS[age[2]]
    seconds = parse_date(text.strip())
    if seconds is None:
        raise RequestError(
            f"`since` is {format_value(text)}; expected a date such as 2026-01-31, or an age such as 7d."
        )
    if seconds > time.time():
        raise RequestError(f"`since` is {format_value(text)}, which is in the future.")
    return seconds


def parse_date(text: str) -> float | None:
    """The seconds since 1970 of a date or time in ISO 8601, in UTC unless it says otherwise; None if it is none."""
    try:
        found = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
        return (found if found.tzinfo is not None else found.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True)
class MirrorRequest:
    """What to put into a mirror.

    Attributes:
        url: The mirror: a path, `file:///…`, `s3://bucket/prefix`, `gs://…` or `az://…`.
        repositories: Repositories, `org/name`.
        lockfiles: Lockfiles; the commits that they pin are taken, with their dependencies.
        publishers: Publishers; all their kernel repositories are taken.
        everything: Whether to take every kernel repository that the source lists.
        source: The address of the source, as `KERNELS_HUB` has it; None for the one that the settings name.
        targets: The machines to choose builds for, as `Target` or as strings; none for all builds.
        versions: The versions of each repository.
        revision: A branch, a tag or a commit of each of `repositories`, in place of versions.
        since: Take only commits that were made after this time, in seconds since 1970.
        trust_remote_code: As for `get_kernel`.
        dry_run: Whether to write nothing.
        repair: Whether to read the archives of what is named, and to send those again that are missing or damaged.
        html: Whether to write pages for people, too; a mirror that has them keeps them up to date in any case.
        sign_key: The file of the private key to sign with; the default is `KERNELS_MIRROR_SIGN_KEY`.
        user_agent: Text to add to the `User-Agent` header of requests.

    Raises:
        RequestError: The arguments contradict each other, or name nothing to take.
    """

    url: str
    repositories: Sequence[str] = ()
    lockfiles: Sequence[str | os.PathLike[str]] = ()
    publishers: Sequence[str] = ()
    everything: bool = False
    source: str | None = None
    targets: Sequence[Target | str] = ()
    versions: MirrorVersions = ALL_VERSIONS
    revision: str | None = None
    since: float | None = None
    trust_remote_code: bool | Sequence[str] = False
    dry_run: bool = False
    repair: bool = False
    html: bool = False
    sign_key: str | os.PathLike[str] | None = None
    user_agent: str | Mapping[str, str] | None = None

    @property
    def takes_everything(self) -> bool:
        """Whether all that the source lists is taken: also of a named source, if nothing else is named."""
        return self.everything or not (self.source is None or self.repositories or self.lockfiles or self.publishers)

    def __post_init__(self) -> None:
        for repo_id in self.repositories:
            check_repo_id(repo_id)
        for publisher in self.publishers:
            _check_publisher(publisher)
        if not (self.repositories or self.lockfiles or self.publishers or self.takes_everything):
            raise RequestError("Nothing to mirror: name repositories, lockfiles or publishers.")
        if self.everything and (self.repositories or self.publishers):
            raise RequestError("Everything that the Hub lists includes the named repositories and publishers.")
        if self.revision is not None and (self.publishers or self.everything or self.lockfiles):
            raise RequestError("`revision` needs named repositories, without lockfiles and publishers.")
        if self.revision is not None and self.versions != ALL_VERSIONS:
            raise RequestError("Either `versions` or `revision` can be given, not both.")


def _check_publisher(name: str) -> None:
    try:
        check_repo_id(f"{name}/x")
    except RequestError:
        raise RequestError(f"{format_value(name)} is not the name of a publisher.") from None


@dataclass(frozen=True)
class MirroredBuild:
    """One build that the mirror has, or that a dry run would put there.

    Attributes:
        repo_id: The repository, after redirects.
        commit: The commit.
        variant: The build.
        size: Bytes of its files.
        archive: Bytes of its archive; None in a dry run for a build that is not there.
        new: Whether the mirror did not have it.
    """

    repo_id: str
    commit: str
    variant: str
    size: int
    archive: int | None
    new: bool


@dataclass(frozen=True)
class MirroredCommit:
    """One commit that the mirror has.

    Attributes:
        repo_id: The repository.
        commit: The commit.
        names: The branches and tags that are at the commit in the mirror.
        builds: Its builds that were asked for.
        changed: Whether the mirror did not have it so.
        absent: The builds that its origin has and the mirror does not have.
    """

    repo_id: str
    commit: str
    names: tuple[str, ...]
    builds: tuple[MirroredBuild, ...]
    changed: bool
    absent: tuple[str, ...] = ()


@dataclass(frozen=True)
class LeftOut:
    """Something that was not taken, which is no failure.

    Attributes:
        kernel: The repository or build.
        reason: Why.
    """

    kernel: str
    reason: str


@dataclass(frozen=True)
class MirrorResult:
    """The result of a run.

    Attributes:
        url: The mirror.
        origin: Where the kernels were taken from.
        commits: The commits that the mirror has now.
        left_out: What was not taken.
        failures: What could not be taken.
        dry_run: Whether nothing was written.
        sent: Bytes of the archives that were sent.
        documents: The number of documents that were written.
        pages: The pages for people that were written; None if the mirror has none.
    """

    url: str
    origin: str
    commits: tuple[MirroredCommit, ...]
    left_out: tuple[LeftOut, ...]
    failures: tuple[DownloadFailure, ...]
    dry_run: bool
    sent: int = 0
    documents: int = 0
    pages: CatalogChanges | None = None

    @property
    def builds(self) -> tuple[MirroredBuild, ...]:
        """The builds of all commits."""
        return tuple(build for commit in self.commits for build in commit.builds)


class MirrorProgress(Protocol):
    """Receives the progress of a run, from any thread."""

    def start(self, files: int, size: int) -> None:
        """More of the work is known.

        Args:
            files: The number of further files to fetch.
            size: Their bytes.
        """

    def arrived(self, files: int, size: int) -> None:
        """Files have arrived.

        Args:
            files: Their number since the last call.
            size: Bytes that arrived since the last call.
        """

    def stored(self, size: int) -> None:
        """An archive is in the mirror now.

        Args:
            size: Its bytes.
        """
