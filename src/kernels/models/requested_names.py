"""The rules for the names in a request, without importing what it becomes: a requirement, a policy of trust."""

from __future__ import annotations

import operator
import os
import re
from typing import Any

from kernels.errors import RequestError

__all__ = [
    "MAX_VERSION",
    "allowed_repositories",
    "branch_version",
    "check_repo_id",
    "check_requested",
    "check_revision",
    "check_version",
    "is_commit",
    "is_repo_id",
    "is_revision",
]

# Each is compiled when it is first used, and kept by `re`.

# huggingface_hub's rule for a repository's name, narrowed to `org/name`: letters, digits, `-`, `_`, `.`; no `--` or
# `..`, none of `-` and `.` at either end, 96 characters at most a part.
_PART = r"(?!.*(--|\.\.))[A-Za-z0-9_]([A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_COMMIT = r"[0-9a-f]{40}|[0-9a-f]{64}"
# Git's rule for a ref's name (git-check-ref-format(1)), without what could leave a folder or break a URL.
_REVISION = r"(?!.*(\.\.|//|@\{|/\.|\.lock(/|$)))[^\x00-\x20\x7f~^:?*\[\\./-][^\x00-\x20\x7f~^:?*\[\\]*(?<![/.])"

#: The largest version.
MAX_VERSION = 10**6


def check_requested(repo_id: Any, version: Any, revision: Any) -> int | None:
    """Check a repository, and at most one of a version and a revision; return the version as an int.

    Raises:
        TypeError: One is of the wrong type.
        RequestError: One is not valid, or both a version and a revision are given.

    Example:
        >>> check_requested("org/relu", 1, None)
        1
    """
    # Not in `check_repo_id`, which servers call with what clients send.
    is_name = not isinstance(repo_id, str) or "://" in repo_id or is_repo_id(repo_id)
    if not is_name and (repo_id.startswith((".", "/", "~")) or os.path.isdir(repo_id)):
        raise RequestError(
            f"`repo_id` is {repo_id[:200]!r}, a path; expected 'org/name'. To load a folder, call "
            f"get_local_kernel({repo_id[:200]!r})."
        )
    check_repo_id(repo_id)
    if version is not None and revision is not None:
        raise RequestError(
            f"Either `version` ({version}) or `revision` ({revision!r}) can be given for {repo_id}, not both."
        )
    if revision is not None:
        check_revision(revision)
    return None if version is None else check_version(version)


def is_commit(text: str) -> bool:
    """Whether a revision is a full commit id (40 or 64 hexadecimal digits).

    Example:
        >>> is_commit("0123456789abcdef0123456789abcdef01234567")
        True
    """
    return re.fullmatch(_COMMIT, text) is not None


def branch_version(branch: str) -> int | None:
    """The version that a branch `v<version>` holds; None of another branch.

    Example:
        >>> branch_version("v2"), branch_version("v02")
        (2, None)
    """
    found = re.fullmatch(r"v(0|[1-9][0-9]{0,5})", branch)
    return None if found is None else int(found[1])


def check_repo_id(repo_id: Any) -> str:
    """Return `repo_id` if it is `org/name`.

    Raises:
        TypeError: It is not a string.
        RequestError: It is not `org/name` with the characters a Hub allows.

    Example:
        >>> check_repo_id("kernels-community/relu")
        'kernels-community/relu'
    """
    if not isinstance(repo_id, str):
        raise TypeError(f"`repo_id` is {repo_id!r} ({type(repo_id).__name__}); expected a string 'org/name'.")
    if "://" in repo_id:
        raise RequestError(
            f"`repo_id` is {repo_id[:200]!r}; expected 'org/name' alone, without the URL of a Hub. KERNELS_HUB names "
            "another Hub."
        )
    if not is_repo_id(repo_id):
        raise RequestError(
            f"`repo_id` is {repo_id[:200]!r}; expected 'org/name', each part of letters, digits, '-', '_' and '.', "
            "96 characters at most."
        )
    return repo_id


def allowed_repositories(trust_remote_code: Any) -> bool | frozenset[str]:
    """The repositories that a `trust_remote_code` argument allows: all, none, or those it lists.

    None, which programs pass on from a configuration, is False.

    Raises:
        TypeError: It is neither None, a bool nor a list of strings.
        RequestError: A listed name is not a repository.

    Example:
        >>> allowed_repositories(["kernels-community/relu"])
        frozenset({'kernels-community/relu'})
    """
    if trust_remote_code is None or isinstance(trust_remote_code, bool):
        return trust_remote_code is True
    if isinstance(trust_remote_code, (list, tuple, set, frozenset)):
        return frozenset(map(check_repo_id, trust_remote_code))
    raise TypeError(
        "`trust_remote_code`: expected True, False or a list of repositories such as ['org/name'], got "
        f"{trust_remote_code!r} ({type(trust_remote_code).__name__})."
    )


def is_revision(text: str) -> bool:
    """Whether a text can be the name of a branch or tag, or a commit.

    Example:
        >>> is_revision("v1"), is_revision("../v1")
        (True, False)
    """
    return len(text) <= 255 and re.fullmatch(_REVISION, text) is not None and text.isprintable()


def is_repo_id(text: str) -> bool:
    """Whether a text is `org/name`.

    Example:
        >>> is_repo_id("kernels-community/relu"), is_repo_id("../relu")
        (True, False)
    """
    parts = text.split("/")
    return len(parts) == 2 and all(re.fullmatch(_PART, part) is not None for part in parts)


def check_version(version: Any) -> int:
    """Return `version` as an int if it is a kernel's major version.

    Raises:
        TypeError: It is not an integer; NumPy's are.
        RequestError: It is negative, or too large for a version.
    """
    if isinstance(version, bool) or not hasattr(version, "__index__"):
        raise TypeError(f"`version` is {version!r} ({type(version).__name__}); expected an integer such as 1.")
    number: int = operator.index(version)
    if not 0 <= number <= MAX_VERSION:
        raise RequestError(f"`version` is {number}; expected 0 or a positive integer up to {MAX_VERSION}.")
    return number


def check_revision(revision: Any) -> str:
    """Return `revision` if it can be a branch, a tag or a commit.

    Raises:
        TypeError: It is not a string.
        RequestError: Git would not accept it as a name.
    """
    if not isinstance(revision, str):
        raise TypeError(
            f"`revision` is {revision!r} ({type(revision).__name__}); expected a branch, a tag or a commit."
        )
    if not is_revision(revision):
        raise RequestError(f"`revision` is {revision[:200]!r}; expected a branch, a tag or a commit.")
    return revision
