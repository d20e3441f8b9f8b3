"""A Hub's answers, read: nothing in them is taken for granted."""

from __future__ import annotations

from typing import Any

from kernels.errors import HubUnavailable
from kernels.release import RepoFile
from kernels.requirement import is_commit

__all__ = ["is_folder", "listed_file", "refs"]


def refs(answer: Any, kind: str) -> dict[str, str]:
    """The `branches` or `tags` of an answer: name -> commit; what is malformed is left out."""
    entries = answer.get(kind) if isinstance(answer, dict) else None
    if not isinstance(entries, list):
        raise HubUnavailable(f"The Hub's answer about branches and tags has no list {kind!r}.")
    return {
        entry["name"]: entry["targetCommit"]
        for entry in entries
        if isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and isinstance(entry.get("targetCommit"), str)
        and is_commit(entry["targetCommit"])
    }


def is_folder(entry: Any) -> bool:
    """Whether an entry of a listing is a folder."""
    return isinstance(entry, dict) and entry.get("type") == "directory"


def listed_file(entry: Any) -> RepoFile:
    """An entry of a listing as a file.

    Raises:
        HubUnavailable: It has another form than a file's.
    """
    try:
        lfs = entry.get("lfs") or {}
        return RepoFile(
            path=str(entry["path"]),
            size=int(lfs.get("size", entry["size"])),
            oid=str(entry.get("oid") or ""),
            sha256=str(lfs["oid"]) if lfs.get("oid") else None,
            xet=bool(entry.get("xetHash")),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise HubUnavailable(f"The Hub lists a file in a form that is not known: {str(entry)[:200]}") from error
