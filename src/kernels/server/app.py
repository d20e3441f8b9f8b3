"""The Hub's REST API as an ASGI application over a `Catalog`: the read side, and the routes of `serve.writing`.

No path from a URL reaches the disk: publishers and repositories are checked names, files are looked up in the commit's
own listing.
"""

from __future__ import annotations

import base64
import binascii
import errno
import logging
import socket
from bisect import bisect_right
from datetime import datetime
from typing import Any, BinaryIO
from urllib.parse import parse_qs, urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kernels.errors import InvalidRepository, RepositoryNotFound, RevisionNotFound
from kernels.models.requirement import is_commit
from kernels.server.addresses import absolute, location
from kernels.server.bodies import Bodies, Refusal
from kernels.server.catalog import Catalog
from kernels.server.sending import OpenFile
from kernels.server.snapshot import Commit, File, Folder, lfs_pointer
from kernels.server.writing import Writing, may_write, writing_routes

__all__ = ["create_app"]

# The public Hub's page sizes: entries a page, and with `expand=true`.
_PAGE = 1000
_PAGE_EXPANDED = 50
# How often a branch is looked at that changes each time before its file is open.
_LOOKS = 20
# A question about paths: as many as a client can need of one repository, and their bytes; the public Hub takes fewer.
_MAX_PATHS = 10_000
_MAX_PATHS_BYTES = 2**20
_MAX_PATHS_BYTES_TOGETHER = 64 * 2**20
# What a header tells of an error: clients refuse lines of some 64 kB.
_MAX_HEADER_MESSAGE = 500
# What of a query is part of the address of the next page.
_PAGED = ("recursive", "expand", "limit")

_LOG = logging.getLogger("kernels.server")

_KINDS = {"kernels": "kernel", "models": "model"}


def create_app(
    catalog: Catalog, *, token: str | None = None, writable: bool = False, public_url: str | None = None
) -> Starlette:
    """The application that answers for a catalog.

    Args:
        catalog: What to serve. Its `trusted`, `users` and `models` are read at every request.
        token: What a client sends to see private repositories, and to write.
        writable: Whether those with the token may write.
        public_url: Where clients reach it, for the addresses in answers; None for the address that a connection came
            to, or a name of it in `state.names` or `localhost`. No other `Host` is used, nor is `X-Forwarded-…`.

    Returns:
        An ASGI application.
    """
    repository = "/api/{kinds}/{org}/{name}"
    app = Starlette(
        routes=[
            Route("/api/organizations/{name}/overview", _organization),
            Route("/api/users/{name}/overview", _user),
            Route("/api/agent-harnesses", _agent_harnesses),
            Route(repository, _info),
            Route(repository + "/refs", _refs),
            Route(repository + "/revision/{rest:path}", _info),
            Route(repository + "/commits/{rest:path}", _commits),
            Route(repository + "/tree/{rest:path}", _tree),
            Route(repository + "/paths-info/{rest:path}", _paths_info, methods=["POST"]),
            Route("/{kinds}/{org}/{name}/resolve/{rest:path}", _resolve),
            Route("/{org}/{name}/resolve/{rest:path}", _resolve),
            Route("/lfs/{kinds}/{org}/{name}/{commit}/{sha256}/{path:path}", _content),
            *writing_routes(),
        ],
        exception_handlers={
            RepositoryNotFound: _repository_not_found,
            RevisionNotFound: _revision_not_found,
            InvalidRepository: _invalid_repository,
            OSError: _system_error,
            HTTPException: _http_error,
            Exception: _internal_error,
        },
    )
    app.router.redirect_slashes = False  # it would redirect to the `Host` that the client names
    app.state.catalog = catalog
    app.state.public_url = public_url
    app.state.names = {socket.gethostname().lower()}
    app.state.path_questions = Bodies(_MAX_PATHS_BYTES, _MAX_PATHS_BYTES_TOGETHER)
    app.state.writing = Writing(catalog, token, writable=writable)
    return app


def _organization(request: Request) -> Response:
    name = request.path_params["name"]
    publisher = _catalog(request).publisher(name, private=may_write(request))
    if publisher is None or publisher.person:
        return _error(404, None, f"There is no organization {name!r} here.")
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


def _agent_harnesses(request: Request) -> Response:
    # huggingface_hub asks this once a day to tell coding agents apart in its user agent; without an answer it asks
    # again in every process.
    return JSONResponse({"standardEnvVars": [], "harnesses": {}})


def _user(request: Request) -> Response:
    name = request.path_params["name"]
    publisher = _catalog(request).publisher(name, private=may_write(request))
    if publisher is None or not publisher.person:
        return _error(404, None, f"There is no user {name!r} here.")
    return JSONResponse({"avatarUrl": "", "user": name, "fullname": name, "type": "user", "orgs": []})


