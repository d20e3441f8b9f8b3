"""A commit as clients send it, line by line: contents in base64, and large files by their hash."""

from __future__ import annotations

import base64
import binascii
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct

from kernels.errors import RequestError, RevisionNotFound
from kernels.server.catalog import Catalog
from kernels.server.changes import RepositoryChange, check_path
from kernels.server.lfs_objects import LfsObjects, is_sha256
from kernels.server.snapshot import File

__all__ = ["MAX_OPERATIONS", "LargeFiles", "quoted", "read_commit"]

#: Operations of one commit, as on the public Hub.
MAX_OPERATIONS = 25_000

#: Bytes of one line: a file below the LFS size (10 MB), in base64.
_MAX_LINE = 16 * 2**20


# The fields that are used; msgspec skips the others without memory.
class _Value(Struct):
    path: str | int | float | bool | None = None
    content: str | None = None
    encoding: str = "utf-8"
    oid: str | int | float | bool | None = None
    parentCommit: str | None = None


class _Line(Struct):
    key: str
    value: _Value


_DECODER = msgspec.json.Decoder(_Line)


class LargeFiles:
    """The large files that a repository can have: those that were uploaded, and those that its branches have.

    Args:
        catalog: The repositories.
        objects: The uploads.
        repo_id: The repository.
    """

    def __init__(self, catalog: Catalog, objects: LfsObjects, repo_id: str) -> None:
        self._catalog = catalog
        self._objects = objects
        self._repo_id = repo_id
        self._files: dict[str, File] | None = None

    def committed(self, sha256: str) -> File | None:
        """The file of a branch with that content; the branches are listed when the first is looked for."""
        if self._files is None:
            self._files = {}
            for branch in self._catalog.branches(self._repo_id):
                with suppress(RevisionNotFound):  # it was deleted meanwhile
                    commit = self._catalog.commit(self._repo_id, branch)
                    self._files |= {file.sha256: file for file in commit.files.values() if file.sha256 is not None}
        return self._files.get(sha256)

    def source(self, sha256: object) -> Path:
        """The file on disk with that content.

        Raises:
            RequestError: There is none.
        """
        if isinstance(sha256, str) and is_sha256(sha256):
            uploaded = self._objects.find(sha256)
            if uploaded is not None:
                return uploaded
            file = self.committed(sha256)
            if file is not None:
                return file.source
        raise RequestError(f"The large file {quoted(sha256)} was not uploaded before its commit.")


def read_commit(body: IO[bytes], folder: Path, large: LargeFiles) -> RepositoryChange:
    """Parse the lines of a commit. Contents become files in a folder, as they may not fit into memory together.

    Args:
        body: What the client sent.
        folder: The folder for contents.
        large: Finds the large files.

    Raises:
        RequestError: It is not a commit, or has a large file that was not uploaded.
    """
    files: dict[str, bytes | Path] = {}
    deleted: dict[str, list[str]] = {"deletedFile": [], "deletedFolder": []}
    parent: str | None = None
    for number, line in enumerate(iter(lambda: body.readline(_MAX_LINE + 1), b"")):
        if len(line) > _MAX_LINE or number > MAX_OPERATIONS:
            raise RequestError(f"A commit has at most {MAX_OPERATIONS} lines of {_MAX_LINE} bytes.")
        try:
            operation = _DECODER.decode(line)
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
            files[check_path(value.path)] = large.source(value.oid)
        elif key in deleted:
            deleted[key].append(check_path(str(value.path).rstrip("/")))
        else:
            raise RequestError(f"Line {number + 1} of the commit has the unknown key {quoted(key)}.")
    return RepositoryChange(files, frozenset(deleted["deletedFile"]), tuple(deleted["deletedFolder"]), parent)


def _content(value: _Value) -> bytes:
    if value.content is None or value.encoding not in ("base64", "utf-8"):
        raise RequestError(f"The file {quoted(value.path)} has no `content` in base64 or utf-8.")
    if value.encoding == "utf-8":
        return value.content.encode()
    try:
        return base64.b64decode(value.content, validate=True)
    except binascii.Error as error:
        raise RequestError(f"The content of {quoted(value.path)} is not base64: {error}.") from None


def quoted(text: object) -> str:
    """What a client sent, as messages show it."""
    return repr(str(text)[:80])
