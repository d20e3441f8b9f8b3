"""The sources that the settings name, opened for this machine."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kernels import backends, settings
from kernels._version import __version__
from kernels.errors import UntrustedSignature
from kernels.models import MIRROR_FILE
from kernels.models.address import HubAddress
from kernels.resolver.target import Target
from kernels.settings import Verify
from kernels.sources.base import Source
from kernels.sources.call_sources import Sources
from kernels.sources.http import Http
from kernels.sources.hub_api import HubApi
from kernels.sources.wire import of_caller

if TYPE_CHECKING:
    from kernels.sources.mirror_api import MirrorApi

__all__ = ["open_sources"]


def open_sources(
    *,
    user_agent: str | Mapping[str, str] | None = None,
    local_files_only: bool = False,
    overrides: bool = True,
    verify: Verify | None = None,
    address: HubAddress | None = None,
) -> Sources:
    """The sources that the settings name, in the order in which they are asked.

    Args:
        user_agent: What the caller adds to the `User-Agent` header of requests.
        local_files_only: Use only what is in the cache.
        overrides: Whether `LOCAL_KERNELS` is read.
        verify: When the content of builds is checked; the default is `KERNELS_VERIFY`.
        address: The source to open in place of those that the settings name.
    """
    local = settings.local_kernels() if overrides else {}
    first, *others = (
        _open(each, user_agent, offline=local_files_only, verify=verify)
        for each in (settings.hub_addresses() if address is None else (address,))
    )
    return Sources(first, local, verify, tuple(others))


def _open(
    address: HubAddress, user_agent: str | Mapping[str, str] | None, *, offline: bool, verify: Verify | None
) -> Source:
    if address.kind == "folder" and not Path(address.value, MIRROR_FILE).is_file():
        if settings.mirror_keys():
            # Who can write the folder could remove the signed documents, and put kernels in their place.
            raise UntrustedSignature(
                f"`KERNELS_HUB` names {address.value}, which is not a mirror: it has no {MIRROR_FILE}, and "
                "KERNELS_MIRROR_KEYS requires a signed mirror there. A folder for development is named in "
                "LOCAL_KERNELS. Nothing was loaded."
            )
        from kernels.sources.folder import FolderSource

        return FolderSource(Path(address.value), verify=verify)
    from kernels.sources.cached import CachedSource

    cache = settings.cache_dir()
    if address.kind in ("folder", "store"):
        from kernels.mirror.stores.opening import open_store
        from kernels.sources.mirror_api import MirrorApi

        store = open_store(address.value)
        return CachedSource(MirrorApi(lambda patience: store, cache, offline=offline), cache, verify=verify)

    def describe() -> list[str]:
        return [*of_caller(user_agent), *_machine()]

    may_be_mirror = address.kind != "hub" and not settings.mirror_keys()
    client = Http(address.value, describe, offline=offline, may_be_mirror=may_be_mirror)

    def mirror() -> MirrorApi:
        from kernels.sources.http_store import HttpStore
        from kernels.sources.mirror_api import MirrorApi

        return MirrorApi(partial(HttpStore, client), cache, offline=offline)

    if address.kind == "hub" or may_be_mirror:
        return CachedSource(HubApi(client), cache, mirror if may_be_mirror else None, verify=verify)
    return CachedSource(mirror(), cache, verify=verify)


def _machine() -> list[str]:
    """What the Hub counts kernels' requests by, under the names that it knows."""
    target = Target.current()
    backend = backends.get(target.default_backend)
    try:
        accelerator = backend.format_accelerator(target.backend_version(backend.name))
    except ValueError:  # a version that no variant can have
        accelerator = backend.name
    fields = {
        "kernels": __version__,
        "python": None if target.python is None else ".".join(target.python.split(".")[:2]),
        "backend": accelerator,
        "platform": f"{target.cpu}-{target.os}",
        "file_type": "kernel",
        "torch": target.torch,
        "tvm-ffi": target.tvm_ffi,
        "glibc": target.glibc,
    }
    return [f"{name}/{value}" for name, value in fields.items() if value is not None]
