"""The pages for people in a mirror, brought up to date after its documents."""

from __future__ import annotations

from kernels.catalog import CatalogChanges, has_catalog, write_catalog
from kernels.errors import InvalidRepository, MissingPythonDependency, RequestError
from kernels.mirror.stores.base import WriteStore
from kernels.mirror.stores.opening import open_store
from kernels.models.mirror import MIRROR_FILE, RepositoryIndex
from kernels.operations.mirroring.documents import MirrorDocuments
from kernels.support.logs import logger, warn_once

__all__ = ["update_pages", "write_pages"]

_log = logger(__name__)


def write_pages(url: str) -> CatalogChanges:
    """Write the pages of a mirror, as far as they are not there.

    Args:
        url: The mirror: a path, `file:///…`, `s3://bucket/prefix`, `gs://…` or `az://…`.

    Raises:
        RequestError: There is no mirror.
        MissingPythonDependency: A package is not installed.
        StoreError: A page cannot be written.
    """
    store = open_store(url)
    changes = update_pages(store, MirrorDocuments(store), wanted=True)
    if changes is None:
        raise RequestError(f"{store.url} is not a mirror: it has no {MIRROR_FILE}. Name what to put there with --repo.")
    return changes


def update_pages(
    store: WriteStore, documents: MirrorDocuments, *, wanted: bool, changed: bool = True
) -> CatalogChanges | None:
    """Write the pages of a mirror that wants or has them.

    Args:
        store: Where the mirror is.
        documents: Its documents.
        wanted: Whether to write pages into a mirror that has none.
        changed: Whether the mirror has changed; if not, pages that are there are up to date.

    Returns:
        What was written; None if the mirror has no pages.

    Raises:
        MissingPythonDependency: Pages are wanted, and jinja2 is not installed.
        StoreError: A page cannot be written.
    """
    if not wanted and not (changed and has_catalog(store)):
        return None
    mirror = documents.mirror()
    if mirror is None:
        return None

    def read(repo_id: str) -> RepositoryIndex | None:
        try:
            return documents.repository(repo_id)
        except InvalidRepository as error:  # a mirror that another program damaged
            warn_once(_log, f"{repo_id} has no page: {error}")
            return None

    try:
        return write_catalog(store, mirror, read)
    except MissingPythonDependency as error:
        if wanted:
            raise
        warn_once(_log, f"The pages of {store.url} were not brought up to date. {error}")
        return None
