"""A requirement's version or revision becomes a commit."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from kernels import settings
from kernels.errors import HubUnavailable, RevisionNotFound
from kernels.models.requirement import Requirement
from kernels.models.snapshot import Heads
from kernels.resolver.locks import NO_LOCK, ActiveLock
from kernels.sources.base import Source
from kernels.sources.hub_errors import of_hub
from kernels.support import distributed
from kernels.support.formatting import did_you_mean, format_names
from kernels.support.logs import logger, warn_once

__all__ = ["PickedCommit", "fresh_heads", "pick_commit"]

_log = logger("kernels._versions")

#: What may be a shortened commit; a Hub finds whole ones only.
_SHORTENED = r"(?i)[0-9a-f]{4,39}"

#: How many versions a message lists before it only counts them.
_LISTED = 20


class PickedCommit(NamedTuple):
    """The commit of a requirement.

    Attributes:
        requirement: The requirement, with the version or revision that was picked.
        commit: The commit; empty for a folder.
        lock: The lockfile that chose the commit; None if no lockfile did.
        listed_as: The repository's name in that lockfile: the former one, if it was renamed since.
    """

    requirement: Requirement
    commit: str
    lock: str | None = None
    listed_as: str = ""


def fresh_heads(source: Source, repo_id: str, since: float) -> Heads:
    """The branches of a repository as its source has them now; what the cache remembers of them does not do.

    Args:
        source: The source.
        repo_id: The repository.
        since: When the work began, in seconds since 1970. Answers from `KERNELS_REFRESH` seconds before do.

    Raises:
        HubUnavailable: The source did not answer.
    """
    heads = source.heads(repo_id)
    if source.endpoint is not None and heads.time < since - settings.refresh_seconds():
        why = "was not asked (HF_HUB_OFFLINE=1)" if source.offline else "did not answer"
        raise HubUnavailable(
            f"{source.name} {why}, and what the cache knows of {repo_id} may be old: it is not used here. Try again "
            "later."
        )
    return heads


def pick_commit(
    requirement: Requirement, source: Source, former: PickedCommit | None = None, lock: ActiveLock = NO_LOCK
) -> PickedCommit:
    """Pick the commit of a requirement; all ranks of a job get the same one.

    Args:
        requirement: The requirement.
        source: The source that knows the branches. It is not asked about what the lock lists.
        former: The commit that a lock pins of the repository under its former name, if it was renamed.
        lock: The active lock.

    Raises:
        RevisionNotFound: There is no such version or revision; the message lists those that exist.
        LockError: The lock lists the repository in another version only.
        NotLocked: Only locked kernels may be loaded, and this one is not locked.
    """
    if former is not None and not lock.lists(requirement.repo_id):
        return former._replace(requirement=requirement)
    if source.user_owned:
        return PickedCommit(requirement, "")
    locked = lock.find(requirement)
    if locked is not None:
        named = next((each for each in (requirement, locked.requirement) if each.branch is not None), None)
        named = named or Requirement(requirement.repo_id, revision=locked.commit)
        return PickedCommit(named, locked.commit, lock.where, requirement.repo_id)
    if requirement.commit is not None:
        return PickedCommit(requirement, requirement.commit)
    key = json.dumps([source.endpoint or source.name, requirement.repo_id, requirement.branch])
    answer = json.loads(distributed.agree(key, lambda: json.dumps(_look_up(requirement, source))))
    version, revision, commit = answer
    return PickedCommit(Requirement(requirement.repo_id, version=version, revision=revision), commit)


def _look_up(requirement: Requirement, source: Source) -> tuple[int | None, str | None, str]:
    heads = source.heads(requirement.repo_id)
    newest = next(iter(heads.versions), None)
    if requirement.version is not None:
        branch = heads.versions.get(requirement.version)
        if branch is None:
            message = f"{requirement.repo_id} has no version {requirement.version}{_offer(heads)}."
            raise _missing(message)
        if newest is not None and requirement.version < newest:
            warn_once(_log, f"{requirement} is used; version {newest} is the newest.")
        return requirement.version, None, heads.branches[branch]
    if requirement.revision is not None:
        commit = heads.commit(requirement.revision) or source.find_commit(requirement.repo_id, requirement.revision)
        if commit is None:
            names = format_names([*heads.branches, *heads.tags])
            shortened = (
                " A commit needs all of its 40 digits." if re.fullmatch(_SHORTENED, requirement.revision) else ""
            )
            raise _missing(
                f"{requirement.repo_id} has no branch, tag or commit {requirement.revision!r} in {source.name}; it has "
                f"{names or 'none'}.{shortened or did_you_mean(requirement.revision, [*heads.branches, *heads.tags])}",
            )
        return None, requirement.revision, commit
    if newest is not None:
        commit = heads.branches[heads.versions[newest]]
        warn_once(
            _log,
            f"{requirement}: version {newest} is used, the newest. Pin it with version={newest} (--version {newest}).",
        )
        return newest, None, commit
    if "main" in heads.branches:
        commit = heads.branches["main"]
        warn_once(_log, f"{requirement}: 'main' is used, as there are no versions. Pin it with revision={commit!r}.")
        return None, "main", commit
    message = f"{requirement.repo_id} has neither a version nor a branch 'main'{_offer(heads)}."
    raise _missing(message)


def _missing(message: str) -> RevisionNotFound:
    return of_hub(RevisionNotFound(message))


def _offer(heads: Heads) -> str:
    if heads.versions:
        return f"; it has {_versions(heads)}"
    names = format_names(heads.branches)
    return f"; it has no versions, but the branches {names} (revision=…)" if names else "; it has no branches"


def _versions(heads: Heads) -> str:
    """The versions, oldest first; of many only the newest."""
    newest = sorted(list(heads.versions)[:_LISTED])
    older = len(heads.versions) - len(newest)
    return ", ".join(map(str, newest)) + (f" and {older} older ones" if older else "")
