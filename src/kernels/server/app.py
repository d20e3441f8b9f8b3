"""The Hub's REST API as an ASGI application over a `Catalog`: the read routes here, the write routes in `write_api`.

No path of a URL is used on disk: names of publishers and repositories are checked, files are looked up in a commit's
listing.
"""

from __future__ import annotations

import base64
import binascii
import errno
import logging
import socket
from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any, BinaryIO
from urllib.parse import parse_qs, urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kernels.errors import InvalidRepository, RepositoryNotFound, RevisionNotFound
from kernels.models.requirement import is_commit
from kernels.server.catalog import Catalog, Publisher
from kernels.server.file_response import INERT, OpenFileResponse
from kernels.server.kernel_pages import KernelPages, page_routes
from kernels.server.own_urls import OwnNames, absolute, location
from kernels.server.request_bodies import Bodies, Refusal
from kernels.server.snapshot import Commit, File, Folder
from kernels.server.write_api import WriteApi, is_authorized, write_routes
from kernels.support.hashing import lfs_pointer

__all__ = ["create_app"]

# The public Hub's page sizes: entries a page, with `expand=true`, and commits.
_PAGE = 1000
_PAGE_EXPANDED = 50
_PAGE_COMMITS = 50
# The title of every commit.
_TITLE = "As it is on disk"
# How often a branch is read again if it changes before its file is open.
_ATTEMPTS = 20
# Bounds on one question about paths; the public Hub's are lower.
_MAX_PATHS = 10_000
_MAX_PATHS_BYTES = 2**20
_MAX_PATHS_BYTES_TOGETHER = 64 * 2**20
# Characters of an error in a header: clients refuse lines of some 64 kB.
_MAX_HEADER_MESSAGE = 500
# Characters of a parameter that the URL of the next page repeats: a publisher's name has 96 at most.
_MAX_REPEATED = 96
# Query parameters that the URL of the next page repeats.
_PAGED = ("recursive", "expand", "limit")

_LOG = logging.getLogger("kernels.server")


def create_app(
    catalog: Catalog,
    *,
    token: str | None = None,
    writable: bool = False,
    public_url: str | None = None,
    local: bool = False,
) -> Starlette:
    """The ASGI application that serves a catalog.

    Args:
        catalog: The repositories. Its `trusted` and `users` are read at every request.
        token: The token that gives access to private repositories, and to writing.
        writable: Whether clients with the token may write.
        public_url: Where clients reach it, for the addresses in answers; None for the address that a client connected
            to, or a name of it in `state.names` or `localhost`. No other `Host` is used, nor is `X-Forwarded-…`.
        local: Whether only this machine reaches it: then it answers only requests for these names, so that no other
            website can read it in a browser of this machine.

    Returns:
        An application for any ASGI server, such as uvicorn.
    """
    repository = "/api/{kinds}/{org}/{name}"
    app = Starlette(
        routes=[
            *page_routes(),
            Route("/api/organizations/{name}/overview", _organization),
            Route("/api/users/{name}/overview", _user),
            Route("/api/agent-harnesses", _agent_harnesses),
            Route("/api/kernels", _repositories),
            Route(repository, _info),
            Route(repository + "/refs", _refs),
            Route(repository + "/revision/{rest:path}", _info),
            Route(repository + "/commits/{rest:path}", _commits),
            Route(repository + "/tree/{rest:path}", _tree),
            Route(repository + "/paths-info/{rest:path}", _paths_info, methods=["POST"]),
            Route("/{kinds}/{org}/{name}/resolve/{rest:path}", _resolve),
            Route("/{org}/{name}/resolve/{rest:path}", _resolve),
            Route("/lfs/{kinds}/{org}/{name}/{commit}/{sha256}/{path:path}", _lfs_content),
            *write_routes(),
        ],
        exception_handlers={
            RepositoryNotFound: partial(_not_found, code="RepoNotFound"),
            RevisionNotFound: partial(_not_found, code="RevisionNotFound"),
            InvalidRepository: _invalid_repository,
            OSError: _system_error,
            HTTPException: _http_error,
            Exception: _internal_error,
        },
        middleware=[Middleware(OwnNames, refuse=partial(_error, 421, None))] if local else [],
    )
    app.router.redirect_slashes = False  # it would redirect to the request's `Host`
    app.state.catalog = catalog
    app.state.public_url = public_url
    app.state.names = {socket.gethostname().lower()}
    app.state.path_questions = Bodies(_MAX_PATHS_BYTES, _MAX_PATHS_BYTES_TOGETHER)
    app.state.pages = KernelPages(catalog)
    app.state.write_api = WriteApi(catalog, token, writable=writable)
    return app


