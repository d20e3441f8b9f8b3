"""The catalogue of a folder that is served, at `/` for browsers: the pages that a mirror has in its tree."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore, Lock

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kernels.catalog.card import MAX_CARD_BYTES, MAX_IMAGE_BYTES, named_images
from kernels.catalog.listing import LIST_FILE, KernelEntry, KernelList
from kernels.catalog.pages import INDEX_FILE, POLICY, assets, kernel_page, list_page
from kernels.catalog.shown import (
    CARD_FILE,
    MAX_BUILDS,
    MAX_VERSIONS,
    ShownBuild,
    ShownKernel,
    ShownVersion,
    in_order,
    newest_first,
)
from kernels.errors import InvalidRepository, MissingPythonDependency, RepositoryNotFound, RevisionNotFound
from kernels.models.metadata import MAX_METADATA_BYTES
from kernels.models.snapshot import BUILD_FOLDER, BUNDLE_FILE, METADATA_FILE
from kernels.server.catalog import Catalog
from kernels.server.snapshot import Commit
from kernels.server.write_api import is_authorized
from kernels.trust.sigstore import MAX_BUNDLE_BYTES

__all__ = ["KernelPages", "page_routes"]

#: Pages that are kept, of some 50 kB each.
_KEPT = 500

_TYPES = {"css": "text/css", "js": "text/javascript"}

#: Requests for pages at once; the threads that answer are few, and clients of the Hub need them.
_AT_ONCE = 4

#: A page may be in no frame, and no other website may read the list of kernels by including it as a script; a page
#: cannot say that of itself.
_HEADERS = {
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class KernelPages:
    """The pages about a catalog's repositories; one is made again when a branch of its repository has changed.

    Args:
        catalog: The repositories.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._made: OrderedDict[str, tuple[object, bytes, KernelEntry]] = OrderedDict()
        self._lock = Lock()
        self._free = BoundedSemaphore(_AT_ONCE)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Answer one of few requests at once.

        Raises:
            HTTPException: There are too many (503).
        """
        if not self._free.acquire(blocking=False):
            raise HTTPException(503, "Too many requests for pages; try again later.", {"Retry-After": "1"})
        try:
            yield
        except MissingPythonDependency as error:
            raise HTTPException(501, str(error)) from None
        finally:
            self._free.release()

    def page(self, repo_id: str) -> tuple[bytes, KernelEntry]:
        """The page of a repository, and its entry in the list.

        Raises:
            RepositoryNotFound: There is none.
            InvalidRepository: It cannot be served.
        """
        with self._lock:
            branches = self._catalog.branches(repo_id)
            publisher = self._catalog.publisher(repo_id.partition("/")[0])
            key = (branches, publisher)
            known = self._made.get(repo_id)
            if known is None or known[0] != key:
                trusted = publisher is not None and publisher.trusted
                known = self._made[repo_id] = (key, *kernel_page(self._shown(repo_id, branches, trusted)))
            self._made.move_to_end(repo_id)
            while len(self._made) > _KEPT:
                self._made.popitem(last=False)
            return known[1:]

    def hides(self, repo_id: str) -> bool:
        """Whether a repository is hidden from clients without a token."""
        return self._catalog.private(repo_id)

    def entries(self, *, private: bool) -> KernelList:
        """The list of the repositories; one that cannot be served is left out."""
        found = []
        for repo_id in self._catalog.repositories(private=private):
            try:
                found.append(self.page(repo_id)[1])
            except (InvalidRepository, RepositoryNotFound, RevisionNotFound):
                continue
        return KernelList("", tuple(sorted(found, key=lambda entry: (entry.repo_id.lower(), entry.repo_id))))

    def _shown(self, repo_id: str, branches: dict[str, str], trusted: bool) -> ShownKernel:
        names = newest_first(branches)
        return ShownKernel(
            repo_id=repo_id,
            versions=tuple(_version(name, self._catalog.commit(repo_id, name)) for name in names[:MAX_VERSIONS]),
            more=tuple(names[MAX_VERSIONS:]),
            trusted=trusted,
        )


def page_routes() -> list[Route]:
    """The routes of the pages, for an app whose state has `pages`."""
    return [
        Route("/", _list_for_browsers),
        Route(f"/{INDEX_FILE}", _list),
        Route(f"/{LIST_FILE}", _list_file),
        Route("/catalog/-/{name}", _asset),
        Route("/catalog/{org}/{name}/", _kernel),
        Route(f"/catalog/{{org}}/{{name}}/{INDEX_FILE}", _kernel),
    ]


def _list_for_browsers(request: Request) -> Response:
    if "text/html" not in request.headers.get("Accept", ""):
        raise HTTPException(404, "Not Found")
    return _list(request)


def _list(request: Request) -> Response:
    pages = _pages(request)
    with pages.answering():
        return _html(list_page(pages.entries(private=is_authorized(request))))


def _list_file(request: Request) -> Response:
    pages = _pages(request)
    with pages.answering():
        content = pages.entries(private=is_authorized(request)).to_bytes()
    return Response(content, media_type="text/javascript", headers={**_HEADERS, "Vary": "Authorization"})


def _asset(request: Request) -> Response:
    content = assets().get(f"catalog/-/{request.path_params['name']}")
    if content is None:
        raise HTTPException(404, "Not Found")
    kind = _TYPES[request.path_params["name"].rpartition(".")[2]]
    headers = {**_HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
    return Response(content, media_type=kind, headers=headers)


def _kernel(request: Request) -> Response:
    repo_id = f"{request.path_params['org']}/{request.path_params['name']}"
    pages = _pages(request)
    if pages.hides(repo_id) and not is_authorized(request):
        raise RepositoryNotFound(f"Repository {repo_id!r} of type kernel not found.")
    with pages.answering():
        return _html(pages.page(repo_id)[0])


def _pages(request: Request) -> KernelPages:
    pages = request.app.state.pages
    assert isinstance(pages, KernelPages)
    return pages


def _html(content: bytes) -> Response:
    return Response(content, media_type="text/html", headers={**_HEADERS, "Vary": "Accept, Authorization"})


def _version(branch: str, commit: Commit) -> ShownVersion:
    files: dict[str, list[str]] = {}
    for path in commit.files:
        parts = path.split("/", 2)
        if len(parts) == 3 and parts[0] == BUILD_FOLDER:
            files.setdefault(parts[1], []).append(path)
    names = sorted(files)
    card = _text(commit, CARD_FILE, MAX_CARD_BYTES)
    images = {} if card is None else {path: _text(commit, path, MAX_IMAGE_BYTES) for path in named_images(card)}
    return ShownVersion(
        branch=branch,
        commit=commit.id,
        date=commit.date.isoformat(),
        builds=in_order(_build(commit, name, files[name]) for name in names[:MAX_BUILDS]),
        more=len(names[MAX_BUILDS:]),
        card=card,
        images={path: text for path, text in images.items() if text is not None},
    )


def _build(commit: Commit, name: str, paths: list[str]) -> ShownBuild:
    folder = f"{BUILD_FOLDER}/{name}"
    return ShownBuild.of(
        name,
        size=sum(commit.files[path].size for path in paths),
        files=len(paths),
        metadata=_text(commit, f"{folder}/{METADATA_FILE}", MAX_METADATA_BYTES),
        signature=_text(commit, f"{folder}/{BUNDLE_FILE}", MAX_BUNDLE_BYTES),
    )


def _text(commit: Commit, path: str, limit: int) -> str | None:
    """The text of a small file; a larger one is cut, and one that is being replaced is not there."""
    file = commit.files.get(path)
    opened = None if file is None else file.open()
    if opened is None:
        return None
    with opened:
        return opened.read(limit + 1).decode("utf-8", "replace")
