"""Where records lie in the cache, known without importing what reads them."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["GIVEN_UP", "answer_record", "endpoint_key", "is_mirrors", "repository_folder"]

#: The end of a temporary file's name that no process writes any more.
GIVEN_UP = ".left.incomplete"


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


def answer_record(folder: Path, key: str) -> Path:
    """What an address last said of a repository.

    Args:
        folder: The repository's folder.
        key: What the address's answers are stored for.
    """
    return folder / "index" / f"heads-{endpoint_key(key)}.json"


def is_mirrors(record: Path) -> bool:
    """Whether such a record seems to be of a mirror's answer; False if there is none."""
    try:
        with record.open("rb") as file:
            return b'"kind":"mirror"' in file.read(1024)
    except OSError:
        return False