def _organization(request: Request) -> Response:
    name, publisher = _publisher(request)
    if publisher is None or publisher.person:
        return _error(404, None, f"Organization {name!r} not found.")
    return JSONResponse(
        {
            "avatarUrl": "",
            "name": name,
            "fullname": name,
            "type": "org",
            "isVerified": False,
            "numKernels": publisher.repositories,
            "trustedKernelPublisher": publisher.trusted,
        }
    )


def _publisher(request: Request) -> tuple[str, Publisher | None]:
    name = request.path_params["name"]
    return name, _catalog(request).publisher(name, private=is_authorized(request))


def _agent_harnesses(request: Request) -> Response:
    # huggingface_hub requests this once a day to name coding agents in its user agent; without an answer it does so in
    # every process.
    return JSONResponse({"standardEnvVars": [], "harnesses": {}})


def _user(request: Request) -> Response:
    name, publisher = _publisher(request)
    if publisher is None or not publisher.person:
        return _error(404, None, f"User {name!r} not found.")
    return JSONResponse({"avatarUrl": "", "user": name, "fullname": name, "type": "user", "orgs": []})


def _repositories(request: Request) -> Response:
    query = request.query_params
    author = query.get("author")
    names = _catalog(request).repositories(author, private=is_authorized(request))
    page, headers = _page(request, names, _PAGE, ("author", "limit"))
    if page is None:
        return _bad_page()
    private = {name: _catalog(request).private(name) for name in page}
    entries = [{"id": name, "author": name.partition("/")[0], "private": private[name]} for name in page]
    return JSONResponse(entries, headers=headers)


def _info(request: Request) -> Response:
    repo_id, revision, rest = _parts(request)
    if rest:
        raise RevisionNotFound(f"{repo_id} has no revision {f'{revision}/{rest}'!r}.")
    commit = _catalog(request).commit(repo_id, revision)
    info: dict[str, Any] = {
        "id": repo_id,
        "author": repo_id.partition("/")[0],
        "sha": commit.id,
        "lastModified": _date(commit.date),
        "createdAt": _date(commit.date),
        "private": _catalog(request).private(repo_id),
        "gated": False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
    }
    return JSONResponse(info)


def _refs(request: Request) -> Response:
    repo_id, _, _ = _parts(request)
    branches = [
        {"name": name, "ref": f"refs/heads/{name}", "targetCommit": commit}
        for name, commit in _catalog(request).branches(repo_id).items()
    ]
    answer: dict[str, Any] = {"branches": branches, "converts": [], "tags": []}
    if _flag(request.query_params.get("include_prs")):
        answer["pullRequests"] = [
            {"name": f"refs/pr/{number}", "ref": f"refs/pr/{number}", "targetCommit": commit}
            for number, commit in _catalog(request).pulls(repo_id).items()
        ]
    return JSONResponse(answer)


def _commits(request: Request) -> Response:
    repo_id, revision, _ = _parts(request)
    query = request.query_params
    try:
        size, number = min(int(query.get("limit", _PAGE_COMMITS)), _PAGE), int(query.get("p", 0))
    except ValueError:
        size = number = -1
    if size < 1 or number < 0:
        return _error(400, None, "`limit` must be a positive integer, and `p` the number of a page, from 0.")
    commits = _catalog(request).history(repo_id, revision)
    end = (number + 1) * size
    headers = {}
    if end < len(commits):
        url = absolute(request, request.scope["path"])
        headers = {"Link": f'<{url}?{urlencode({"limit": size, "p": number + 1})}>; rel="next"'}
    authors = [{"user": repo_id.partition("/")[0]}]
    page = [
        {"id": commit, "title": _TITLE, "message": "", "date": _date(date), "authors": authors}
        for commit, date in commits[end - size : end]
    ]
    return JSONResponse(page, headers=headers)


