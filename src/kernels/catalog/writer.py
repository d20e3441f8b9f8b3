"""The pages of a mirror, written into its tree. Only pages of repositories that have changed are made again.

    index.html                           the first page: the kernels, and a search
    catalog/<org>/<name>/index.html      the page of a kernel
    catalog/-/list.js                    the list that is searched
    catalog/-/catalog.<hash>.css, .js    the style and the script, named by their content

Pages are for people: no program reads them, except that the next run continues the list. A list that was changed by
others at most leaves pages as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernels.catalog.listing import LIST_FILE, MAX_LIST_BYTES, KernelEntry, KernelList
from kernels.catalog.pages import INDEX_FILE, assets, check_catalog, kernel_page, list_page, made, page_path
from kernels.catalog.shown import shown_kernel
from kernels.mirror.stores.base import EntryNotFound, ReadStore, StoreChanged, StoredDocument, WriteStore
from kernels.models.mirror import MirrorIndex, RepositoryIndex
from kernels.support.tasks import side_by_side

__all__ = ["CatalogChanges", "has_catalog", "write_catalog"]

_MAX_PAGE_BYTES = 64 * 1024 * 1024

#: How often the list is read again, when another writer has changed it.
_ATTEMPTS = 5

#: Pages that are written at once.
_AT_ONCE = 8


@dataclass(frozen=True)
class CatalogChanges:
    """What was written.

    Attributes:
        written: Pages of kernels that were written.
        removed: Pages of kernels that the mirror does not have any more.
        kept: Pages that are as they were.
    """

    written: int = 0
    removed: int = 0
    kept: int = 0


def has_catalog(store: ReadStore) -> bool:
    """Whether a mirror has pages, which each change of it then keeps up to date."""
    try:
        store.read(INDEX_FILE, _MAX_PAGE_BYTES)
    except EntryNotFound:
        return False
    return True


def write_catalog(
    store: WriteStore, mirror: MirrorIndex, read: Callable[[str], RepositoryIndex | None]
) -> CatalogChanges:
    """Write the pages of a mirror, as far as they are not there.

    Args:
        store: Where the mirror is.
        mirror: Its index.
        read: Gives the index of a repository, by its name; called for repositories whose pages are made, from
            several threads. One without an index is left out of the list.

    Raises:
        MissingPythonDependency: jinja2 is not installed.
        StoreError: The store cannot be written.
        HubUnavailable: The store does not answer.
    """
    check_catalog()
    for path, content in assets().items():
        if store.size(path) != len(content):
            store.write(path, content, immutable=True)

    def make(repo_id: str) -> tuple[str, KernelEntry | None, bool]:
        index = read(repo_id)
        if index is None:
            return repo_id, None, False
        page, entry = kernel_page(shown_kernel(index))
        return repo_id, entry, _put(store, page_path(repo_id), page)

    done: dict[str, KernelEntry] = {}
    written = 0
    for attempt in range(_ATTEMPTS):
        stored = _read(store, LIST_FILE, MAX_LIST_BYTES)
        before = None if stored is None else KernelList.parse(stored.content)
        known = {each.repo_id: each for each in before.entries} if before is not None and before.made == made() else {}
        stale = [
            repo_id
            for repo_id, repository in mirror.repositories.items()
            if repo_id not in done and (repo_id not in known or known[repo_id].number != repository.number)
        ]
        for repo_id, entry, new in side_by_side(make, stale, at_once=_AT_ONCE, name="pages"):
            written += new
            if entry is None:
                known.pop(repo_id, None)
            else:
                done[repo_id] = entry
        current = {**known, **done}
        names = sorted(mirror.repositories.keys() & current, key=lambda name: (name.lower(), name))
        after = KernelList(made(), tuple(current[name] for name in names))
        content = after.to_bytes()
        _put(store, INDEX_FILE, list_page(after))
        if stored is not None and stored.content == content:
            break
        try:
            # With an ETag that is not known, the last writer's list stays; what it lacks is made at the next run.
            store.write(LIST_FILE, content, expect="new" if stored is None else stored.etag or None)
            break
        except StoreChanged:
            if attempt == _ATTEMPTS - 1:
                raise
    gone = (
        [] if before is None else [each.repo_id for each in before.entries if each.repo_id not in mirror.repositories]
    )
    for repo_id in gone:
        store.delete(page_path(repo_id))
    return CatalogChanges(written, len(gone), len(after.entries) - written)


def _put(store: WriteStore, path: str, content: bytes) -> bool:
    """Write a page if it is another one."""
    stored = _read(store, path, _MAX_PAGE_BYTES)
    if stored is not None and stored.content == content:
        return False
    store.write(path, content)
    return True


def _read(store: WriteStore, path: str, limit: int) -> StoredDocument | None:
    try:
        return store.read(path, limit)
    except EntryNotFound:
        return None
