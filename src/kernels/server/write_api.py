"""The Hub's REST API, write side: what `HfApi` asks for to create a repository or a branch, and to commit to one.

The calls are those of huggingface_hub 1.x and 2.x without Xet (`HF_HUB_DISABLE_XET=1`): `create_repo`, `create_branch`,
`create_commit` (preupload, LFS batch, the objects themselves, the commit as NDJSON), `whoami`.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
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
from kernels.server.addresses import absolute
from kernels.server.bodies import Bodies, check_announced, pieces
from kernels.server.catalog import Catalog, kept_large
from kernels.server.changes import Change, Conflict, MissingPath, Writer, check_path
from kernels.server.objects import MAX_OBJECT_BYTES, NotNow, ObjectRefused, Objects, is_sha256

__all__ = ["Writing", "may_write", "writing_routes"]

#: The largest question that is read: 256 files with 512 bytes of each is what a client asks about at once.
_MAX_QUESTION = 8 * 2**20
_MAX_QUESTIONS_TOGETHER = 256 * 2**20

#: The largest commit, and the largest line of one: a file below the size kept in LFS (10 MB), in base64.
_MAX_COMMIT = 2**30
_MAX_LINE = 16 * 2**20

#: Operations of one commit; the public Hub takes 25,000 as well.
_MAX_OPERATIONS = 25_000

_Handler = Callable[[Request], Awaitable[Response]]
_Asked = TypeVar("_Asked")


# What clients send, as far as it is used: other fields are passed over, and cost no memory.
class _NewRepository(Struct):
    name: str
    type: str | None = None
    organization: str | None = None
    # huggingface_hub 1.x says `private`, 2.x `visibility`.
    private: bool | None = None
    visibility: str | None = None


class _NewBranch(Struct):
    startingPoint: str | None = None


class _Announced(Struct):
    path: str
    size: int


class _Upload(Struct):
    files: list[_Announced]


class _Wanted(Struct):
    oid: str
    size: int


class _Batch(Struct):
    operation: str
    objects: list[_Wanted]


class _Value(Struct):
    path: str | int | float | bool | None = None
    content: str | None = None
    encoding: str = "utf-8"
    oid: str | int | float | bool | None = None
    parentCommit: str | None = None


class _Line(Struct):
    key: str
    value: _Value


_LINE = msgspec.json.Decoder(_Line)


class Writing:
    """What the write side works with.

    Args:
        catalog: What is served.
        token: What a client must send; None lets nobody write, nor see a private repository.
        writable: Whether those with the token may write.
    """

    def __init__(self, catalog: Catalog, token: str | None, *, writable: bool) -> None:
        self.catalog = catalog
        self.token = token
        self.writable = writable
        self.writer = Writer(catalog)
        self.objects = Objects(catalog.root)
        self.questions = Bodies(_MAX_QUESTION, _MAX_QUESTIONS_TOGETHER)


def writing_routes() -> list[Route]:
    """The routes of the write side, for an application whose `state.writing` is a `Writing`."""
    repository = "/api/{kinds}/{org}/{name}"
    batch = "/{kinds}/{org}/{name}.git/info/lfs/objects/batch"
    return [
        Route("/api/whoami-v2", _whoami),
        Route("/api/validate-yaml", _allowed(_validate_yaml), methods=["POST"]),
        Route("/api/repos/create", _allowed(_asking(_NewRepository, _create_repository)), methods=["POST"]),
        Route(repository + "/branch/{rest:path}", _allowed(_asking(_NewBranch, _create_branch)), methods=["POST"]),
        Route(repository + "/preupload/{rest:path}", _allowed(_asking(_Upload, _preupload)), methods=["POST"]),
        Route(batch, _allowed(_asking(_Batch, _batch)), methods=["POST"]),
        Route("/lfs-upload/{sha256}", _object, methods=["PUT"]),
        Route(repository + "/commit/{rest:path}", _allowed(_commit), methods=["POST"]),
    ]


def may_write(request: Request) -> bool:
    """Whether a request carries the token."""
    writing = _writing(request)
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if writing.token is None or scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(given.strip().encode("utf-8", "replace"), writing.token.encode("utf-8", "replace"))


def _writing(request: Request) -> Writing:
    writing = request.app.state.writing
    assert isinstance(writing, Writing)
    return writing


def _allowed(handler: _Handler) -> _Handler:
    """A handler for those who may write; what is wrong with a question is the answer to it."""

    async def checked(request: Request) -> Response:
        if not _writing(request).writable:
            raise HTTPException(403, "This Hub is read only; `kernels serve --writable` serves one that is not.")
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
            return Response(status_code=400)  # nobody is there to read it

    return checked


def _check_token(request: Request) -> None:
    if "Authorization" not in request.headers:
        raise HTTPException(401, "A token is needed: Authorization: Bearer …")
    if not may_write(request):
        # huggingface_hub tells by these words that it is the token, not the repository.
        raise HTTPException(401, "Invalid credentials in Authorization header")


async def _whoami(request: Request) -> Response:
    _check_token(request)
    role = "write" if _writing(request).writable else "read"
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


def _asking(kind: type[_Asked], answer: Callable[[Request, _Asked], Response]) -> _Handler:
    """A handler that reads a question and has it answered in a thread, as that decodes it and looks at the disk."""

    def answered(request: Request, body: bytearray) -> Response:
        return answer(request, msgspec.json.decode(body or b"{}", type=kind))

    async def handler(request: Request) -> Response:
        async with _writing(request).questions.of(request) as body:
            return await run_in_threadpool(answered, request, body)

    return handler


async def _validate_yaml(request: Request) -> Response:
    async with _writing(request).questions.of(request):
        return JSONResponse({"errors": [], "warnings": []})


def _create_repository(request: Request, asked: _NewRepository) -> Response:
    if asked.type != "kernel":
        raise RequestError(f"`type` is {_short(asked.type)}; expected 'kernel'.")
    repo_id = check_repo_id(f"{asked.organization or ''}/{asked.name}")
    answer = {"url": absolute(request, f"/kernels/{repo_id}"), "name": repo_id}
    private = bool(asked.private) or asked.visibility == "private"
    try:
        _writing(request).writer.create_repository(repo_id, private=private)
    except Conflict as error:
        # With `exist_ok`, the client reads the address from this answer.
        return JSONResponse(answer | {"error": str(error)}, status_code=409)
    return JSONResponse(answer)


def _create_branch(request: Request, asked: _NewBranch) -> Response:
    writer = _writing(request).writer
    try:
        writer.create_branch(_repo_id(request), request.path_params["rest"], asked.startingPoint)
    except Conflict as error:
        raise HTTPException(409, str(error)) from None
    return JSONResponse({})


def _preupload(request: Request, asked: _Upload) -> Response:
    if len(asked.files) > _MAX_OPERATIONS:
        raise RequestError(f"`files` has {len(asked.files)} entries; expected {_MAX_OPERATIONS} at most.")
    head = _writing(request).catalog.commit(_repo_id(request), request.path_params["rest"])
    answers = []
    for file in asked.files:
        path = check_path(file.path)
        large = kept_large(path, file.size)
        answer: dict[str, Any] = {"path": path, "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
        there = head.files.get(path)
        if there is not None:
            answer["oid"] = there.sha256 if large else there.oid
        answers.append(answer)
    return JSONResponse({"files": answers, "commitOid": head.id})


def _batch(request: Request, asked: _Batch) -> Response:
    if asked.operation != "upload" or len(asked.objects) > _MAX_OPERATIONS:
        raise RequestError("`operation` and `objects` must be 'upload' and a list of {oid, size}.")
    writing = _writing(request)
    writing.catalog.repository(_repo_id(request))
    objects = [_offer(request, writing, each.oid, each.size) for each in asked.objects]
    return JSONResponse(
        {"transfer": "basic", "objects": objects, "hash_algo": "sha256"}, media_type="application/vnd.git-lfs+json"
    )


def _offer(request: Request, writing: Writing, sha256: str, size: int) -> dict[str, Any]:
    if not is_sha256(sha256):
        raise RequestError("`objects` has an entry that is not {oid: a SHA-256, size: bytes}.")
    answer: dict[str, Any] = {"oid": sha256, "size": size}
    if not 0 <= size <= MAX_OBJECT_BYTES:
        message = f"{size} bytes are more than the {MAX_OBJECT_BYTES} that an object may have here."
        return answer | {"error": {"code": 413, "message": message}}
    if writing.objects.find(sha256, size) is not None:
        return answer
    query = urlencode(writing.objects.address(sha256, size))
    return answer | {"actions": {"upload": {"href": f"{absolute(request, f'/lfs-upload/{sha256}')}?{query}"}}}


async def _object(request: Request) -> Response:
    # No token comes with the object itself: the address is the permission.
    writing, sha256 = _writing(request), request.path_params["sha256"]
    query = [request.query_params.get(name, "") for name in ("size", "expires", "signature")]
    size = writing.objects.allowed_size(sha256, *query)
    if size is None:
        raise HTTPException(403, "This address holds no longer; ask for another one.")
    try:
        await writing.objects.receive(sha256, size, pieces(request))
    except ObjectRefused as error:
        raise HTTPException(400, str(error)) from None
    except NotNow as error:
        raise HTTPException(503, str(error), {"Retry-After": "60"}) from None
    except ClientDisconnect:
        return Response(status_code=400)
    return Response()


async def _commit(request: Request) -> Response:
    pull = request.query_params.get("create_pr", "") in ("1", "true")
    repo_id, revision = _repo_id(request), request.path_params["rest"]
    writing = _writing(request)
    check_announced(request, _MAX_COMMIT)
    # Beside the repositories: a temporary folder may be in memory.
    body = await run_in_threadpool(writing.objects.scratch)
    with body:
        size = 0
        async for chunk in pieces(request):
            size += len(chunk)
            if size > _MAX_COMMIT:
                raise HTTPException(413, f"A commit has {_MAX_COMMIT} bytes at most, large files apart.")
            await run_in_threadpool(body.write, chunk)
        try:
            commit, number = await run_in_threadpool(_apply, writing, repo_id, revision, body, pull)
        except Conflict as error:
            raise HTTPException(412, str(error)) from None
    url = absolute(request, f"/kernels/{repo_id}")
    answer = {"success": True, "commitOid": commit, "commitUrl": f"{url}/commit/{commit}", "hookOutput": ""}
    if number is not None:
        answer["pullRequestUrl"] = f"{url}/discussions/{number}"
    return JSONResponse(answer)


def _apply(writing: Writing, repo_id: str, revision: str, body: IO[bytes], pull: bool) -> tuple[str, int | None]:
    body.seek(0)
    with tempfile.TemporaryDirectory(prefix="commit-", dir=writing.objects.folder) as folder:
        large = partial(_large, writing, repo_id, revision, {})
        change = _change(body, Path(folder), large)
        commit, number = writing.writer.commit(repo_id, revision, change, pull=pull)
    return commit.id, number


def _change(body: IO[bytes], folder: Path, large: Callable[[object], Path]) -> Change:
    """What the lines of a commit change; contents become files in a folder, as all of them may not fit into memory."""
    files: dict[str, bytes | Path] = {}
    deleted: dict[str, list[str]] = {"deletedFile": [], "deletedFolder": []}
    parent: str | None = None
    for number, line in enumerate(iter(lambda: body.readline(_MAX_LINE + 1), b"")):
        if len(line) > _MAX_LINE or number > _MAX_OPERATIONS:
            raise RequestError(f"A commit has {_MAX_OPERATIONS} lines of {_MAX_LINE} bytes at most.")
        try:
            operation = _LINE.decode(line)
        except msgspec.DecodeError as error:
            raise RequestError(
                f"Line {number + 1} of the commit is not {{key, value}}, or truncated: {error}"
            ) from None
        key, value = operation.key, operation.value
        if key == "header":
            parent = value.parentCommit
        elif key == "file":
            path, stored = check_path(value.path), folder / str(number)
            stored.write_bytes(_content(value))
            files[path] = stored
        elif key == "lfsFile":
            files[check_path(value.path)] = large(value.oid)
        elif key in deleted:
            deleted[key].append(check_path(str(value.path).rstrip("/")))
        else:
            raise RequestError(f"Line {number + 1} of the commit has the key {_short(key)}, which is not known here.")
    return Change(files, frozenset(deleted["deletedFile"]), tuple(deleted["deletedFolder"]), parent)


def _content(value: _Value) -> bytes:
    if value.content is None or value.encoding not in ("base64", "utf-8"):
        raise RequestError(f"The file {_short(value.path)} has no `content` in base64 or utf-8.")
    if value.encoding == "utf-8":
        return value.content.encode()
    try:
        return base64.b64decode(value.content, validate=True)
    except binascii.Error as error:
        raise RequestError(f"The content of {_short(value.path)} is not base64: {error}.") from None


def _large(writing: Writing, repo_id: str, revision: str, there: dict[str, Path], sha256: object) -> Path:
    """Where a large file's bytes are: among those uploaded, or in the branch already, which is looked at once."""
    if isinstance(sha256, str) and is_sha256(sha256):
        uploaded = writing.objects.find(sha256)
        if uploaded is not None:
            return uploaded
        if not there:
            files = writing.catalog.commit(repo_id, revision).files.values()
            there.update({file.sha256: file.source for file in files if file.sha256 is not None})
        if sha256 in there:
            return there[sha256]
    raise RequestError(f"The large file {_short(sha256)} was not uploaded before the commit that names it.")


def _short(text: object) -> str:
    return repr(str(text)[:80])


def _repo_id(request: Request) -> str:
    parameters = request.path_params
    if parameters["kinds"] != "kernels":
        raise RequestError(f"Only repositories of type `kernel` are written here, none of {parameters['kinds']!r}.")
    return check_repo_id(f"{parameters['org']}/{parameters['name']}")
