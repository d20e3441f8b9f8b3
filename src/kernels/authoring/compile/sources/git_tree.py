"""The state of a source folder in git: its last commit, its tree and whether it has uncommitted changes."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from kernels.authoring.compile.sources.source_files import COMPILE_COMMANDS, is_source
from kernels.models.snapshot import BUILD_FOLDER
from kernels.support.command import CommandFailed, run_command
from kernels.support.files import read_bounded
from kernels.support.hashing import feed_file, git_blob_hasher, lfs_pointer

__all__ = ["GitTree", "git_tree"]

#: What builds write is no source: committing it must not change the next build.
_NO_SOURCES = frozenset({BUILD_FOLDER, COMPILE_COMMANDS})
_SOURCES = (".", *(f":(exclude){name}" for name in sorted(_NO_SOURCES)))

#: The time and the output that git may take: a setting can be an endless file, a tree can list the same files for ever.
_SECONDS = 60.0
_MAX_OUTPUT = 64 * 1024 * 1024

#: Larger files count as changed if their line endings differ.
_MAX_TEXT_BYTES = 16 * 1024 * 1024

_LINK, _SUBMODULE, _FOLDER = "120000", "160000", "040000"


@dataclass(frozen=True)
class GitTree:
    """A folder in git.

    Attributes:
        commit: The last commit that changed it.
        tree: The id of its tree in HEAD, without `build/`; "" if git cannot read it.
        dirty: Whether files differ from HEAD, there are new files that a build can depend on, or git cannot tell.
    """

    commit: str
    tree: str
    dirty: bool


@dataclass(frozen=True)
class _Entry:
    """An entry of a tree: its mode (`_LINK`, `_SUBMODULE`, `_FOLDER`, else a file), its id, its path in the folder."""

    mode: str
    id: str
    name: str


def git_tree(folder: Path) -> GitTree | None:
    """The state of a folder in git, or None if git tracks none of its files.

    The files are compared with HEAD here. `git status` would run programs that the repository's settings name
    (filters, also those of submodules).

    Args:
        folder: The folder; it may be a part of a repository.

    Example:
        >>> import tempfile
        >>> print(git_tree(Path(tempfile.mkdtemp())))
        None
    """
    folder, git = folder.resolve(), _Git()
    commit = git.run(folder, "rev-list", "--max-count=1", "HEAD", "--", *_SOURCES)
    if not commit:
        return None
    entries = git.head(folder)
    if entries is None:
        return GitTree(commit.strip(), "", True)
    if not entries:
        return None
    sources = [entry for entry in entries if entry.name.partition("/")[0] not in _NO_SOURCES]
    dirty = _has_new_sources(git, folder, entries) or not _all_as_in_head(git, folder, sources)
    return GitTree(commit.strip(), _tree_id(entry for entry in sources if "/" not in entry.name), dirty)


def _tree_id(entries: Iterable[_Entry]) -> str:
    """A tree's id, computed as git does (gitformat: "tree object")."""
    content, algorithm = b"", "sha1"
    for entry in entries:
        content += b"%s %s\0" % (entry.mode.lstrip("0").encode(), os.fsencode(entry.name)) + bytes.fromhex(entry.id)
        algorithm = _algorithm(entry.id)
    return hashlib.new(algorithm, b"tree %d\0" % len(content) + content).hexdigest()


def _algorithm(id: str) -> str:
    return "sha1" if len(id) == 40 else "sha256"


