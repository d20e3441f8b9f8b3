"""The formats of a Hub's answers, each with its largest size.

Only the fields that are used are decoded, so that a small answer cannot fill the memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

import msgspec

from kernels.errors import HubUnavailable
from kernels.models.requirement import is_commit
from kernels.models.snapshot import RepoFile
from kernels.support.formatting import format_value
from kernels.support.record_file import decode_json

__all__ = [
    "HISTORY_PAGE",
    "PUBLISHER",
    "REFS",
    "REPOSITORIES_PAGE",
    "REVISION",
    "TREE_PAGE",
    "XET_GRANT",
    "CommitInfo",
    "ListedRepository",
    "ResponseFormat",
    "TreeEntry",
    "XetGrant",
    "listed_files",
    "named_commits",
]

_T = TypeVar("_T")


class ResponseFormat(Generic[_T]):
    """The format of an answer.

    Args:
        form: The type it is decoded into.
        limit: The most bytes.
    """

    def __init__(self, form: type[_T], limit: int) -> None:
        self.limit = limit
        self._form = form

    def decode(self, data: bytes) -> _T:
        """The answer.

        Raises:
            msgspec.DecodeError: It is not JSON, or not of this type.
        """
        return decode_json(data, self._form)


class _Ref(msgspec.Struct, rename="camel", gc=False):
    name: str
    target_commit: str


class _Refs(msgspec.Struct):
    branches: list[_Ref]
    tags: list[_Ref]


class _Lfs(msgspec.Struct, gc=False):
    oid: str | None = None
    size: int | None = None


class TreeEntry(msgspec.Struct, gc=False):
    """A file or folder of a listing."""

    path: str
    type: str | None = None
    size: int | None = None
    oid: str | None = None
    lfs: _Lfs | None = None
    xet_hash: str | None = msgspec.field(default=None, name="xetHash")


class _Publisher(msgspec.Struct, rename="camel"):
    name: str | None = None
    trusted_kernel_publisher: bool | None = None


class ListedRepository(msgspec.Struct, gc=False):
    """A repository in a listing."""

    id: str


class _Ancestor(msgspec.Struct, gc=False):
    id: str


class CommitInfo(msgspec.Struct, rename="camel"):
    """A commit, and when it was made (ISO 8601)."""

    sha: str | None = None
    last_modified: str | None = None


class XetGrant(msgspec.Struct, rename="camel"):
    """What is needed to read from Xet: a token, until when it holds, and the URL of a storage server."""

    access_token: str
    exp: int
    cas_url: str


#: Branches and tags: some 150 bytes each, so this is 25,000 of them.
REFS = ResponseFormat(_Refs, 4 * 2**20)

#: A page of a listing: the public Hub gives 1,000 entries, 300 kB.
TREE_PAGE = ResponseFormat(list[TreeEntry], 8 * 2**20)

#: A page of a listing of repositories: the public Hub gives 1,000 entries, of some 300 bytes.
REPOSITORIES_PAGE = ResponseFormat(list[ListedRepository], 8 * 2**20)

#: A publisher: a few hundred bytes.
PUBLISHER = ResponseFormat(_Publisher, 2**18)

#: A commit. That of a model comes with the names of all its files.
REVISION = ResponseFormat(CommitInfo, 8 * 2**20)

#: A page of a history: the public Hub gives 1,000 commits at most, each with its message.
HISTORY_PAGE = ResponseFormat(list[_Ancestor], 8 * 2**20)

#: What is needed to read from Xet: a signed token and a URL.
XET_GRANT = ResponseFormat(XetGrant, 2**16)


def named_commits(refs: Iterable[_Ref]) -> dict[str, str]:
    """Name -> commit; what points to no commit is left out."""
    return {ref.name: ref.target_commit for ref in refs if is_commit(ref.target_commit)}


def listed_files(entries: Iterable[TreeEntry]) -> list[RepoFile]:
    """The files among the entries of a listing.

    Raises:
        HubUnavailable: One has no size, or no hash.
    """
    files = []
    for entry in entries:
        if entry.type == "directory":
            continue
        lfs = entry.lfs or _Lfs()
        size = entry.size if lfs.size is None else lfs.size
        if size is None:
            raise HubUnavailable(f"The Hub lists the file {format_value(entry.path, 200)} without a size.")
        if not (entry.oid or lfs.oid):
            raise HubUnavailable(
                f"The Hub lists the file {format_value(entry.path, 200)} without a hash to compare it with."
            )
        files.append(RepoFile(entry.path, size, entry.oid or "", lfs.oid or None, entry.xet_hash or ""))
    return files
