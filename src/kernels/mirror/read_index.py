"""Read the index of a repository from a mirror's file: its form, its signature, its content and its age, in this order.

Every reader takes this way: what nobody vouches for is not parsed, and what is older than what was read before from
the same mirror is not used.
"""

from __future__ import annotations

import time
from pathlib import Path

from kernels import settings
from kernels.cache.records import SeenDocument, SeenDocuments
from kernels.errors import InvalidRepository
from kernels.mirror.signing import check_signatures
from kernels.models.mirror import MirrorIndex, RepositoryIndex, parse_time
from kernels.models.mirror_document import MirrorDocument

__all__ = ["parse_document", "read_mirror_index", "read_repository_index", "records_key"]

#: How far a mirror's clock may be ahead of this machine's, in seconds: a day, the most that time zones set wrong make.
_MAX_AHEAD = 24 * 3600.0


def parse_document(data: bytes, where: str) -> MirrorDocument:
    """The document in a file, signed as `KERNELS_MIRROR_KEYS` requires; its content is not parsed yet.

    Args:
        data: The file's content.
        where: The file, for messages: its URL, without a secret.

    Raises:
        InvalidRepository: It is not a mirror's document.
        UntrustedSignature: It has no signature that is required.
        MissingPythonDependency: cryptography is not installed.
    """
    document = MirrorDocument.parse(data, where)
    check_signatures(document, where, settings.mirror_keys())
    return document


def read_repository_index(
    data: bytes,
    where: str,
    repo_id: str,
    commit: str | None = None,
    *,
    url: str = "",
    cache: Path | None = None,
) -> RepositoryIndex:
    """The index of a repository, or of one commit of it, checked in every way.

    Args:
        data: The file's content.
        where: The file, for messages: its URL, without a secret.
        repo_id: The repository that was requested.
        commit: The commit whose document was requested; None for the index of the repository.
        url: The mirror's address, by which the newest index is remembered.
        cache: The folder in which it is remembered; None to remember nothing.

    Raises:
        InvalidRepository: It is not a valid index of that repository or commit, is from the future, or is older than
            the one that was read before, where signatures are required.
        UntrustedSignature: It has no signature that is required.
        MissingPythonDependency: cryptography is not installed.
    """
    document = parse_document(data, where)
    index = document.repository(repo_id, where, commit)
    _check_clock(where, index.time, index.origin.time, *(entry.taken for entry in index.commits.values()))
    # Who could serve an old index without a signature could as well write a new number into it.
    if cache is not None and settings.mirror_keys():
        _check_newest(index, where, repo_id, SeenDocuments(cache, url))
    return index


def read_mirror_index(data: bytes, where: str) -> MirrorIndex:
    """The index of a mirror, checked in every way but its age.

    Args:
        data: The file's content.
        where: The file, for messages: its URL, without a secret.

    Raises:
        InvalidRepository: It is not a valid index, or is from the future.
        UntrustedSignature: It has no signature that is required.
        MissingPythonDependency: cryptography is not installed.
    """
    index = parse_document(data, where).mirror(where)
    _check_clock(where, index.time)
    return index


def records_key(url: str) -> str:
    """A mirror's name in the records of the cache.

    What was read without a required signature does not count once one is required, nor what was read under other keys.

    Args:
        url: The mirror's address.
    """
    keys = settings.mirror_keys()
    return f"{url} signed by {' or '.join(sorted(map(str, keys)))}" if keys else url


def _check_newest(index: RepositoryIndex, where: str, repo_id: str, seen: SeenDocuments) -> None:
    found = SeenDocument(index.number, index.time, time.time())
    newest = seen.keep(repo_id, index.commit, found)
    if newest.number > index.number:
        day = time.strftime("%Y-%m-%d", time.gmtime(newest.seen))
        raise InvalidRepository(
            f"{where} is refused: number {index.number} of {index.time} is older than number {newest.number} of "
            f"{newest.time}, which was read on {day}. An older copy of a signed document may be an attack; it may also "
            "come from a cache between here and the mirror that is behind. If the mirror was made anew, remove "
            f"{seen.path(repo_id, index.commit)}. Nothing was downloaded."
        )


def _check_clock(where: str, *times: str) -> None:
    latest = max(times)
    if parse_time(latest) > time.time() + _MAX_AHEAD:
        raise InvalidRepository(
            f"{where} is refused: it has the time {latest}, which is in the future. Check the clock of this machine, "
            "and of the one that wrote the mirror. Nothing was downloaded."
        )
