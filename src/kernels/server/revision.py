"""What a client names in a URL: a branch, a pull request or a commit. Parsed once, for reading and for writing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from kernels.models.requirement import is_commit

__all__ = ["PULLS", "Revision", "is_pull_number", "parse_revision"]

#: The folder of pull requests: a name that no branch can have.
PULLS = ".pulls"

_NUMBER = re.compile(r"[1-9][0-9]{0,8}")


@dataclass(frozen=True)
class Revision:
    """A parsed revision.

    Attributes:
        kind: What it is.
        name: The branch, the number of the pull request, or the commit's id. It need not exist, and may have any
            characters.
        folder: Its folder in the repository, if it exists.
    """

    kind: Literal["branch", "pull", "commit"]
    name: str

    @property
    def folder(self) -> str:
        return f"{PULLS}/{self.name}" if self.kind == "pull" else self.name


def parse_revision(text: str) -> Revision:
    """What a revision names.

    Args:
        text: `refs/pr/<number>`, a commit id, or a branch, also as `refs/heads/<branch>`. Every other text is a branch
            that does not exist, as no folder has its name.

    Example:
        >>> [parse_revision(text).kind for text in ("refs/pr/1", "0" * 40, "v1")]
        ['pull', 'commit', 'branch']
        >>> parse_revision("refs/heads/refs/heads/v1").name
        'refs/heads/v1'
    """
    if is_commit(text):
        return Revision("commit", text)
    if text.startswith("refs/pr/") and is_pull_number(number := text.removeprefix("refs/pr/")):
        return Revision("pull", number)
    return Revision("branch", text.removeprefix("refs/heads/"))


def is_pull_number(text: str) -> bool:
    """Whether a text is the number of a pull request."""
    return _NUMBER.fullmatch(text) is not None