def _info(request: Request) -> Response:
    repo_id, kind, revision, rest = _asked(request)
    if rest:
        raise RevisionNotFound(f"{repo_id} has no revision {f'{revision}/{rest}'!r}.")
    commit = _catalog(request).commit(repo_id, revision, kind=kind)
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
    if kind == "model":
        info |= {"modelId": repo_id, "tags": [], "siblings": [{"rfilename": path} for path in commit.files]}
    return JSONResponse(info)


def _refs(request: Request) -> Response:
    repo_id, kind, _, _ = _asked(request)
    branches = [
        {"name": name, "ref": f"refs/heads/{name}", "targetCommit": commit}
        for name, commit in _catalog(request).branches(repo_id, kind=kind).items()
    ]
    answer: dict[str, Any] = {"branches": branches, "converts": [], "tags": []}
    if request.query_params.get("include_prs", "") in ("1", "true"):
        answer["pullRequests"] = [
            {"name": f"refs/pr/{number}", "ref": f"refs/pr/{number}", "targetCommit": commit}
            for number, commit in _catalog(request).pulls(repo_id, kind=kind).items()
        ]
    return JSONResponse(answer)


def _commits(request: Request) -> Response:
    repo_id, kind, revision, _ = _asked(request)
    commit = _catalog(request).commit(repo_id, revision, kind=kind)
    return JSONResponse([{**_last_commit(commit), "authors": [{"user": repo_id.partition("/")[0]}], "message": ""}])


def _tree(request: Request) -> Response:
    repo_id, kind, revision, folder = _asked(request)
    query = request.query_params
    # The pages after the first are of a commit that was looked at for the first.
    known = _catalog(request).known(repo_id, revision or "", kind=kind) if "cursor" in query else None
    commit = known or _catalog(request).commit(repo_id, revision, kind=kind)
    expand = _flag(query.get("expand"))
    paths = commit.paths(folder, recursive=_flag(query.get("recursive")))
    if paths is None:
        return _entry_not_found(repo_id, commit, folder)
    largest = _PAGE_EXPANDED if expand else _PAGE
    try:
        size = min(int(query.get("limit", largest)), largest)
        after = base64.urlsafe_b64decode(query["cursor"]).decode() if "cursor" in query else None
    except (ValueError, binascii.Error):
        size, after = 0, None
    if size < 1:
        return _error(400, None, "`limit` must be a positive integer, and `cursor` one that a page's Link header gave.")
    # The cursor is the last path of the page before, so a file that appears meanwhile shifts nothing.
    start = 0 if after is None else bisect_right(paths, after)
    page = paths[start : start + size]
    headers = {}
    if start + size < len(paths):
        pairs = {key: query[key][:32] for key in _PAGED if key in query}
        cursor = base64.urlsafe_b64encode(page[-1].encode()).decode()
        # huggingface_hub follows no relative reference here.
        url = absolute(request, request.scope["path"])
        headers["Link"] = f'<{url}?{urlencode({**pairs, "cursor": cursor})}>; rel="next"'
    return JSONResponse([_entry(commit, path, expand) for path in page], headers=headers)


async def _paths_info(request: Request) -> Response:
    try:
        async with request.app.state.path_questions.of(request) as body:
            return await run_in_threadpool(_paths_found, request, body)
    except ClientDisconnect:
        return Response(status_code=400)  # nobody is there to read it


def _paths_found(request: Request, body: bytearray) -> Response:
    repo_id, kind, revision, _ = _asked(request)
    commit = _catalog(request).commit(repo_id, revision, kind=kind)
    try:
        form = parse_qs(body.decode("utf-8", "replace"), max_num_fields=_MAX_PATHS + 1)
    except ValueError:
        return _error(413, None, f"More than {_MAX_PATHS} paths are asked about.")
    expand = _flag(form.get("expand", [None])[0])
    return JSONResponse([_entry(commit, path, expand) for path in form.get("paths", []) if commit.entry(path)])


def _resolve(request: Request) -> Response:
    repo_id, kind, revision, path = _asked(request)
    commit, file, opened = _opened(request, repo_id, kind, revision, path, large=False)
    if file is None:
        return _entry_not_found(repo_id, commit, path)
    if opened is not None:
        return OpenFile(request, opened, {"X-Repo-Commit": commit.id, "ETag": f'"{file.oid}"'})
    target = location(request, f"/lfs/{kind}s/{repo_id}/{commit.id}/{file.sha256}/{path}")
    return Response(status_code=302, headers=_linked(commit, file) | {"ETag": f'"{file.oid}"', "Location": target})


