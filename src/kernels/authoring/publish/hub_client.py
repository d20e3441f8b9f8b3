"""The Hub that a kernel is published to: its URL and token, its branches and files, and the commit.

Every request goes through `HfApi`; its errors are raised as this package's, with what had been done until then.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

from kernels import settings
from kernels.authoring.publish.local_builds import LocalFile
from kernels.errors import HubUnavailable, KernelsError, NotInCache, RepositoryNotFound, RequestError, RevisionNotFound
from kernels.sources.wire import connection_errors
from kernels.support import secrets
from kernels.support.formatting import format_error, format_text, shell_word
from kernels.support.logs import make_safe
from kernels.support.text import clean
from kernels.trust.file_hashes import git_blob_id

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi

__all__ = ["NOT_PUBLISHED", "BranchMoved", "CommitChanges", "PublishClient", "RemoteBranch", "open_hub", "same_file"]

_KIND = "kernel"

#: Held while constants of huggingface_hub are changed: they are the whole process's, so that two uploads in threads are
#: sent one after the other.
_CONSTANTS = threading.RLock()

#: The largest file that is read from a branch: a page, a `metadata.json`.
_MAX_READ_BYTES = 4 * 1024 * 1024


class BranchMoved(RequestError):
    """Someone else committed to the branch meanwhile."""


@dataclass(frozen=True)
class RemoteBranch:
    """A branch on the Hub: the commit at its head, and each file's size and SHA-256 or git blob id."""

    head: str
    files: Mapping[str, tuple[int, str]]


@dataclass(frozen=True)
class CommitChanges:
    """The changes of one commit: files by path (bytes or a local file), and deleted paths; folders end in `/`."""

    files: Mapping[str, bytes | LocalFile]
    deleted: Sequence[str]


