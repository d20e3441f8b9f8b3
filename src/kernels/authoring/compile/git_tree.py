"""What a build was made with and from, as far as git can tell."""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from kernels.authoring.compile.source_files import is_source

__all__ = ["GitTree", "git_state", "provenance"]

#: Where builds go is no source of theirs: committing a build must not change the next one.
_SOURCES = (".", ":(exclude)build")

_SECONDS = 60


@dataclass(frozen=True)
class GitTree:
    """What git knows of a folder.

    Attributes:
        commit: The last commit that changed it.
        tree: The id of its tree in HEAD, without `build/`.
        dirty: Whether its files differ from that, or new ones that a build can depend on stand beside them.
    """

    commit: str
    tree: str
    dirty: bool


def git_state(folder: Path) -> GitTree | None:
    """What git knows of a folder, or None where none of its files is in a git repository.

    Args:
        folder: The folder; it may be a part of a repository.

    Example:
        >>> import tempfile
        >>> print(git_state(Path(tempfile.mkdtemp())))
        None
    """
    commit = _git(folder, "log", "-1", "--format=%H", "--", *_SOURCES)
    entries = _git(folder, "ls-tree", "-z", "HEAD")
    if not commit or not entries:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", *_SOURCES)
    others = _git(folder, "ls-files", "--others", "--exclude-standard", "-z", "--", *_SOURCES) or b""
    # What a test run or an editor leaves behind is no new source.
    new = any(is_source(PurePosixPath(os.fsdecode(name))) for name in others.split(b"\0") if name)
    return GitTree(commit.decode().strip(), _tree_id(entries), bool(changed) or new)


def provenance(kernel: GitTree | None) -> dict[str, Any] | None:
    """The `provenance` of metadata: the last commits of builder and source folder, and whether there are changes.

    Args:
        kernel: The state of the source folder.

    Returns:
        The field, or None where the sources are in no git repository. The builder is left out where it runs from an
        installed package.
    """
    if kernel is None:
        return None
    builder = git_state(Path(__file__).parent)
    from kernels._version import __version__

    own = {} if builder is None else {"kernel-builder": {"version": __version__, **_field(builder)}}
    return {**own, "kernel": _field(kernel)}


def _field(state: GitTree) -> dict[str, Any]:
    return {"commit": state.commit, "dirty": state.dirty}


def _tree_id(entries: bytes) -> str:
    """A tree's id, computed as git does (gitformat: "tree object"), over its entries without `build`."""
    content = b""
    hexadecimal = ""
    for entry in entries.split(b"\0")[:-1]:
        about, _, name = entry.partition(b"\t")
        mode, _, hexadecimal = about.decode().split(" ")
        if name != b"build":
            content += mode.lstrip("0").encode() + b" " + name + b"\0" + bytes.fromhex(hexadecimal)
    algorithm = "sha1" if len(hexadecimal) == 40 else "sha256"
    return hashlib.new(algorithm, b"tree %d\0" % len(content) + content).hexdigest()


def _git(folder: Path, *arguments: str) -> bytes | None:
    # A monitor of file changes and a checker of signatures are programs that the repository's own settings name, and
    # who writes the index runs its hooks.
    settings = ["-c", "core.fsmonitor=false", "-c", "log.showSignature=false", "-c", f"core.hooksPath={os.devnull}"]
    command = ["git", "-C", str(folder), "--no-optional-locks", *settings, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
