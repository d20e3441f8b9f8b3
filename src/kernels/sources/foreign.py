"""What a cache says that another tool filled: no listing, no branches of a Hub, but builds that state their version."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from kernels.cache.repository import RepoStore
from kernels.errors import InvalidMetadata
from kernels.models.metadata import Metadata
from kernels.models.snapshot import METADATA_FILE, Heads

__all__ = ["heads_of_snapshots"]


def heads_of_snapshots(store: RepoStore) -> Heads:
    """The branches of a cache that another tool filled: what it recorded, and versions that builds there state."""
    heads = store.foreign_heads()
    branches: dict[str, str] = {}
    for commit in store.commits():  # the newest first, and the newest of a version counts
        version = _stated_version(store.snapshot(commit))
        if version is not None:
            branches.setdefault(f"v{version}", commit)
    return replace(heads, branches={**branches, **heads.branches})


def _stated_version(snapshot: Path) -> int | None:
    for path in sorted(snapshot.glob(f"build/*/{METADATA_FILE}")):
        with suppress(InvalidMetadata):
            return Metadata.read_from_file(path).version
    return None
