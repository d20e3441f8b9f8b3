"""One commit for all ranks of a distributed job.

A branch may move while a job starts. The first rank that asks publishes the commit in the job's store, the others read
it there; no rank waits for one that never asks. A store that is gone, with the rank that held it, or does not answer in
time costs a rank the agreement and not the kernel.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

__all__ = ["agree"]


def agree(key: str, ask: Callable[[], str]) -> str:
    """The answer to `ask` that the first rank gave, or simply the answer where there is no distributed job.

    Args:
        key: The question; every rank that asks it gets the same answer.
        ask: Finds the answer; called at most once, and not at all when another rank already did.

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
        return ask()  # a store that shares nothing, as that of a job that is only simulated, or that is gone
    answer = ask()
    try:
        # Whoever comes first wins, also when two asked at the same time.
        return str(store.compare_set(name, "", answer).decode())
    except (RuntimeError, NotImplementedError):
        return answer


def _store() -> Any:
    # A job that uses torch.distributed has imported it: nothing is imported to find out.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    return None if c10d is None else c10d._get_default_store()
