"""A Hub or a mirror as a source."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kernels.settings import Verify
from kernels.sources.cached import CachedSource
from kernels.sources.hub_client import HubClient
from kernels.sources.hub_remote import HubRemote

if TYPE_CHECKING:
    from kernels.mirror.stores.base import ReadStore

__all__ = ["HubSource", "MirrorSource", "UrlSource"]


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


class UrlSource(CachedSource):
    """The kernels at a URL, where a Hub or a mirror answers: the first answer tells which.

    Args:
        endpoint: The URL.
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
        from kernels.sources.detected_remote import DetectedRemote

        client = HubClient(endpoint, describe, offline=offline, may_be_mirror=True)
        super().__init__(DetectedRemote(client, cache, offline=offline), cache, verify=verify)


class MirrorSource(CachedSource):
    """The kernels of a mirror in a folder or an object store.

    Args:
        store: The mirror's store.
        cache: The cache's folder.
        offline: Answer from the cache alone; a mirror in a folder needs no network, and answers in any case.
        verify: When the content of builds is checked, the default as `KERNELS_VERIFY` says.
    """

    def __init__(self, store: ReadStore, cache: Path, *, offline: bool = False, verify: Verify | None = None) -> None:
        from kernels.sources.mirror_remote import MirrorRemote, MirrorStores

        super().__init__(MirrorRemote(MirrorStores(store, store), cache, offline=offline), cache, verify=verify)