def _has_new_sources(git: _Git, folder: Path, entries: Sequence[_Entry]) -> bool:
    """Whether there are files that HEAD does not have, and git does not ignore."""
    listed = git.run(folder, "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *_SOURCES)
    if listed is None:
        return True
    new = set(listed.split("\0")[:-1]) - {entry.name for entry in entries}
    # Files that a test run or an editor leaves behind are not new sources.
    return any(is_source(PurePosixPath(name)) and os.path.lexists(folder / name) for name in new)


def _all_as_in_head(git: _Git, folder: Path, entries: Sequence[_Entry]) -> bool:
    files = [entry for entry in entries if entry.mode != _FOLDER]
    # Behind a link, or with a hostile name, a path is no file of this folder.
    parents = {(folder / entry.name).parent for entry in files}
    if any(os.path.realpath(path) != str(path) or not path.is_relative_to(folder) for path in parents):
        return False
    return all(
        _is_submodule_as_in_head(git, folder / entry.name, entry.id)
        if entry.mode == _SUBMODULE
        else _is_file_as_in_head(folder / entry.name, entry)
        for entry in files
    )


def _is_submodule_as_in_head(git: _Git, path: Path, commit: str) -> bool:
    try:
        if path.is_symlink():
            return False
        if not os.path.lexists(path / ".git"):
            return not os.listdir(path)  # it was not fetched, and git left an empty folder
    except OSError:
        return False
    head = git.run(path, "rev-parse", "HEAD")
    entries = git.head(path) if head is not None and head.strip() == commit else None
    return entries is not None and _all_as_in_head(git, path, entries)


def _is_file_as_in_head(path: Path, entry: _Entry) -> bool:
    """Whether a file is that of HEAD, but for what a checkout changes: line endings, and the content of LFS files."""
    hasher = partial(git_blob_hasher, algorithm=_algorithm(entry.id))

    def has_id(content: bytes) -> bool:
        hashed = hasher(len(content))
        hashed.update(content)
        return hashed.hexdigest() == entry.id

    try:
        if path.is_symlink():
            return entry.mode == _LINK and has_id(os.fsencode(os.readlink(path)))
        if entry.mode == _LINK and os.name != "nt":  # Windows may have a file with the link's target
            return False
        if feed_file(path, hasher).hexdigest() == entry.id:
            return True
        sha256 = feed_file(path, lambda size: hashlib.sha256()).hexdigest()
        if has_id(lfs_pointer(sha256, path.stat().st_size)):
            return True
        text = read_bounded(path, _MAX_TEXT_BYTES)
        return b"\0" not in text and has_id(text.replace(b"\r\n", b"\n"))
    except OSError:
        return False


class _Git:
    """Starts git, with one time limit for all that it is asked.

    Of the settings of an untrusted repository, none names a program that runs: only commands that read are asked, which
    use no filters; the file monitor and hooks are off; objects that are missing are not fetched; and a folder that is
    itself a bare repository, as any clone can contain, is not one for git.
    """

    def __init__(self) -> None:
        self._end = time.monotonic() + _SECONDS

    def head(self, folder: Path) -> list[_Entry] | None:
        """Everything in a folder in HEAD; None if git fails."""
        listed = self.run(folder, "ls-tree", "-r", "-t", "-z", "HEAD")
        if listed is None:
            return None
        found = []
        for line in listed.split("\0")[:-1]:
            about, _, name = line.partition("\t")
            mode, _, id = about.split(" ")
            found.append(_Entry(mode, id, name))
        return found

    def run(self, folder: Path, *arguments: str) -> str | None:
        """What git prints; None if it fails."""
        program = _program()
        if program is None:
            return None
        settings = ("core.fsmonitor=", f"core.hooksPath={os.devnull}", "safe.bareRepository=explicit")
        options = [part for setting in settings for part in ("-c", setting)]
        # A variable such as GIT_DIR, which git sets for hooks, names another repository.
        environment = {name: value for name, value in os.environ.items() if not _names_a_repository(name)}
        environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": ""}
        environment["GIT_NO_REPLACE_OBJECTS"] = "1"  # a replaced commit would give its id to other sources
        try:
            return run_command(
                [program, "-C", str(folder), *options, *arguments],
                seconds=max(0.0, self._end - time.monotonic()),
                max_output=_MAX_OUTPUT,
                environment=environment,
                errors="surrogateescape",  # names of files
            )
        except CommandFailed:
            return None


def _names_a_repository(variable: str) -> bool:
    """Whether a variable is git's, and not one of a user's own settings."""
    return variable.startswith("GIT_") and not variable.startswith(("GIT_CONFIG_", "GIT_CEILING_", "GIT_EXEC_"))


def _program() -> str | None:
    """Git on the path, but not below the current folder, where Windows looks first: that may be an untrusted one."""
    name = "git.exe" if os.name == "nt" else "git"
    paths = (os.path.join(folder, name) for folder in os.get_exec_path() if os.path.isabs(folder))
    return next((path for path in paths if os.access(path, os.X_OK)), None)