@dataclass(frozen=True)
class PublishClient:
    """A Hub to publish to.

    Attributes:
        url: Its URL.
        api: huggingface_hub's client for it.
        token: The token.
    """

    url: str
    api: HfApi
    token: str = field(repr=False)

    def branches(self, repo_id: str) -> dict[str, str] | None:
        """The commit at the head of each branch of a repository; None if the repository does not exist."""
        from huggingface_hub.errors import RepositoryNotFoundError

        with self.errors(f"asking for {repo_id}"):
            try:
                refs = self.api.list_repo_refs(repo_id, repo_type=_KIND)
            except RepositoryNotFoundError as error:
                if _status(error) == 401 and "Invalid credentials" in str(error):
                    raise
                return None
        return {branch.name: branch.target_commit for branch in refs.branches}

    def create_repository(self, repo_id: str, *, private: bool) -> None:
        """Create a repository of type `kernel`, if it does not exist."""
        with self.errors(f"creating {repo_id}"), _allow_kernel_repositories():
            self.api.create_repo(repo_id, repo_type=_KIND, private=private, exist_ok=True)

    def create_branch(self, repo_id: str, branch: str) -> None:
        """Create a branch, if it does not exist."""
        with self.errors(f"creating the branch {branch} of {repo_id}"):
            self.api.create_branch(repo_id, branch=branch, repo_type=_KIND, exist_ok=True)

    def private(self, repo_id: str) -> bool:
        """Whether a repository is private."""
        with self.errors(f"asking for {repo_id}"):
            return bool(getattr(self.api.kernel_info(repo_id), "private", False))

    def remote(self, repo_id: str, head: str) -> RemoteBranch:
        """The files of a commit."""
        from huggingface_hub.hf_api import RepoFile

        with self.errors(f"listing {repo_id}"):
            entries = list(self.api.list_repo_tree(repo_id, recursive=True, repo_type=_KIND, revision=head))
        files = {
            entry.path: (entry.size, entry.lfs.sha256 if entry.lfs is not None else entry.blob_id)
            for entry in entries
            if isinstance(entry, RepoFile)
        }
        return RemoteBranch(head, files)

    def files_at(self, repo_id: str, revision: str, paths: Sequence[str]) -> dict[str, tuple[int, str]]:
        """The size and the hash of those of some paths that a revision has, as `RemoteBranch.files`."""
        from huggingface_hub.hf_api import RepoFile

        with self.errors(f"asking for files of {repo_id}"):
            found = self.api.get_paths_info(repo_id, list(paths), repo_type=_KIND, revision=revision)
        return {
            entry.path: (entry.size, entry.lfs.sha256 if entry.lfs is not None else entry.blob_id)
            for entry in found
            if isinstance(entry, RepoFile)
        }

    def read(self, repo_id: str, commit: str, path: str, listed: tuple[int, str]) -> bytes | None:
        """The content of a small file of a commit; None if it is not the one that was listed, or too large.

        Args:
            repo_id: The repository.
            commit: The commit.
            path: The file.
            listed: Its size and hash, as listed.
        """
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        size, oid = listed
        if size > _MAX_READ_BYTES:
            return None
        url = f"{self.url}/{_KIND}s/{repo_id}/resolve/{quote(commit, safe='')}/{quote(path)}"
        data = bytearray()
        with self.errors(f"reading {path} of {repo_id}"):
            headers = build_hf_headers(token=self.token or False)
            with get_session().stream("GET", url, headers=headers, follow_redirects=True) as answer:
                hf_raise_for_status(answer)
                for chunk in answer.iter_bytes():
                    data += chunk
                    if len(data) > size:
                        return None
        content = bytes(data)
        actual = hashlib.sha256(content).hexdigest() if len(oid) == 64 else git_blob_id(content)
        return content if len(content) == size and actual == oid else None

    @contextmanager
    def writing(self, repo_id: str, branch: str) -> Iterator[None]:
        """Set huggingface_hub up for sending files and committing, as this Hub needs it; one upload at a time."""
        with _allow_kernel_repositories(), _bars_for_people(), self._without_xet_if_missing(repo_id, branch):
            yield

    def send(self, repo_id: str, branch: str, operations: Sequence[CommitOperationAdd], *, create_pr: bool) -> None:
        """Send those files that a commit only names (large ones), unless the Hub has them; within `writing`."""
        with self.errors("sending the files"):
            self.api.preupload_lfs_files(
                repo_id, operations, repo_type=_KIND, revision=branch, create_pr=create_pr, free_memory=False
            )

    def commit(
        self,
        repo_id: str,
        branch: str,
        operations: Sequence[CommitOperationAdd],
        deleted: Sequence[str],
        *,
        message: str,
        parent: str,
        create_pr: bool,
    ) -> tuple[str, str | None]:
        """Make the commit that publishes what was sent; within `writing`.

        Returns:
            The commit, and the URL of the pull request if one was opened.

        Raises:
            BranchMoved: The branch is no longer at `parent`.
        """
        from huggingface_hub import CommitOperationDelete

        with self.errors("making the commit", lambda: self._commit_state(repo_id, branch, parent, create_pr)):
            info = self.api.create_commit(
                repo_id,
                [*map(CommitOperationDelete, deleted), *operations],
                commit_message=message,
                parent_commit=parent,
                repo_type=_KIND,
                revision=branch,
                create_pr=create_pr,
            )
        return info.oid, info.pr_url

    def _commit_state(self, repo_id: str, branch: str, parent: str, create_pr: bool) -> str:
        """Whether a commit without an answer was made, as a sentence."""
        unknown = "It is not known whether the commit was made"
        if create_pr:
            return unknown
        try:
            head = (self.branches(repo_id) or {}).get(branch)
        except KernelsError:
            return unknown
        return NOT_PUBLISHED if head == parent else f"{branch} is now at {head}, so the commit was probably made"

    @contextmanager
    def _without_xet_if_missing(self, repo_id: str, branch: str) -> Iterator[None]:
        """Send large files without Xet to a Hub that does not have it; huggingface_hub would fail instead."""
        from huggingface_hub import constants
        from huggingface_hub.utils import build_hf_headers, get_session

        before = constants.HF_HUB_DISABLE_XET
        if not before:
            url = f"{self.url}/api/{_KIND}s/{repo_id}/xet-write-token/{quote(branch, safe='')}"
            with self.errors("asking how to send files"):
                answer = get_session().get(url, headers=build_hf_headers(token=self.token))
            constants.HF_HUB_DISABLE_XET = answer.status_code == 404
        try:
            yield
        finally:
            constants.HF_HUB_DISABLE_XET = before

    @contextmanager
    def errors(self, doing: str, state: Callable[[], str] = lambda: NOT_PUBLISHED) -> Iterator[None]:
        """Raise huggingface_hub's errors as this package's: with the Hub, the step, and what was published."""
        try:
            yield
        except KernelsError:
            raise
        except Exception as error:
            translated = self._translated(error, doing, state)
            if translated is None:
                raise
            # A traceback shows it as well, and it may quote a token that a Hub has sent back.
            error.args = tuple(clean(each) if isinstance(each, str) else each for each in error.args)
            raise translated from error

    def _translated(self, error: BaseException, doing: str, state: Callable[[], str]) -> KernelsError | None:
        from huggingface_hub.errors import HfHubHTTPError
        from huggingface_hub.errors import RevisionNotFoundError as NoRevision

        connection = connection_errors()
        for cause in _chain(error):
            if isinstance(cause, HfHubHTTPError):
                status, text = _status(cause), format_text(" ".join(str(cause).split()), 1000)
                # huggingface_hub's own message adds advice for its own Hub.
                answer = format_text(" ".join((cause.server_message or "").split()), 500).rstrip(".")
                said = f" ({answer})" * bool(answer)
                if status in (401, 403):
                    needed = "a token" if status == 401 else "a writable Hub with enough space, and a token"
                    return RequestError(
                        f"{self.url} refuses the token ({status}) while {doing}{said}. "
                        f"{NOT_PUBLISHED}. Publishing needs {needed} with write access: "
                        f"{settings.token_source(self.url)}."
                    )
                if status in (402, 413, 507):
                    return RequestError(
                        f"{self.url} has no space for this ({status}) while {doing}{said}. {NOT_PUBLISHED}. Make space "
                        "there, or publish fewer builds, and run the same command again."
                    )
                if status in (409, 412):
                    return BranchMoved(
                        f"{self.url} answered {status} while {doing}: someone else changed the branch meanwhile. "
                        f"{NOT_PUBLISHED}; check the change, and run this again."
                    )
                if status >= 500 or status in (408, 429):
                    return HubUnavailable(f"{self.url} answered {status} while {doing}{said}. {state()}. {_AGAIN}")
                kind = RevisionNotFound if isinstance(cause, NoRevision) else RepositoryNotFound
                refused = kind if status == 404 else RequestError
                return refused(f"{self.url} answered {status} while {doing}: {text} {NOT_PUBLISHED}.")
            if isinstance(cause, connection):
                return HubUnavailable(
                    f"The connection to {self.url} broke while {doing} ({format_error(cause)}). {state()}. {_AGAIN}"
                )
        if isinstance(error, ValueError):  # huggingface_hub rejects a card, or the Hub an object
            return RequestError(f"{self.url} rejected this while {doing}: {format_text(error, 1000)} {NOT_PUBLISHED}.")
        if isinstance(error, (AttributeError, LookupError, TypeError)):  # it does not check the answer's form
            return HubUnavailable(
                f"{self.url} gave an answer that is not a Hub's while {doing} ({format_error(error)}). {state()}."
            )
        return None


