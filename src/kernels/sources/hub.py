"""A Hub as a source."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from kernels.settings import Verify
from kernels.sources.cached import CachedSource
from kernels.sources.hub_client import HubClient
from kernels.sources.hub_remote import HubRemote

__all__ = ["HubSource"]


class HubSource(CachedSource):
    """The kernels of one Hub.

    Args:
        endpoint: The Hub's URL.
        cache: The cache's folder.
        describe: Gives what is added to the `User-Agent` header; called before the first request.
        offline: Answer from the cache alone.
        verify: When the content of builds is checked, the default as `KERNELS_VERIFY` says.
    """

    def __init__(
        self,
        endpoint: str,
        cache: Path,
        describe: Callable[[], Iterable[str]],
        *,
        offline: bool = False,
        verify: Verify | None = None,
    ) -> None:
        client = HubClient(endpoint, describe, offline=offline)
        super().__init__(HubRemote(client, cache), cache, verify=verify)
