"""The documents of a mirror, read and changed: a change that another writer made meanwhile is never lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from kernels import settings
from kernels.errors import InvalidRepository, RequestError, StoreError, UntrustedSignature
from kernels.mirror.read_index import parse_document
from kernels.mirror.signing import MirrorSigner, check_signatures
from kernels.mirror.stores.base import EntryNotFound, StoreChanged, WriteStore
from kernels.models.mirror import (
    MIRROR_FILE,
    MirrorIndex,
    RepositoryIndex,
    commit_path,
    index_path,
)
from kernels.models.mirror_document import MirrorDocument
from kernels.models.mirror_form import MAX_DOCUMENT_BYTES
from kernels.models.requirement import is_commit, is_repo_id
from kernels.support.formatting import format_names, format_text
from kernels.support.tasks import pause

__all__ = ["MirrorDocuments"]

#: How often a change is made again. With dozens of writers of one mirror, each of them writes in turn.
_TRIES = 64

#: Seconds of the longest wait before a change is made again.
_LONGEST_WAIT = 2.0

_Index = TypeVar("_Index", RepositoryIndex, MirrorIndex)


class MirrorDocuments:
    """The documents in a store.

    Args:
        store: The store.
        signer: Signs each document that is written, and each one that is there without its signature. With
            `KERNELS_MIRROR_KEYS` it signs nothing that one of those has not signed before: what someone else put
            there gets no signature.
        repair: Whether a document that cannot be used counts as missing, so that it is written anew.
    """

    def __init__(self, store: WriteStore, signer: MirrorSigner | None = None, *, repair: bool = False) -> None:
        self._store = store
        self._signer = signer
        self._repair = repair
        self._unsigned: set[str] = set()
        self._signers: dict[str, tuple[str, ...]] = {}
        self._written: set[str] = set()

    @property
    def written(self) -> int:
        """The number of documents that were written."""
        return len(self._written)

    def mirror(self) -> MirrorIndex | None:
        """The index of the mirror; None if there is none.

        Raises:
            InvalidRepository: It is not valid.
            HubUnavailable: The store did not answer.
        """
        return self._read(MIRROR_FILE, _as_mirror)[0]

    def check_signer(self) -> None:
        """Raise if this mirror's documents must be signed, and nothing signs them: before anything is written.

        Raises:
            RequestError: The index of the mirror is signed, or `KERNELS_MIRROR_KEYS` is set, and there is no signer.
        """
        self._read(MIRROR_FILE, _as_mirror)
        self._check_signer(MIRROR_FILE)

    def repository(self, repo_id: str) -> RepositoryIndex | None:
        """The index of a repository; None if there is none."""
        return self._read(index_path(repo_id), _as_repository(repo_id, None))[0]

    def commit(self, repo_id: str, commit: str) -> RepositoryIndex | None:
        """The document of one commit; None if there is none."""
        return self._read(commit_path(repo_id, commit), _as_repository(repo_id, commit))[0]

    def change_mirror(self, change: Callable[[MirrorIndex | None], MirrorIndex]) -> MirrorIndex:
        """Change the index of the mirror; see `change_repository`."""
        return self._change(MIRROR_FILE, _as_mirror, change)

    def change_repository(
        self, repo_id: str, change: Callable[[RepositoryIndex | None], RepositoryIndex]
    ) -> RepositoryIndex:
        """Change the index of a repository.

        Args:
            repo_id: The repository.
            change: Gives the new index for the one that is there, or that one itself, and then nothing is written. It
                is called again if another writer was faster.

        Returns:
            The index that is there now.

        Raises:
            InvalidRepository: The document that is there is not valid, or the new one would be too large.
            StoreError: It cannot be written.
        """
        return self._change(index_path(repo_id), _as_repository(repo_id, None), change)

    def change_commit(
        self, repo_id: str, commit: str, change: Callable[[RepositoryIndex | None], RepositoryIndex]
    ) -> RepositoryIndex:
        """Change the document of one commit; see `change_repository`."""
        return self._change(commit_path(repo_id, commit), _as_repository(repo_id, commit), change)

    def commits(self, repo_id: str) -> dict[str, RepositoryIndex]:
        """The documents of commits of a repository in the store that can be used."""
        found: dict[str, RepositoryIndex] = {}
        for entry in self._store.entries(commit_path(repo_id, "").rstrip("/")):
            commit = entry.path.rpartition("/")[2]
            if entry.path == commit_path(repo_id, commit) and is_commit(commit):
                with suppress(InvalidRepository, UntrustedSignature):
                    document = self.commit(repo_id, commit)
                    if document is not None:
                        found[commit] = document
        return found

    def repositories(self) -> Iterator[RepositoryIndex]:
        """The indexes in the store that can be used, also those that the mirror's own does not list."""
        for entry in self._store.entries("api/kernels"):
            repo_id = entry.path.removeprefix("api/kernels/").removesuffix("/refs")
            if is_repo_id(repo_id) and entry.path == index_path(repo_id):
                with suppress(InvalidRepository, UntrustedSignature):
                    index = self.repository(repo_id)
                    if index is not None and index.repo_id == repo_id:
                        yield index

    def lacks_signature(self, repo_id: str) -> bool:
        """Whether the index of a repository was read without the signature that it should have."""
        return index_path(repo_id) in self._unsigned

    def sign_commit(self, repo_id: str, commit: str) -> None:
        """Add the signature to the document of a commit, if it is there without."""
        path, parse = commit_path(repo_id, commit), _as_repository(repo_id, commit)
        if self._read(path, parse)[0] is not None:
            self._change(path, parse, lambda before: before)

    def _read(self, path: str, parse: Callable[[MirrorDocument, str], _Index]) -> tuple[_Index | None, str]:
        try:
            found = self._store.read(path, MAX_DOCUMENT_BYTES)
        except EntryNotFound:
            return None, "new"
        assert found is not None  # only a conditional request has no document
        try:
            return self._parsed(path, parse, found.content), found.etag
        except (InvalidRepository, UntrustedSignature) as error:
            if not self._repair:
                raise error.reworded(f"{error} To write a damaged document anew from its source: --repair") from error
            return None, found.etag

    def _parsed(self, path: str, parse: Callable[[MirrorDocument, str], _Index], content: bytes) -> _Index:
        where = f"{self._store.url}/{path}"
        document = parse_document(content, where)
        self._signers[path] = tuple(
            format_text(f"ed25519:{each.key}" if each.kind == "ed25519" else each.kind, 80)
            for each in document.signatures
        )
        if self._signer is not None and not self._signer.has_signed(document):
            self._unsigned.add(path)
        return parse(document, where)

    def _change(
        self,
        path: str,
        parse: Callable[[MirrorDocument, str], _Index],
        change: Callable[[_Index | None], _Index | None],
    ) -> _Index:
        wait = 0.01
        for _ in range(_TRIES):
            before, etag = self._read(path, parse)
            after = change(before)
            assert after is not None
            if after is before and path not in self._unsigned:
                return after
            document = MirrorDocument.of(after)
            # One that no reader accepts would make the mirror useless, and no later run could change it.
            parse(document, f"What would be written to {self._store.url}/{path}")
            if self._signer is not None:
                document = self._signer.sign(document)
            self._check_readable(path, document)
            content = document.to_bytes()
            if len(content) > MAX_DOCUMENT_BYTES:
                raise InvalidRepository(
                    f"{self._store.url}/{path} would have {len(content)} bytes; more than {MAX_DOCUMENT_BYTES} are not "
                    "read. Take fewer versions or builds. It was not changed."
                )
            try:
                self._store.write(path, content, expect=etag)
            except StoreChanged:
                pause(random.uniform(0, wait))  # so that writers that collided once do not collide again
                wait = min(wait * 2, _LONGEST_WAIT)
            else:
                self._unsigned.discard(path)
                self._written.add(path)
                return after
        raise StoreError(f"{self._store.url}/{path} is changed by other writers all the time. Try again later.")

    def _check_readable(self, path: str, document: MirrorDocument) -> None:
        self._check_signer(path)
        check_signatures(document, f"What would be written to {self._store.url}/{path}", settings.mirror_keys())

    def _check_signer(self, path: str) -> None:
        keys, signers = settings.mirror_keys(), self._signers.get(path)
        if signers is None and self._repair:  # who signed the others signed this one
            signers = next(filter(None, self._signers.values()), signers)
        if signers and self._signer is None:
            raise RequestError(
                f"{self._store.url}/{path} is signed by {' and '.join(signers)}, and nothing signs what this run would "
                "write: name the key (--sign-key FILE). Nothing was changed."
            )
        if keys and self._signer is None:
            raise RequestError(
                f"KERNELS_MIRROR_KEYS requires a signature of {format_names(keys, limit=3)}, and nothing signs what is "
                f"written to {self._store.url}: name the key (--sign-key FILE). Nothing was written."
            )


def _as_mirror(document: MirrorDocument, where: str) -> MirrorIndex:
    return document.mirror(where)


def _as_repository(repo_id: str, commit: str | None) -> Callable[[MirrorDocument, str], RepositoryIndex]:
    return lambda document, where: document.repository(repo_id, where, commit)