def _tree(request: Request) -> Response:
    repo_id, revision, folder = _parts(request)
    query = request.query_params
    # Pages after the first use the commit that was read for the first.
    known = _catalog(request).known(repo_id, revision or "") if "cursor" in query else None
    commit = known or _catalog(request).commit(repo_id, revision)
    expand = _flag(query.get("expand"))
    paths = commit.paths(folder, recursive=_flag(query.get("recursive")))
    if paths is None:
        return _entry_not_found(repo_id, commit, folder)
    largest = _PAGE_EXPANDED if expand else _PAGE
    page, headers = _page(request, paths, largest, _PAGED)
    if page is None:
        return _bad_page()
    return JSONResponse([_entry(commit, path, expand) for path in page], headers=headers)


def _page(
    request: Request, names: Sequence[str], largest: int, repeated: Sequence[str]
) -> tuple[Sequence[str] | None, dict[str, str]]:
    """A page of sorted names, and the header with the next one; None if the request's parameters are not valid."""
    query = request.query_params
    try:
        size = min(int(query.get("limit", largest)), largest)
        after = base64.urlsafe_b64decode(query["cursor"]).decode() if "cursor" in query else None
    except (ValueError, binascii.Error):
        size, after = 0, None
    if size < 1:
        return None, {}
    # The cursor is the last name of the previous page, so names that are added meanwhile shift nothing.
    start = 0 if after is None else bisect_right(names, after)
    page = names[start : start + size]
    if start + size >= len(names):
        return page, {}
    pairs = {key: query[key][:_MAX_REPEATED] for key in repeated if key in query}
    cursor = base64.urlsafe_b64encode(page[-1].encode()).decode()
    # Not relative: huggingface_hub does not resolve it.
    url = absolute(request, request.scope["path"])
    return page, {"Link": f'<{url}?{urlencode({**pairs, "cursor": cursor})}>; rel="next"'}


def _bad_page() -> Response:
    return _error(400, None, "`limit` must be a positive integer, and `cursor` one from a page's Link header.")


async def _paths_info(request: Request) -> Response:
    try:
        async with request.app.state.path_questions.read(request) as body:
            return await run_in_threadpool(_entries, request, body)
    except ClientDisconnect:
        return Response(status_code=400)  # the client has left


def _entries(request: Request, body: bytearray) -> Response:
    repo_id, revision, _ = _parts(request)
    commit = _catalog(request).commit(repo_id, revision)
    try:
        form = parse_qs(body.decode("utf-8", "replace"), max_num_fields=_MAX_PATHS + 1)
    except ValueError:
        return _error(413, None, f"Too many paths; the limit is {_MAX_PATHS}.")
    expand = _flag(form.get("expand", [None])[0])
    return JSONResponse([_entry(commit, path, expand) for path in form.get("paths", []) if commit.entry(path)])


def _resolve(request: Request) -> Response:
    repo_id, revision, path = _parts(request)
    commit, file, opened = _open(request, repo_id, revision, path, large=False)
    if file is None:
        return _entry_not_found(repo_id, commit, path)
    if opened is not None:
        return OpenFileResponse(request, opened, {"X-Repo-Commit": commit.id, "ETag": f'"{file.oid}"'})
    target = location(request, f"/lfs/kernels/{repo_id}/{commit.id}/{file.sha256}/{path}")
    headers = _lfs_headers(commit, file) | INERT | {"ETag": f'"{file.oid}"', "Location": target}
    return Response(status_code=302, headers=headers)


def _lfs_content(request: Request) -> Response:
    parameters = request.path_params
    repo_id, _, _ = _parts(request)
    commit, file, opened = _open(request, repo_id, parameters["commit"], parameters["path"], large=True)
    if file is None or opened is None or file.sha256 != parameters["sha256"]:
        if opened is not None:
            opened.close()
        return _entry_not_found(repo_id, commit, parameters["path"])
    return OpenFileResponse(request, opened, _lfs_headers(commit, file) | {"ETag": f'"{file.sha256}"'})


def _lfs_headers(commit: Commit, file: File) -> dict[str, str]:
    # On the redirect and on its target: huggingface_hub 2.x follows a redirect on the Hub's host before it reads them.
    return {"X-Repo-Commit": commit.id, "X-Linked-Size": str(file.size), "X-Linked-ETag": f'"{file.sha256}"'}


def _catalog(request: Request) -> Catalog:
    catalog = request.app.state.catalog
    assert isinstance(catalog, Catalog)
    return catalog