@contextmanager
def _bars_for_people() -> Iterator[None]:
    """Let huggingface_hub show the progress of large files on a terminal or in a notebook only."""
    from huggingface_hub import constants, utils

    shown = sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules)
    # Who sets HF_HUB_DISABLE_PROGRESS_BARS=0 wants bars everywhere.
    if shown or utils.are_progress_bars_disabled() or constants.HF_HUB_DISABLE_PROGRESS_BARS is False:
        yield
        return
    utils.disable_progress_bars()
    try:
        yield
    finally:
        utils.enable_progress_bars()


@contextmanager
def _allow_kernel_repositories() -> Iterator[None]:
    """Let huggingface_hub 1.x create and change kernel repositories: it can, but rejects their type first."""
    from huggingface_hub import constants

    with _CONSTANTS:
        before = constants.REPO_TYPES
        constants.REPO_TYPES = constants.REPO_TYPES_WITH_KERNEL
        try:
            yield
        finally:
            constants.REPO_TYPES = before


NOT_PUBLISHED = "Nothing was published"
_AGAIN = "Run the same command again: large files that were sent are not sent twice."


def open_hub(url: str | None = None, token: str | None = None, *, writing: bool = True) -> PublishClient:
    """The client of the Hub to publish to.

    Args:
        url: Its URL. Default: the only Hub in `KERNELS_HUB`, else `HF_ENDPOINT`.
        token: The token. Default: `KERNELS_HUB_TOKEN` for the Hub in `KERNELS_HUB`, huggingface_hub's own for its own
            Hub; another URL needs this argument.
        writing: Whether a token is needed.

    Raises:
        RequestError: No token is found, or `KERNELS_HUB` names no Hub, or several.
        NotInCache: `HF_HUB_OFFLINE` is set.
    """
    address = _only_hub() if url is None else url.rstrip("/")
    if not address.lower().startswith(("http://", "https://")):
        raise RequestError(f"`hub` is {url!r}; expected a URL such as http://127.0.0.1:8910.")
    if settings.offline():
        raise NotInCache(f"Nothing was sent to {address}: HF_HUB_OFFLINE is set.")
    token = _token(address) if token is None else token
    if not token and writing:
        raise RequestError(f"No token for {address}: publishing needs {settings.token_source(address)}.")
    from huggingface_hub import HfApi

    from kernels._version import __version__

    if token:
        secrets.register(token)
    make_safe("huggingface_hub")
    api = HfApi(endpoint=address, token=token or False, library_name="kernels", library_version=__version__)
    return PublishClient(address, api, token or "")


