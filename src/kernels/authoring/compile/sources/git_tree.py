"""The state of a source folder in git: its last commit, its tree and whether it has uncommitted changes."""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kernels.authoring.compile.sources.source_files import COMPILE_COMMANDS, is_source
from kernels.models.snapshot import BUILD_FOLDER

__all__ = ["GitTree", "git_tree"]

#: What builds write is no source: committing it must not change the next build.
_NO_SOURCES = frozenset({BUILD_FOLDER, COMPILE_COMMANDS})
_SOURCES = (".", *(f":(exclude){name}" for name in sorted(_NO_SOURCES)))

_TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class GitTree:
    """A folder in git.

    Attributes:
        commit: The last commit that changed it.
        tree: The id of its tree in HEAD, without `build/`.
        dirty: Whether files differ from HEAD, or there are untracked files that a build can depend on.
    """

    commit: str
    tree: str
    dirty: bool


def git_tree(folder: Path) -> GitTree | None:
    """The state of a folder in git, or None if git tracks none of its files.

    Args:
        folder: The folder; it may be a part of a repository.

    Example:
        >>> import tempfile
        >>> print(git_tree(Path(tempfile.mkdtemp())))
        None
    """
    commit = _git(folder, "log", "-1", "--format=%H", "--", *_SOURCES)
    entries = _git(folder, "ls-tree", "-z", "HEAD")
    if not commit or not entries:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", *_SOURCES)
    others = _git(folder, "ls-files", "--others", "--exclude-standard", "-z", "--", *_SOURCES) or b""
    # Files that a test run or an editor leaves behind are not new sources.
    new = any(is_source(PurePosixPath(os.fsdecode(name))) for name in others.split(b"\0") if name)
    return GitTree(commit.decode().strip(), _tree_id(entries), bool(changed) or new)


def _tree_id(entries: bytes) -> str:
    """A tree's id, computed as git does (gitformat: "tree object"), over its entries but what builds write."""
    content = b""
    hexadecimal = ""
    for entry in entries.split(b"\0")[:-1]:
        about, _, name = entry.partition(b"\t")
        mode, _, hexadecimal = about.decode().split(" ")
        if os.fsdecode(name) not in _NO_SOURCES:
            content += mode.lstrip("0").encode() + b" " + name + b"\0" + bytes.fromhex(hexadecimal)
    algorithm = "sha1" if len(hexadecimal) == 40 else "sha256"
    return hashlib.new(algorithm, b"tree %d\0" % len(content) + content).hexdigest()


def _git(folder: Path, *arguments: str) -> bytes | None:
    # An untrusted repository's settings can name programs: a file monitor, a signature checker, hooks. None is run.
    settings = ["-c", "core.fsmonitor=false", "-c", "log.showSignature=false", "-c", f"core.hooksPath={os.devnull}"]
    command = ["git", "-C", str(folder), "--no-optional-locks", *settings, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=_TIMEOUT_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
