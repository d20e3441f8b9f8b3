"""What a call asks a Hub first, sent before the code for the rest of the call is imported.

The arguments, the settings and a few looks at the cache tell whether the branches of the repository will be asked for.
Only what will certainly be asked is sent: a lock, an answer in memory, or a setting may make it needless, and for what
is refused no request leaves. What needs this machine to be examined is not waited for: a backend that is not there is
refused when the first request is on its way, and its answer is dropped.

The verdict on the publisher is not asked here: it is needed no sooner than the listing of the files, which follows the
branches, and of several processes that start together one asks.

This module imports little; a test counts it.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from kernels import settings
from kernels.models.requested_names import is_commit
from kernels.resolver.find_lock import may_be_locked
from kernels.sources.wire import EarlyRequest, of_caller, packed, request_headers, sent_early

if TYPE_CHECKING:
    from pathlib import Path

    from kernels.models.address import HubAddress
    from kernels.operations.call import KernelRequest

__all__ = ["first_requests"]


def first_requests(*requests: KernelRequest) -> AbstractContextManager[None]:
    """During the block, which makes the call, the first requests of kernels are under way.

    Args:
        requests: The kernels.
    """
    return sent_early([early for each in requests if (early := _early_request(each)) is not None])


def _early_request(request: KernelRequest) -> EarlyRequest | None:
    """The request that the call will certainly send first; None if that is not known, or an argument is not valid."""
    try:
        request.check()
        settings.policy_file()
        settings.trusted_publishers()
        if is_commit(request.revision or "") or _is_locked(request):
            return None
        if request.local_files_only or settings.offline() or _in_job():
            return None
        if request.local_kernels and request.repo_id in settings.local_kernels():
            return None
        address, *others = settings.hub_addresses()
        cache = settings.cache_dir()
        if others or not _asks_for_branches(request.repo_id, address, cache):
            return None
        described = [*of_caller(request.user_agent), "file_type/kernel"]
        return EarlyRequest(
            f"{address.value}/api/kernels/{request.repo_id}/refs",
            request_headers(address.value, lambda: described) | packed(),
            lambda: not _is_answered(request.repo_id, address.value, cache),
        )
    except Exception:  # noqa: BLE001 - the call meets it as well, and says what is wrong
        return None


def _is_locked(request: KernelRequest) -> bool:
    lock = request.lock
    return may_be_locked() if lock is None else lock.lock is not None or lock.required is not None


def _in_job() -> bool:
    """Whether another rank of a distributed job may have settled the commit (`support/distributed.py`)."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and bool(distributed.is_available() and distributed.is_initialized())


def _asks_for_branches(repo_id: str, address: HubAddress, cache: Path) -> bool:
    """Whether an address, and what the cache has of a repository, lead to this request and no other one."""
    if address.kind not in ("hub", "http"):
        return False
    refresh = settings.refresh_seconds()
    if address.kind == "hub" and not refresh:
        return True
    from kernels.models.cache_places import answer_record, is_mirrors, repository_folder

    folder = repository_folder(cache, repo_id)
    if refresh and folder.exists():
        return False  # the stored branches may be new enough
    if address.kind == "hub":
        return True
    # What a mirror has said before is asked for with a condition.
    return not is_mirrors(answer_record(folder, address.value)) and not settings.mirror_keys()


def _is_answered(repo_id: str, endpoint: str, cache: Path) -> bool:
    """Whether this process knows the branches, or does not ask for them now."""
    remembering = sys.modules.get("kernels.sources.memory")
    if remembering is None:
        return False
    memory = remembering.memory_of(endpoint, cache)
    return repo_id in memory.heads or memory.away or memory.kind == "mirror"
