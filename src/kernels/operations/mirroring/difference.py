"""What differs between two sides: repositories, branches, builds, files and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "BuildChange",
    "Change",
    "CommitChange",
    "FieldChange",
    "FileDifference",
    "MirrorDifference",
    "RefChange",
    "RepositoryDifference",
]

#: What became of something between the first side and the second.
Change = Literal["added", "removed", "changed"]


@dataclass(frozen=True)
class FieldChange:
    """A value that differs: of metadata, of the publisher, or the signer.

    Attributes:
        name: What it is.
        old: The first side's value, None if it has none.
        new: The second side's value.
    """

    name: str
    old: str | None
    new: str | None


@dataclass(frozen=True)
class FileDifference:
    """A file of a build that differs.

    Attributes:
        path: Its path in the build.
        change: What became of it.
        old: Bytes on the first side; None if it is not there.
        new: Bytes on the second side.
    """

    path: str
    change: Change
    old: int | None
    new: int | None


@dataclass(frozen=True)
class BuildChange:
    """A build that differs.

    Attributes:
        name: The branch or tag; or the commit, where no branch or tag is at it.
        variant: The build.
        change: What became of it.
        old: Bytes of its files on the first side; None if it is not there.
        new: Bytes on the second side.
        files: The files that differ, of a build that both sides have.
        fields: The metadata and the signer, where they differ.
    """

    name: str
    variant: str
    change: Change
    old: int | None
    new: int | None
    files: tuple[FileDifference, ...] = ()
    fields: tuple[FieldChange, ...] = ()


@dataclass(frozen=True)
class RefChange:
    """A branch or tag that moved.

    Attributes:
        name: Its name.
        old: The commit on the first side; None if it is not there.
        new: The commit on the second side.
    """

    name: str
    old: str | None
    new: str | None


@dataclass(frozen=True)
class CommitChange:
    """A commit that one of two mirrors has, and that is not the new commit of a branch or tag.

    Attributes:
        commit: The commit.
        change: Whether the second side has it, or the first.
    """

    commit: str
    change: Change


@dataclass(frozen=True)
class RepositoryDifference:
    """A repository that differs.

    Attributes:
        repo_id: The repository.
        change: What became of it.
        refs: Branches and tags that moved.
        builds: Builds that differ.
        fields: The publisher's verdict and the new name, where they differ.
        commits: Other commits that only one of two mirrors has: lockfiles may pin them.
    """

    repo_id: str
    change: Change
    refs: tuple[RefChange, ...] = ()
    builds: tuple[BuildChange, ...] = ()
    fields: tuple[FieldChange, ...] = ()
    commits: tuple[CommitChange, ...] = ()


@dataclass(frozen=True)
class MirrorDifference:
    """What differs between two sides.

    Attributes:
        old: The first side.
        new: The second side.
        compared: The number of repositories that were compared.
        repositories: The repositories that differ.
    """

    old: str
    new: str
    compared: int
    repositories: tuple[RepositoryDifference, ...]