def _only_hub() -> str:
    """The Hub to publish to: what several addresses mean to a reader says nothing about where to write."""
    addresses = settings.hub_addresses()
    hubs = [each.value for each in addresses if each.kind in ("http", "hub")]
    folder = next((each.value for each in addresses if each.kind == "folder"), "FOLDER")
    if not hubs and addresses[0].kind == "folder":
        raise RequestError(
            f"`KERNELS_HUB` is the folder {folder!r}, but kernels are published to a URL. To publish to it, "
            f"run `kernels serve {shell_word(folder)} --writable`, and set KERNELS_HUB to the URL that it prints."
        )
    if len(hubs) != 1:
        found = f"several ({', '.join(hubs)})" if hubs else "none"
        raise RequestError(f"Kernels are published to one Hub, and `KERNELS_HUB` names {found}. Set it to that Hub.")
    return hubs[0]


def same_file(remote: tuple[int, str] | None, content: bytes | LocalFile) -> bool:
    """Whether a file is equal to the Hub's: `remote` is its size and its SHA-256 or git blob id."""
    if remote is None:
        return False
    size, oid = remote
    if isinstance(content, bytes):
        return size == len(content) and oid in (git_blob_id(content), hashlib.sha256(content).hexdigest())
    return size == content.size and oid == (content.sha256 if len(oid) == 64 else git_blob_id(content.path))


def _token(address: str) -> str | None:
    from huggingface_hub import constants, get_token

    # A token is sent only to the Hub it was made for.
    token = settings.hub_token(address)
    return get_token() if token is None and address == str(constants.ENDPOINT).rstrip("/") else token


def _status(error: BaseException) -> int:
    return int(getattr(getattr(error, "response", None), "status_code", 0) or 0)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