def _parts(request: Request) -> tuple[str, str | None, str]:
    """The repository, the revision and the path in a URL."""
    parameters = request.path_params
    repo_id = f"{parameters['org']}/{parameters['name']}"
    kinds = parameters.get("kinds", "models")  # as in the Hub's URLs
    if kinds != "kernels" or (_catalog(request).private(repo_id) and not is_authorized(request)):
        raise RepositoryNotFound(f"Repository {repo_id!r} of type {kinds.removesuffix('s')} not found.")
    if "rest" not in parameters:
        return repo_id, None, ""
    # The slashes in `refs/heads/v1` are quoted in the URL, and unquoted before it is routed.
    parts = parameters["rest"].split("/")
    length = 3 if parts[0] == "refs" else 1
    return repo_id, "/".join(parts[:length]), "/".join(parts[length:])


def _entry(commit: Commit, path: str, expand: bool) -> dict[str, Any]:
    entry = commit.entry(path)
    answer: dict[str, Any]
    if isinstance(entry, Folder):
        answer = {"type": "directory", "oid": entry.oid, "size": 0, "path": path}
    else:
        assert entry is not None
        answer = {"type": "file", "oid": entry.oid, "size": entry.size, "path": path}
        if entry.sha256 is not None:
            pointer = len(lfs_pointer(entry.sha256, entry.size))
            answer["lfs"] = {"oid": entry.sha256, "size": entry.size, "pointerSize": pointer}
    if expand:
        answer["lastCommit"] = _last_commit(commit)
    return answer


def _last_commit(commit: Commit) -> dict[str, str]:
    return {"id": commit.id, "title": _TITLE, "date": _date(commit.date)}


def _open(
    request: Request, repo_id: str, revision: str | None, path: str, *, large: bool
) -> tuple[Commit, File | None, BinaryIO | None]:
    """A commit, its file at a path, and that file opened if whether it is kept in LFS equals `large`.

    A commit never changes, so one that is named by its id is scanned once, not for each of its files. A branch may
    change between its scan and the opening of a file; then it is scanned again.
    """
    known = _catalog(request).known(repo_id, revision) if revision and is_commit(revision) else None
    for _ in range(_ATTEMPTS):
        commit = known or _catalog(request).commit(repo_id, revision)
        known = None
        file = commit.files.get(path)
        if file is None or (file.sha256 is not None) != large:
            return commit, file, None
        opened = file.open()
        if opened is not None:
            return commit, file, opened
    raise RevisionNotFound(f"{path} was removed after its commit was listed.")


def _date(date: datetime) -> str:
    return date.strftime("%Y-%m-%dT%H:%M:%S.") + f"{date.microsecond // 1000:03d}Z"


def _flag(value: str | None) -> bool:
    return value is not None and value.lower() in ("1", "true")


def _error(status: int, code: str | None, message: str, headers: dict[str, str] | None = None) -> Response:
    # A header is one line of printable ASCII; a message may quote any URL.
    escaped = message.encode("ascii", "backslashreplace").decode()
    line = "".join(character if character.isprintable() else " " for character in escaped)[:_MAX_HEADER_MESSAGE]
    extra = {"X-Error-Message": line} if code is None else {"X-Error-Code": code, "X-Error-Message": line}
    return Refusal({"error": message}, status_code=status, headers=INERT | extra | (headers or {}))


def _entry_not_found(repo_id: str, commit: Commit, path: str) -> Response:
    message = f"{repo_id} has no file or folder {path!r} at {commit.id}."
    return _error(404, "EntryNotFound", message, {"X-Repo-Commit": commit.id})


def _not_found(request: Request, error: Exception, *, code: str) -> Response:
    return _error(404, code, str(error))


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, None, error.detail, dict(error.headers or {}))


def _invalid_repository(request: Request, error: Exception) -> Response:
    # The message names folders of the server, which are not the client's business.
    _LOG.error("%s", error)
    return _error(500, None, "The repository cannot be served; the server's log says why.")


def _system_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, OSError)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return _error(503, None, "Too many requests; try again later.", {"Retry-After": "1"})
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _error(507, None, "The server's disk is full.")
    raise error


def _internal_error(request: Request, error: Exception) -> Response:
    return _error(500, None, "The server failed; its log has the error.")
