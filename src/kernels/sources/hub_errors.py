"""Answers of a Hub that another try does not change: a refusal, or a redirect to another repository."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kernels import settings
from kernels.errors import HubUnavailable, KernelsError, RepositoryNotFound, RevisionNotFound
from kernels.support.formatting import format_text
from kernels.support.text import SafeText

__all__ = ["HubMoved", "HubRefused", "no_answer", "not_found", "refusal"]


class HubRefused(SafeText):
    """An answer that another try does not change: not found, not allowed, gated."""

    def __init__(self, url: str, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code or message} for {url}")
        self.url = url
        self.status = status
        self.code = code
        self.message = message

    @property
    def repository_missing(self) -> bool:
        """Whether the answer says that the repository does not exist, or that this token may not see it.

        The Hub answers 401 for a repository that needs a token, and adds that message if it does not accept the token
        (`hf_raise_for_status` of huggingface_hub distinguishes them in the same way).
        """
        if self.code:
            return self.code in ("RepoNotFound", "GatedRepo")
        return self.status == 404 or (self.status == 401 and "Invalid credentials" not in self.message)

    @property
    def revision_missing(self) -> bool:
        """Whether the repository exists, and the revision does not."""
        return self.code == "RevisionNotFound"


class HubMoved(SafeText):
    """The Hub redirects to another repository: it was renamed or transferred."""

    def __init__(self, repo_id: str) -> None:
        super().__init__(repo_id)
        self.repo_id = repo_id


def refusal(url: str, response: Any) -> HubRefused:
    """The error for an answer that is a refusal."""
    return HubRefused(
        url,
        response.status_code,
        format_text(response.headers.get("X-Error-Code", ""), 100),
        format_text(response.headers.get("X-Error-Message", ""), 500),
    )


def no_answer(endpoint: str, what: str, refusal: HubRefused) -> HubUnavailable:
    """The error for a Hub that refuses to answer about `what`."""
    advice = {
        401: f" The token was not accepted. Check {settings.token_source(endpoint)}.",
        403: " The Hub, or a proxy, refuses access from here.",
    }
    reason = refusal.code or refusal.message
    return HubUnavailable(
        f"{endpoint} answered {refusal.status}{' ' * bool(reason)}{reason} about {what}."
        + advice.get(refusal.status, "")
    )


def not_found(
    endpoint: str, repo_types: Iterable[str], repo_id: str, refusal: HubRefused, commit: str | None = None
) -> KernelsError:
    """The error for a repository, or a commit of it, that a Hub does not have or does not show."""
    if refusal.code == "GatedRepo":
        return RepositoryNotFound(
            f"{repo_id} is gated on {endpoint}: ask for access on its page, then set a token that has access: "
            f"{settings.token_source(endpoint)}."
        )
    if commit is not None and refusal.revision_missing:
        return RevisionNotFound(f"{repo_id} has no commit {commit} on {endpoint}.")
    return RepositoryNotFound(
        f"{endpoint} has no repository {repo_id} of type {' or '.join(repo_types)} that can be read "
        f"(it answered {refusal.status} {refusal.code}). Check the name; a private repository needs a token: "
        f"{settings.token_source(endpoint)}."
    )
