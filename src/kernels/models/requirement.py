"""A kernel that a caller requests: a repository, and a version or a revision."""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from kernels.models.requested_names import (
    branch_version,
    check_repo_id,
    check_requested,
    check_revision,
    check_version,
    is_commit,
    is_repo_id,
    is_revision,
)

__all__ = [
    "RepoInfo",
    "Requirement",
    "check_repo_id",
    "check_revision",
    "check_version",
    "is_commit",
    "is_repo_id",
    "is_revision",
]


@dataclass(frozen=True)
class RepoInfo:
    """The origin of a loaded kernel.

    Attributes:
        repo_id: The repository, `org/name` (after redirects).
        revision: The commit it was loaded at.
    """

    repo_id: str
    revision: str


class Requirement(
    msgspec.Struct, frozen=True, gc=False, rename="kebab", omit_defaults=True, forbid_unknown_fields=True
):
    """A repository, and at most one of a version and a revision; in files of kernels its keys are `repo-id` and so on.

    Args:
        repo_id: `org/name`.
        version: A major version: the head of branch `v<version>`.
        revision: A branch, a tag or a commit.

    Raises:
        RequestError: A name is not valid, or both a version and a revision are given.

    Example:
        >>> str(Requirement("kernels-community/activation", version=1))
        'kernels-community/activation version 1'
    """

    repo_id: str
    version: int | None = None
    revision: str | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "version", check_requested(self.repo_id, self.version, self.revision))

    @property
    def branch(self) -> str | None:
        """The branch `v<version>`, the revision, or None for a source's own choice."""
        return f"v{self.version}" if self.version is not None else self.revision

    @property
    def named_version(self) -> int | None:
        """The version, also of a revision that is a version's branch; None for any other.

        Example:
            >>> Requirement("org/relu", revision="refs/heads/v2").named_version
            2
        """
        if self.revision is None:
            return self.version
        return branch_version(re.sub(r"^refs/(heads|tags)/", "", self.revision))

    @property
    def commit(self) -> str | None:
        """The commit, if the revision is one."""
        return self.revision if self.revision is not None and is_commit(self.revision) else None

    def __str__(self) -> str:
        if self.version is not None:
            return f"{self.repo_id} version {self.version}"
        if self.revision is not None:
            return f"{self.repo_id} at {self.revision}"
        return self.repo_id
