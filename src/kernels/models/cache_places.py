"""Where records lie in the cache, known without importing what reads them."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["endpoint_key", "mirror_record", "repository_folder"]


def endpoint_key(endpoint: str) -> str:
    """A file name for a Hub's URL.

    Example:
        >>> endpoint_key("https://hub.example")
        'd8596f8429901e45'
    """
    return hashlib.sha256(endpoint.encode()).hexdigest()[:16]


def repository_folder(cache: Path, repo_id: str) -> Path:
    """The folder of a repository, as huggingface_hub names it.

    Example:
        >>> repository_folder(Path("cache"), "org/relu").name
        'kernels--org--relu'
    """
    return cache / f"kernels--{repo_id.replace('/', '--')}"


def mirror_record(folder: Path, key: str) -> Path:
    """What a mirror last said of a repository.

    Args:
        folder: The repository's folder.
        key: The mirror's name in the records of the cache.
    """
    return folder / "index" / f"mirror-{endpoint_key(key)}.json"
