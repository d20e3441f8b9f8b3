"""Which compiled objects of the last build can be reused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernels.support.files import read_bounded
from kernels.support.record_file import decode_json

__all__ = ["keep_objects"]

#: The largest record that is read: 10,000 source files take some 1.5 MB. A larger one means that all is recompiled.
_MAX_BYTES = 16 * 1024 * 1024


def keep_objects(object_dir: Path, folder: Path, files: Mapping[str, str], versions: Sequence[str]) -> None:
    """Keep the objects of the last build, unless something changed that ninja does not notice.

    Ninja notices a changed command line, and a file that is newer than its object. It does not notice another version
    of a compiler or Torch, a file that was replaced by an older one, or a new header that hides another: the objects
    are then removed.

    Args:
        object_dir: Their folder; it is created if missing.
        folder: The source folder.
        files: SHA-256 of the source folder's files, by their path relative to it.
        versions: The versions of the compilers and the framework.
    """
    record = object_dir / "made-from.json"
    now = {"versions": list(versions), "files": dict(files)}
    if not _can_be_kept(_read(record), now, folder, object_dir / ".ninja_log"):
        shutil.rmtree(object_dir, ignore_errors=True)
    object_dir.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(now), encoding="utf-8")


def _can_be_kept(before: Any, now: dict[str, Any], folder: Path, ninja_log: Path) -> bool:
    try:
        if before["versions"] != now["versions"] or before["files"].keys() != now["files"].keys():
            return False
        last = ninja_log.stat().st_mtime_ns
        changed = [path for path, value in now["files"].items() if before["files"][path] != value]
        return all((folder / path).stat().st_mtime_ns > last for path in changed)
    except (OSError, TypeError, KeyError, AttributeError):
        return False


def _read(record: Path) -> Any:
    try:
        return decode_json(read_bounded(record, _MAX_BYTES), dict[str, list[str] | dict[str, str]])
    except (OSError, ValueError):
        return None
