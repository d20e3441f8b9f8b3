"""What the mirror has, as a run reads it and changes it."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from itertools import islice

from kernels._version import __version__
from kernels.errors import RequestError
from kernels.mirror.signing import MirrorSigner
from kernels.mirror.stores.base import WriteStore
from kernels.models.lockfile import HASHES_FILE, LOCK_FILE
from kernels.models.mirror import MIRROR_FILE, MirroredRepository, MirrorIndex, RepositoryIndex, format_time
from kernels.operations.mirroring.documents import MirrorDocuments
from kernels.operations.mirroring.merging import listed_repository, merge_mirror
from kernels.support.formatting import format_value

__all__ = ["MirrorState"]

#: Indexes of repositories that are kept in memory, of up to some megabytes each.
_KEPT_INDEXES = 64

#: Seconds between two writes of the mirror's index in a long run.
_MIRROR_SECONDS = 60.0


class MirrorState:
    """A mirror during a run.

    Args:
        store: Where it is.
        signer: Signs what is written.
        repair: Whether documents that cannot be used are written anew.

    Attributes:
        store: Where it is.
        documents: Its documents.
        index: Its own index, as it was last read or written; None for a new mirror.
    """

    def __init__(self, store: WriteStore, signer: MirrorSigner | None, *, repair: bool = False) -> None:
        self.store = store
        self.documents = MirrorDocuments(store, signer, repair=repair)
        self._repair = repair
        self._number = 0
        self.index: MirrorIndex | None = None
        self._written = time.monotonic()
        self._guard = threading.Lock()
        self._indexes: OrderedDict[tuple[str, str | None], RepositoryIndex | None] = OrderedDict()
        self._listed: dict[str, MirroredRepository] = {}

    def open(self, *, writing: bool = True) -> None:
        """Read the mirror's index, or see that nothing else is there.

        Args:
            writing: Whether documents will be written: those of a signed mirror need a signer.

        Raises:
            RequestError: The place has other files; or it must be signed, and nothing signs it.
        """
        self.index = self.documents.mirror()
        if self.index is None and self._repair:
            for index in self.documents.repositories():
                self.list_repository(index)
                self._number += index.number
        foreign = "" if self.index is not None or self._listed else _foreign_entry(self.store)
        if foreign:
            self.index = self.documents.mirror()  # another first run may have written it since
            if self.index is None:
                raise RequestError(foreign)
        if writing:
            self.documents.check_signer()

    def known(self, repo_id: str, commit: str | None) -> RepositoryIndex | None:
        """The index of a repository, or the document of a commit."""
        key = (repo_id, commit)
        with self._guard:
            if key in self._indexes:
                return self._indexes[key]
        found = self.documents.repository(repo_id) if commit is None else self.documents.commit(repo_id, commit)
        self.remember(repo_id, commit, found)
        return found

    def signed(self, repo_id: str, commit: str | None) -> RepositoryIndex | None:
        """The same, unless it needs a new signature."""
        found = self.known(repo_id, commit)
        return None if self.documents.lacks_signature(repo_id) else found

    def remains(self, repo_id: str) -> tuple[int, dict[str, RepositoryIndex]]:
        """What is left of a repository whose index was lost: the highest number known, and its commits' documents."""
        listed = None if self.index is None else self.index.repositories.get(repo_id)
        if listed is None and not self._repair:
            return 0, {}
        found = self.documents.commits(repo_id)
        return max([0 if listed is None else listed.number, *(each.number for each in found.values())]), found

    def remember(self, repo_id: str, commit: str | None, index: RepositoryIndex | None) -> None:
        """Keep an index or a commit's document in memory."""
        with self._guard:
            self._indexes[repo_id, commit] = index
            while len(self._indexes) > _KEPT_INDEXES:
                self._indexes.popitem(last=False)

    def list_repository(self, index: RepositoryIndex) -> None:
        """Let the next index of the mirror list a repository as it is now."""
        with self._guard:
            self._listed[index.repo_id] = listed_repository(index)

    @property
    def has_listed(self) -> bool:
        """Whether the run has looked at a repository of the mirror."""
        return bool(self._listed)

    @property
    def is_due(self) -> bool:
        """Whether the mirror's index was last written long ago."""
        return time.monotonic() - self._written > _MIRROR_SECONDS

    def write_index(self) -> None:
        """Write the mirror's index, if it has changed."""
        now, writer = format_time(time.time()), f"kernels {__version__}"
        self.index = self.documents.change_mirror(
            lambda before: merge_mirror(before, self._listed, writer, now, self._number)
        )
        self._written = time.monotonic()


def _foreign_entry(store: WriteStore) -> str:
    """What is wrong with a place without a mirror that has something else; empty if it has not."""
    for entry in islice(store.entries(), 1000):
        if not entry.path.startswith(("api/kernels/", "archives/")) and entry.path not in (LOCK_FILE, HASHES_FILE):
            return (
                f"{store.url} is not empty, and has no {MIRROR_FILE}: {format_value(entry.path, 200)} in it was not "
                "written by `kernels mirror`. Name an empty or a new place."
            )
    return ""
