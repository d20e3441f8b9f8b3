"""Answers of a Hub that asking again does not change: a no, and another repository than the one asked for."""

from __future__ import annotations

from typing import Any

from kernels.support.formatting import format_text
from kernels.support.text import SafeText

__all__ = ["HubMoved", "HubRefused", "refusal"]


class HubRefused(SafeText):
    """An answer that repeating the question does not change: not found, not allowed, gated."""

    def __init__(self, url: str, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code or message} for {url}")
        self.url = url
        self.status = status
        self.code = code
        self.message = message

    @property
    def repository_missing(self) -> bool:
        """Whether the answer says that there is no such repository, or none this token may see.

        The Hub answers 401 for a repository that it does not show to a stranger, and with that message for a token that
        it does not accept (`hf_raise_for_status` of huggingface_hub tells them apart in the same way).
        """
        if self.code:
            return self.code in ("RepoNotFound", "GatedRepo")
        return self.status == 404 or (self.status == 401 and "Invalid credentials" not in self.message)

    @property
    def revision_missing(self) -> bool:
        """Whether the repository is there, and the revision is not."""
        return self.code == "RevisionNotFound"


class HubMoved(SafeText):
    """The Hub answers for another repository than the one asked for: it was renamed, or handed to someone else."""

    def __init__(self, repo_id: str) -> None:
        super().__init__(repo_id)
        self.repo_id = repo_id


def refusal(url: str, response: Any) -> HubRefused:
    """The error for an answer that is a no."""
    return HubRefused(
        url,
        response.status_code,
        format_text(response.headers.get("X-Error-Code", ""), 100),
        format_text(response.headers.get("X-Error-Message", ""), 500),
    )
