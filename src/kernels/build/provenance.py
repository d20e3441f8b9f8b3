"""What a build was made with and from, as far as git can tell."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

__all__ = ["provenance"]


def provenance(source_dir: Path) -> dict[str, Any] | None:
    """The `provenance` of metadata: the last commits of builder and source folder, and whether there are changes.

    Args:
        source_dir: The source folder.

    Returns:
        The field, or None where the sources are in no git repository. The builder is left out where it runs from an
        installed package.
    """
    kernel = _git_state(source_dir)
    if kernel is None:
        return None
    builder = _git_state(Path(__file__).parent)
    from kernels import __version__

    return {**({} if builder is None else {"kernel-builder": {"version": __version__, **builder}}), "kernel": kernel}


def _git_state(folder: Path) -> dict[str, Any] | None:
    commit = _git(folder, "log", "-1", "--format=%H", "--", ".")
    status = _git(folder, "status", "--porcelain", "--", ".")
    return {"commit": commit, "dirty": bool(status)} if commit else None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
