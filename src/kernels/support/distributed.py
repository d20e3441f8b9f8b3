"""One answer for all ranks of a distributed job, such as a commit.

A branch may move while a job starts. The first rank that asks publishes the commit in the job's store, and the others
read it there; no rank waits for another. Without an answer of the store a rank asks for itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

__all__ = ["agree", "gathered", "rank_count"]


def agree(key: str, ask: Callable[[], str]) -> str:
    """The answer of the first rank to `ask`; the own answer if there is no distributed job.

    Args:
        key: The question; all ranks get the same answer to it.
        ask: Finds the answer; called at most once, and not at all if another rank has answered.

    Example:
        >>> agree("org/relu@v1", lambda: "0123abcd")
        '0123abcd'
    """
    store = _store()
    if store is None:
        return ask()
    name = f"kernels/{key}"
    try:
        if store.check([name]):
            return str(store.get(name).decode())
    except (RuntimeError, NotImplementedError):
        return ask()  # the store of a simulated job, or a store that is gone
    answer = ask()
    try:
        # If two ranks ask at the same time, the first to set it wins.
        return str(store.compare_set(name, "", answer).decode())
    except (RuntimeError, NotImplementedError):
        return answer


def gathered(value: Any) -> list[Any]:
    """What each rank of a distributed job gives, that of the first rank first; every rank must ask.

    Args:
        value: What this rank gives; it can be pickled.

    Example:
        >>> gathered("1.5 ms")
        ['1.5 ms']
    """
    count = rank_count()
    if count == 1:
        return [value]
    found: list[Any] = [None] * count
    sys.modules["torch.distributed"].all_gather_object(found, value)
    return found


def rank_count() -> int:
    """How many ranks a distributed job has; 1 if there is no job."""
    return 1 if _store() is None else int(sys.modules["torch.distributed"].get_world_size())


def _store() -> Any:
    # A job that uses torch.distributed has imported it: do not import it here.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    return None if c10d is None else c10d._get_default_store()
