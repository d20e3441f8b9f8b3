"""What the cache has of answers about a repository that a call could not use, for an error."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from kernels.cache.repo_records import MirrorRecord, ignored_records
from kernels.models.cache_places import endpoint_key, mirror_record, repository_folder
from kernels.models.requested_names import REPO_TYPES
from kernels.support.formatting import format_names
from kernels.support.json_store import MAX_LISTING_BYTES, StoredRecord, read_record

__all__ = ["with_unused_answers"]

#: Hubs and mirrors of one repository that are examined.
_MOST = 100


class _Endpoint(StoredRecord):
    max_bytes: ClassVar[int] = MAX_LISTING_BYTES

    endpoint: str


def with_unused_answers(problem: str, cache: Path, repo_id: str, endpoint: str) -> str:
    """Why a Hub said nothing of a publisher, and why what the cache has does not say it either.

    Args:
        problem: Why the Hub said nothing, a sentence.
        cache: The cache's folder.
        repo_id: The repository.
        endpoint: The URL of the Hub or mirror.

    Example:
        >>> with_unused_answers("It did not answer.", Path("/nowhere"), "org/relu", "https://hub.example")
        'It did not answer.'
    """
    others: dict[str, None] = {}
    for folder in (repository_folder(cache, repo_type, repo_id) for repo_type in REPO_TYPES):
        if any(not damaged for _, damaged in ignored_records(folder)):
            return (
                f"{problem} Records in {folder / 'index'} are not used: their mode lets somebody write them, or "
                "another user owns them."
            )
        others.update(dict.fromkeys(each for each in _answered(folder) if each != endpoint))
    if not others:
        return problem
    named = format_names(list(others), limit=2)
    return f"{problem} The cache has answers of {named}, which count if KERNELS_HUB names it."


def _answered(folder: Path) -> list[str]:
    """The Hubs and mirrors whose answers about a repository are in the cache."""
    found = []
    for path in sorted((folder / "index").glob("heads-*.json"))[:_MOST]:
        record = read_record(path, _Endpoint)
        if record is not None and path.name == f"heads-{endpoint_key(record.endpoint)}.json":
            found.append(record.endpoint.partition(" signed by ")[0])
    for path in sorted((folder / "index").glob("mirror-*.json"))[:_MOST]:
        mirror = read_record(path, MirrorRecord)
        if mirror is not None and path == mirror_record(folder, mirror.key):
            found.append(mirror.key.partition(" signed by ")[0])
    return list(dict.fromkeys(found))
