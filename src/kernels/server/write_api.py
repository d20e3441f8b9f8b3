"""The write routes of the Hub's REST API: create a repository or a branch, and commit to one.

They serve huggingface_hub 1.x and 2.x without Xet (`HF_HUB_DISABLE_XET=1`): `create_repo`, `create_branch`,
`create_commit` (preupload, LFS batch, uploads, the commit as NDJSON), `whoami`.
"""

from __future__ import annotations

import hmac
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import Struct
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kernels.errors import RequestError, RevisionNotFound
from kernels.models.requirement import check_repo_id
from kernels.server.catalog import Catalog
from kernels.server.changes import Conflict, MissingPath, Writer, check_path
from kernels.server.commit_lines import MAX_OPERATIONS, LargeFiles, quoted, read_commit
from kernels.server.lfs_objects import MAX_OBJECT_BYTES, LfsObjects, is_sha256
from kernels.server.own_urls import absolute
from kernels.server.request_bodies import Bodies, check_content_length, read_chunks
from kernels.server.scan import is_lfs
from kernels.support.record_file import decode_json

__all__ = ["WriteApi", "is_authorized", "write_routes"]

#: Bounds on questions: a client sends 256 files with 512 bytes of each at once.
_MAX_QUESTION = 8 * 2**20
_MAX_QUESTIONS_TOGETHER = 256 * 2**20

#: Bytes of a commit without its large files.
_MAX_COMMIT = 2**30

_Handler = Callable[[Request], Awaitable[Response]]
_Question = TypeVar("_Question")


# The fields of requests that are used; msgspec skips the others without memory.
class _NewRepository(Struct):
    name: str
    type: str | None = None
    organization: str | None = None
    # huggingface_hub 1.x says `private`, 2.x `visibility`.
    private: bool | None = None
    visibility: str | None = None


class _NewBranch(Struct):
    startingPoint: str | None = None


class _UploadFile(Struct):
    path: str
    size: int


class _Upload(Struct):
    files: list[_UploadFile]


class _BatchObject(Struct):
    oid: str
    size: int


class _Batch(Struct):
    operation: str
    objects: list[_BatchObject]


class WriteApi:
    """The state of the write routes. Without a token, writing and private repositories are not available."""

    def __init__(self, catalog: Catalog, token: str | None, *, writable: bool) -> None:
        self.catalog = catalog
        self.token = token
        self.writable = writable
        self.writer = Writer(catalog)
        self.objects = LfsObjects(catalog.root)
        self.questions = Bodies(_MAX_QUESTION, _MAX_QUESTIONS_TOGETHER)


def write_routes() -> list[Route]:
    """The write routes, for an application whose `state.write_api` is a `WriteApi`."""
    repository = "/api/{kinds}/{org}/{name}"
    batch = "/{kinds}/{org}/{name}.git/info/lfs/objects/batch"
    return [
        Route("/api/whoami-v2", _whoami),
        Route("/api/validate-yaml", _checked(_validate_yaml), methods=["POST"]),
        Route("/api/repos/create", _answer(_NewRepository, _create_repository), methods=["POST"]),
        Route(repository + "/branch/{rest:path}", _answer(_NewBranch, _create_branch), methods=["POST"]),
        Route(repository + "/preupload/{rest:path}", _answer(_Upload, _preupload), methods=["POST"]),
        Route(batch, _answer(_Batch, _batch), methods=["POST"]),
        Route("/lfs-upload/{sha256}", _upload, methods=["PUT"]),
        Route(repository + "/commit/{rest:path}", _checked(_commit), methods=["POST"]),
    ]


def is_authorized(request: Request) -> bool:
    """Whether a request has the token."""
    token = _api(request).token
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if token is None or scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode("utf-8", "replace"))


def _api(request: Request) -> WriteApi:
    api = request.app.state.write_api
    assert isinstance(api, WriteApi)
    return api


