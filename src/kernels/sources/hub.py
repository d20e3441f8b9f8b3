"""A Hub or a mirror as a source."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kernels.settings import Verify
from kernels.sources.cached import CachedSource
from kernels.sources.http import Http
from kernels.sources.hub_remote import HubRemote

if TYPE_CHECKING:
    from kernels.mirror.stores.base import ReadStore
    from kernels.sources.remote import Remote

__all__ = ["HubSource", "MirrorSource"]


class HubSource(CachedSource):
    """The kernels at a URL.

    Args:
        endpoint: The URL.
        cache: The cache's folder.
        describe: Gives what is added to the `User-Agent` header; called before the first request.
        may_be_mirror: Whether a mirror may answer in the place of a Hub: the first answer tells which.
        offline: Answer from the cache alone.
        verify: When the content of builds is checked, the default as `KERNELS_VERIFY` says.
    """

    def __init__(
        self,
        endpoint: str,
        cache: Path,
        describe: Callable[[], Iterable[str]],
        *,
        may_be_mirror: bool = False,
        offline: bool = False,
        verify: Verify | None = None,
    ) -> None:
        client = Http(endpoint, describe, offline=offline, may_be_mirror=may_be_mirror)
        remote: Remote
        if may_be_mirror:
            from kernels.sources.detected_remote import DetectedRemote

            remote = DetectedRemote(client, cache, offline=offline)
        else:
            remote = HubRemote(client, cache)
        super().__init__(remote, cache, verify=verify)


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
