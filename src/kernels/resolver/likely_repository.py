"""Which repository a mistyped name probably means: one that is in the cache, in the lock, or a local folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from kernels import settings
from kernels.errors import NotInCache, RepositoryNotFound, RequestError
from kernels.models.requirement import check_repo_id
from kernels.resolver.lock_pins import ActiveLock
from kernels.sources.hub_errors import NAME_ADVICE
from kernels.support.formatting import did_you_mean

__all__ = ["add_likely_name"]

#: Folders of the cache that are looked at.
_MOST_FOLDERS = 10_000


def add_likely_name(error: RepositoryNotFound | NotInCache, repo_id: str, lock: ActiveLock) -> None:
    """Add the likely name to an error about a repository that is not found.

    Args:
        error: The error.
        repo_id: The name that was given.
        lock: The active lock.

    Example:
        >>> from kernels.models.lockfile import Lock, Pin
        >>> from kernels.models.requirement import Requirement
        >>> lock = ActiveLock(Lock((Pin(Requirement("org/relu", version=1), "1" * 40),)))
        >>> error = RepositoryNotFound("There is no orgg/relu.")
        >>> add_likely_name(error, "orgg/relu", lock)
        >>> print(error)
        There is no orgg/relu. Did you mean 'org/relu'?
    """
    hint = did_you_mean(repo_id, _known(repo_id, lock), "/")
    if isinstance(error, RepositoryNotFound) and not hint and os.path.isdir(repo_id):
        hint = f" To load the folder of that name, call get_local_kernel({repo_id!r})."
    if hint and error.args and isinstance(error.args[0], str) and hint not in error.args[0]:
        error.args = (_with_hint(error.args[0], hint), *error.args[1:])


def _with_hint(message: str, hint: str) -> str:
    """The message with the hint after its first sentence, in place of the advice to check the name."""
    line, newline, others = message.partition("\n")
    first, end, rest = line.partition(NAME_ADVICE)[0].partition(". ")
    return f"{first}.{hint} {rest}{newline}{others}" if end else f"{first}{hint}{newline}{others}"


def _known(repo_id: str, lock: ActiveLock) -> Iterator[str]:
    """The names that are known here, but not the given one."""
    names: dict[str, None] = {}
    if lock.lock is not None:
        names |= dict.fromkeys(pin.requirement.repo_id for pin in lock.lock.pins)
    with suppress(RequestError):
        names |= dict.fromkeys(settings.local_kernels())
    with suppress(RequestError, OSError), os.scandir(settings.cache_dir()) as entries:
        for entry in islice(entries, _MOST_FOLDERS):
            kind, _, name = entry.name.partition("--")
            if kind in ("kernels", "models"):
                names[name.replace("--", "/")] = None
    for name in names:
        with suppress(RequestError, TypeError):
            check_repo_id(name)
            if name != repo_id:
                yield name
