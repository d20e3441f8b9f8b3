"""The newest signed documents that were read from a mirror, so that an older copy is recognized.

<cache>/.locks/kernels-mirrors/<mirror>/<org>--<name>.json             the index of a repository
<cache>/.locks/kernels-mirrors/<mirror>/<org>--<name>-<commit>.json    the document of a commit

They are not beside a repository's files: removing those from the cache does not make an older index acceptable.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kernels.errors import StoreError
from kernels.models.cache_places import endpoint_key
from kernels.support.lock import WorkLock, exclusively
from kernels.support.record_file import StoredRecord, read_record, write_record

__all__ = ["SeenDocument", "SeenDocuments"]

#: The form of the records; one of another form is not used.
_FORM = 1


@dataclass(frozen=True)
class SeenDocument:
    """A document that was read.

    Attributes:
        number: The number of its index.
        time: When it was written, as the index says.
        seen: When it was read first, in seconds since 1970.
    """

    number: int
    time: str
    seen: float


class _Seen(StoredRecord):
    form: int
    url: str
    number: int
    time: str
    seen: float


class SeenDocuments:
    """The newest documents that were read from one mirror.

    Args:
        cache: The cache's folder.
        url: The mirror's address, without a secret.

    Example:
        >>> import tempfile
        >>> seen = SeenDocuments(Path(tempfile.mkdtemp()), "https://mirror.example")
        >>> seen.keep("org/relu", None, SeenDocument(2, "2026-01-02T03:04:05Z", 0.0)).number
        2
        >>> seen.keep("org/relu", None, SeenDocument(1, "2026-01-01T03:04:05Z", 0.0)).number
        2
    """

    def __init__(self, cache: Path, url: str) -> None:
        self._folder = cache / ".locks" / "kernels-mirrors" / endpoint_key(url)
        self._url = url

    def path(self, repo_id: str, commit: str | None) -> Path:
        """The file of a record.

        Args:
            repo_id: The repository.
            commit: The commit whose document it is; None for the repository's index.
        """
        # A mirror has no two repositories that differ only in case.
        name = repo_id.lower().replace("/", "--")
        return self._folder / (f"{name}.json" if commit is None else f"{name}-{commit}.json")

    def newest(self, repo_id: str, commit: str | None) -> SeenDocument | None:
        """The newest document that was read; None if none was, or only in a record that others could have written."""
        record = read_record(self.path(repo_id, commit), _Seen)
        if record is None or (record.form, record.url) != (_FORM, self._url):
            return None
        return SeenDocument(record.number, record.time, record.seen)

    def keep(self, repo_id: str, commit: str | None, found: SeenDocument) -> SeenDocument:
        """Record a document that was read, unless a newer one was; return the newest.

        Where the cache cannot be written, nothing is recorded.
        """
        known = self.newest(repo_id, commit)
        if known is not None and known.number >= found.number:
            return known
        path = self.path(repo_id, commit)
        record = _Seen(form=_FORM, url=self._url, number=found.number, time=found.time, seen=found.seen)
        try:
            with exclusively(WorkLock(path.with_suffix(".lock"), seconds=10)):
                known = self.newest(repo_id, commit)
                if known is not None and known.number >= found.number:  # another process read a newer one
                    return known
                write_record(path, record)
        except StoreError:
            write_record(path, record)
        return found
