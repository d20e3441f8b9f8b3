"""Answers of a Hub that another try does not change: a refusal, or a redirect to another repository.

Code that was written for huggingface_hub catches its errors, so an error about what a Hub does not have is both: ours,
and `RepositoryNotFoundError`, `RevisionNotFoundError`, `EntryNotFoundError` or `HfHubHTTPError`.
"""

from __future__ import annotations

import sys
from typing import Any, TypeVar

from kernels import settings
from kernels.errors import HubUnavailable, KernelsError, RepositoryNotFound, RevisionNotFound
from kernels.support.formatting import format_text
from kernels.support.text import CleanError

__all__ = ["HubRefused", "Moved", "no_answer", "not_found", "of_hub", "refusal"]

_Error = TypeVar("_Error", bound=KernelsError)


class HubRefused(CleanError):
    """An answer that another try does not change: not found, not allowed, gated; or a redirect that is not followed.

    Attributes:
        status: The answer's status; 0 for a redirect that is not followed, of which `message` says where it leads.
        response: The answer, as errors carry it; None where it was not an answer's status.
    """

    def __init__(self, url: str, status: int, code: str, message: str, response: Any = None) -> None:
        super().__init__(f"{status or 'a redirect'} {code or message} for {url}")
        self.url = url
        self.status = status
        self.code = code
        self.message = message
        self.response = response

    @property
    def repository_missing(self) -> bool:
        """Whether the answer says that the repository does not exist, or that this token may not see it.

        The Hub answers 401 for a repository that needs a token or does not exist, with a header that says so, and with
        that message if it does not accept the token (`hf_raise_for_status` of huggingface_hub distinguishes them in
        the same way). A 401 without any such header is a web server's or a proxy's own: it refuses the token.
        """
        if self.code:
            return self.code in ("RepoNotFound", "GatedRepo")
        said = bool(self.message) and "Invalid credentials" not in self.message
        return self.status == 404 or (self.status == 401 and said)

    @property
    def access_refused(self) -> bool:
        """Whether the answer says that this client, or its token, has no access."""
        return self.status in (401, 403) and not self.repository_missing

    @property
    def revision_missing(self) -> bool:
        """Whether the repository exists, and the revision does not."""
        return self.code == "RevisionNotFound"


class Moved(CleanError):
    """A repository has moved. The new one is requested, and trusted or refused, separately.

    Args:
        repo_id: The repository that was asked for.
        destination: The repository that replaces it.
    """

    def __init__(self, repo_id: str, destination: str) -> None:
        super().__init__(f"{repo_id} is now {destination}")
        self.repo_id = repo_id
        self.destination = destination


def refusal(url: str, response: Any) -> HubRefused:
    """The error for an answer that is a refusal."""
    from kernels.sources.hub_exceptions import without_secrets

    return HubRefused(
        url,
        response.status_code,
        format_text(response.headers.get("X-Error-Code", ""), 100),
        format_text(response.headers.get("X-Error-Message", ""), 500),
        without_secrets(response),
    )


def of_hub(error: _Error, response: Any = None) -> _Error:
    """An error that is also huggingface_hub's for the same, if the program has imported huggingface_hub.

    Args:
        error: The error of this package.
        response: The Hub's answer, if the error is about one.

    Example:
        >>> of_hub(RepositoryNotFound("no repository acme/relu"))
        RepositoryNotFound('no repository acme/relu')
    """
    if "huggingface_hub.errors" not in sys.modules:
        return error
    from kernels.sources.hub_exceptions import both, without_secrets

    cls = both(type(error), "" if response is None else response.headers.get("X-Error-Code", ""))
    if cls is None:  # it is of huggingface_hub already, or a subclass
        return error
    return cls(*error.args, response=without_secrets(response))  # type: ignore[no-any-return]


def no_answer(endpoint: str, what: str, refusal: HubRefused) -> HubUnavailable:
    """The error for a Hub that refuses to answer about `what`."""
    advice = {
        401: f" The token was not accepted, or there is none. Check {settings.token_source(endpoint)}.",
        403: f" It, or a proxy, refuses access from here. Check {settings.token_source(endpoint)}.",
    }
    reason = refusal.code or refusal.message
    said = f"answered {refusal.status}{' ' * bool(reason)}{reason} about {what}."
    if not refusal.status:
        said = f"redirected the request about {what} {reason}."
    error = of_hub(HubUnavailable(f"{endpoint} {said}{advice.get(refusal.status, '')}"), refusal.response)
    error.refused = refusal.access_refused
    return error


def not_found(endpoint: str, repo_id: str, refusal: HubRefused, commit: str | None = None) -> KernelsError:
    """The error for a repository, or a commit of it, that a Hub does not have or does not show."""
    if refusal.code == "GatedRepo":
        gated = RepositoryNotFound(
            f"{repo_id} is gated on {endpoint}: ask for access on its page, then set a token that has access: "
            f"{settings.token_source(endpoint)}."
        )
        return of_hub(gated, refusal.response)
    if commit is not None and refusal.revision_missing:
        error = RevisionNotFound(f"{repo_id} has no commit {commit} on {endpoint}.")
        return of_hub(error, refusal.response)
    # A Hub gives a code with 404.
    url = " Its answer is not that of a Hub: check its URL." if refusal.status == 404 and not refusal.code else ""
    variable = settings.token_source(endpoint).partition(",")[0]
    missing = RepositoryNotFound(
        f"{endpoint} has no repository {repo_id}.{url} Check the name; a private repository needs a token ({variable})."
    )
    return of_hub(missing, refusal.response)