def _content(request: Request) -> Response:
    parameters = request.path_params
    repo_id, kind, _, _ = _asked(request)
    commit, file, opened = _opened(request, repo_id, kind, parameters["commit"], parameters["path"], large=True)
    if file is None or opened is None or file.sha256 != parameters["sha256"]:
        if opened is not None:
            opened.close()
        return _entry_not_found(repo_id, commit, parameters["path"])
    return OpenFile(request, opened, _linked(commit, file) | {"ETag": f'"{file.sha256}"'})


def _linked(commit: Commit, file: File) -> dict[str, str]:
    # huggingface_hub 2.x follows a redirect that stays on the Hub's host, so both answers carry what it looks for.
    return {"X-Repo-Commit": commit.id, "X-Linked-Size": str(file.size), "X-Linked-ETag": f'"{file.sha256}"'}


def _catalog(request: Request) -> Catalog:
    catalog = request.app.state.catalog
    assert isinstance(catalog, Catalog)
    return catalog


def _asked(request: Request) -> tuple[str, str, str | None, str]:
    """The repository, its type, the revision and the path that a URL names."""
    parameters = request.path_params
    repo_id = f"{parameters['org']}/{parameters['name']}"
    kind = _KINDS.get(parameters.get("kinds", "models"))
    if kind is None:
        raise RepositoryNotFound(f"There is no {parameters['kinds']} repository {repo_id!r} here.")
    if _catalog(request).private(repo_id) and not may_write(request):
        raise RepositoryNotFound(f"There is no {kind} repository {repo_id!r} here.")
    if "rest" not in parameters:
        return repo_id, kind, None, ""
    # The slashes in `refs/heads/v1` come quoted, and are unquoted by the time the URL is routed.
    parts = parameters["rest"].split("/")
    length = 3 if parts[0] == "refs" else 1
    return repo_id, kind, "/".join(parts[:length]), "/".join(parts[length:])


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
    return {"id": commit.id, "title": "As it is on disk", "date": _date(commit.date)}


def _opened(
    request: Request, repo_id: str, kind: str, revision: str | None, path: str, *, large: bool
) -> tuple[Commit, File | None, BinaryIO | None]:
    """A commit, its file at a path, and that file opened if it is kept in LFS (`large`), or if it is not.

    A commit never changes, so one that is named by its id is not looked at again for each of its files: only the file
    itself is. Between looking at a branch and opening a file of it, a commit may replace the branch: then it is looked
    at again.
    """
    known = _catalog(request).known(repo_id, revision, kind=kind) if revision and is_commit(revision) else None
    for _ in range(_LOOKS):
        commit = known or _catalog(request).commit(repo_id, revision, kind=kind)
        known = None
        file = commit.files.get(path)
        if file is None or (file.sha256 is not None) != large:
            return commit, file, None
        opened = file.open()
        if opened is not None:
            return commit, file, opened
    raise RevisionNotFound(f"{path} is gone since its commit was listed.")


def _date(date: datetime) -> str:
    return date.strftime("%Y-%m-%dT%H:%M:%S.") + f"{date.microsecond // 1000:03d}Z"


def _flag(value: str | None) -> bool:
    return value is not None and value.lower() in ("1", "true")


def _error(status: int, code: str | None, message: str, headers: dict[str, str] | None = None) -> Response:
    # A header is one line of printable ASCII; what a URL asked for need not be.
    escaped = message.encode("ascii", "backslashreplace").decode()
    line = "".join(character if character.isprintable() else " " for character in escaped)[:_MAX_HEADER_MESSAGE]
    extra = {"X-Error-Message": line} if code is None else {"X-Error-Code": code, "X-Error-Message": line}
    return Refusal({"error": message}, status_code=status, headers=extra | (headers or {}))


def _entry_not_found(repo_id: str, commit: Commit, path: str) -> Response:
    message = f"{repo_id} has no file or folder {path!r} at {commit.id}."
    return _error(404, "EntryNotFound", message, {"X-Repo-Commit": commit.id})


def _repository_not_found(request: Request, error: Exception) -> Response:
    return _error(404, "RepoNotFound", str(error))


def _revision_not_found(request: Request, error: Exception) -> Response:
    return _error(404, "RevisionNotFound", str(error))


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, None, error.detail, dict(error.headers or {}))


def _invalid_repository(request: Request, error: Exception) -> Response:
    # What is wrong with a folder, and where it lies, is for the one who serves it.
    _LOG.error("%s", error)
    return _error(500, None, "The repository cannot be served; the server's log says why.")


def _system_error(request: Request, error: Exception) -> Response:
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE):
        return _error(503, None, "Too many requests are answered now; ask again later.", {"Retry-After": "1"})
    if number in (errno.ENOSPC, errno.EDQUOT):
        return _error(507, None, "The server's disk is full.")
    raise error


def _internal_error(request: Request, error: Exception) -> Response:
    return _error(500, None, "The server failed; its log says how.")