def _checked(handler: _Handler) -> _Handler:
    """A handler that requires the token on a writable server, and answers invalid requests with their error."""

    async def checked(request: Request) -> Response:
        if not _api(request).writable:
            raise HTTPException(403, "This Hub is read-only; `kernels serve --writable` makes it writable.")
        _check_token(request)
        try:
            return await handler(request)
        except RevisionNotFound:
            raise
        except (RequestError, msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise HTTPException(400, str(error)) from None
        except MissingPath as error:
            raise HTTPException(404, str(error), {"X-Error-Code": "EntryNotFound"}) from None
        except ClientDisconnect:
            return Response(status_code=400)  # the client has left

    return checked


def _answer(kind: type[_Question], handler: Callable[[Request, _Question], Response]) -> _Handler:
    """A checked handler that reads a question, then decodes and answers it in a thread, as that uses the disk."""

    def answer(request: Request, body: bytearray) -> Response:
        return handler(request, decode_json(bytes(body or b"{}"), kind))

    async def read(request: Request) -> Response:
        async with _api(request).questions.read(request) as body:
            return await run_in_threadpool(answer, request, body)

    return _checked(read)


def _check_token(request: Request) -> None:
    if "Authorization" not in request.headers:
        raise HTTPException(401, "A token is required: Authorization: Bearer …")
    if not is_authorized(request):
        # huggingface_hub compares these words, to report the token instead of the repository.
        raise HTTPException(401, "Invalid credentials in Authorization header")


async def _whoami(request: Request) -> Response:
    _check_token(request)
    role = "write" if _api(request).writable else "read"
    return JSONResponse(
        {
            "type": "user",
            "id": "0",
            "name": "holder-of-the-token",
            "fullname": "Holder of the token",
            "orgs": [],
            "auth": {"type": "access_token", "accessToken": {"displayName": "kernels serve", "role": role}},
        }
    )


async def _validate_yaml(request: Request) -> Response:
    async with _api(request).questions.read(request):
        return JSONResponse({"errors": [], "warnings": []})


def _create_repository(request: Request, question: _NewRepository) -> Response:
    if question.type != "kernel":
        raise RequestError(f"`type` is {quoted(question.type)}; expected 'kernel'.")
    repo_id = check_repo_id(f"{question.organization or ''}/{question.name}")
    answer = {"url": absolute(request, f"/kernels/{repo_id}"), "name": repo_id}
    private = bool(question.private) or question.visibility == "private"
    try:
        _api(request).writer.create_repository(repo_id, private=private)
    except Conflict as error:
        # With `exist_ok`, the client reads the URL from this answer.
        return JSONResponse(answer | {"error": str(error)}, status_code=409)
    return JSONResponse(answer)


def _create_branch(request: Request, question: _NewBranch) -> Response:
    writer = _api(request).writer
    try:
        writer.create_branch(_repo_id(request), request.path_params["rest"], question.startingPoint)
    except Conflict as error:
        raise HTTPException(409, str(error)) from None
    return JSONResponse({})


def _preupload(request: Request, question: _Upload) -> Response:
    if len(question.files) > MAX_OPERATIONS:
        raise RequestError(f"`files` has {len(question.files)} entries; expected {MAX_OPERATIONS} at most.")
    head = _api(request).catalog.commit(_repo_id(request), request.path_params["rest"])
    answers = []
    for file in question.files:
        path = check_path(file.path)
        large = is_lfs(path, file.size)
        answer: dict[str, Any] = {"path": path, "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
        existing = head.files.get(path)
        if existing is not None:
            answer["oid"] = existing.sha256 if large else existing.oid
        answers.append(answer)
    return JSONResponse({"files": answers, "commitOid": head.id})


def _batch(request: Request, question: _Batch) -> Response:
    if question.operation != "upload" or len(question.objects) > MAX_OPERATIONS:
        raise RequestError(
            f"`operation` must be 'upload', and `objects` a list of at most {MAX_OPERATIONS} {{oid, size}}."
        )
    repo_id = _repo_id(request)
    api = _api(request)
    api.catalog.repository(repo_id)
    large = LargeFiles(api.catalog, api.objects, repo_id)
    objects = [_offer(request, large, each.oid, each.size) for each in question.objects]
    return JSONResponse(
        {"transfer": "basic", "objects": objects, "hash_algo": "sha256"}, media_type="application/vnd.git-lfs+json"
    )


def _offer(request: Request, large: LargeFiles, sha256: str, size: int) -> dict[str, Any]:
    if not is_sha256(sha256):
        raise RequestError("`objects` has an entry whose `oid` is not a SHA-256.")
    answer: dict[str, Any] = {"oid": sha256, "size": size}
    if not 0 <= size <= MAX_OBJECT_BYTES:
        message = f"The object has {size} bytes; the limit is {MAX_OBJECT_BYTES}."
        return answer | {"error": {"code": 413, "message": message}}
    objects = _api(request).objects
    if objects.find(sha256, size) is not None:
        return answer
    file = large.committed(sha256)
    if file is not None and file.size == size:
        return answer
    query = urlencode(objects.sign(sha256, size))
    return answer | {"actions": {"upload": {"href": f"{absolute(request, f'/lfs-upload/{sha256}')}?{query}"}}}


async def _upload(request: Request) -> Response:
    # Clients send no token here: the URL is signed.
    objects, sha256 = _api(request).objects, request.path_params["sha256"]
    size = objects.signed_size(
        sha256, *(request.query_params.get(name, "") for name in ("size", "expires", "signature"))
    )
    if size is None:
        raise HTTPException(403, "This upload URL is invalid or has expired; request a new one.")
    try:
        await objects.receive(sha256, size, read_chunks(request))
    except ClientDisconnect:
        return Response(status_code=400)
    return Response()


async def _commit(request: Request) -> Response:
    pull = request.query_params.get("create_pr", "") in ("1", "true")
    repo_id, revision = _repo_id(request), request.path_params["rest"]
    api = _api(request)
    check_content_length(request, _MAX_COMMIT)
    # On the repositories' disk: the system's temporary folder may be in memory.
    body = await run_in_threadpool(api.objects.scratch)
    with body:
        size = 0
        async for chunk in read_chunks(request):
            size += len(chunk)
            if size > _MAX_COMMIT:
                raise HTTPException(
                    413, f"The commit is too large; the limit is {_MAX_COMMIT} bytes without large files."
                )
            await run_in_threadpool(body.write, chunk)
        try:
            commit, number = await run_in_threadpool(_apply, api, repo_id, revision, body, pull)
        except Conflict as error:
            raise HTTPException(412, str(error)) from None
    url = absolute(request, f"/kernels/{repo_id}")
    answer = {"success": True, "commitOid": commit, "commitUrl": f"{url}/commit/{commit}", "hookOutput": ""}
    if number is not None:
        answer["pullRequestUrl"] = f"{url}/discussions/{number}"
    return JSONResponse(answer)


def _apply(api: WriteApi, repo_id: str, revision: str, body: IO[bytes], pull: bool) -> tuple[str, int | None]:
    body.seek(0)
    with tempfile.TemporaryDirectory(prefix="commit-", dir=api.objects.folder) as folder:
        change = read_commit(body, Path(folder), LargeFiles(api.catalog, api.objects, repo_id))
        commit, number = api.writer.commit(repo_id, revision, change, pull=pull)
    return commit.id, number


def _repo_id(request: Request) -> str:
    parameters = request.path_params
    if parameters["kinds"] != "kernels":
        raise RequestError(
            f"Expected a repository of type `kernels`, got {parameters['kinds']!r}; only those are writable."
        )
    return check_repo_id(f"{parameters['org']}/{parameters['name']}")
