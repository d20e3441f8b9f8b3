"""A new kernel's folder: all of it, or nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from kernels.authoring.scaffold.draft import draft_kernel
from kernels.authoring.scaffold.render import render
from kernels.errors import RequestError

__all__ = ["new_kernel"]


def new_kernel(
    name: str,
    folder: os.PathLike[str] | str | None = None,
    *,
    backends: Iterable[str] | None = None,
    noarch: bool = False,
    license: str = "Apache-2.0",
    repo_id: str | None = None,
) -> Path:
    """Make a folder with the sources of a kernel that builds, passes its own tests and can be measured.

    Args:
        name: The kernel's name, such as `rms-norm`.
        folder: The folder to make; it may exist if it is empty. Default: the name, in the working directory.
        backends: Names of backends. Default: those that there are ready-made device sources for. A compiled kernel gets
            sources of Torch's own operators for every other one. What the backends tell those who write kernels for
            them is written to `GUIDANCE.md`.
        noarch: Python only, with Triton; nothing is compiled.
        license: SPDX expression.
        repo_id: `org/name`, where the kernel will be published.

    Returns:
        The folder.

    Raises:
        TypeError: An argument is of another type.
        RequestError: The name, licence or repository is not spelled as those are, a backend is not known, or the
            folder is not empty.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     folder = new_kernel("rms-norm", f"{parent}/rms-norm", backends=["cpu"])
        ...     sorted(path.name for path in folder.iterdir())[2:5]
        ['benchmarks', 'build.toml', 'rms_norm_cpu']
    """
    draft = draft_kernel(name, backends=backends, noarch=noarch, license=license, repo_id=repo_id)
    target = Path(os.path.realpath(draft.name if folder is None else folder))
    _check_free(target)
    _write(render(draft), target)
    return target


def _check_free(target: Path) -> None:
    if target.is_dir():
        if not any(target.iterdir()):
            return
        found = "it holds files"
    elif os.path.lexists(target):
        found = "it is a file"
    else:
        return
    raise RequestError(f"`folder` is {str(target)!r}, and {found}; allowed is a folder that is new or empty.")


def _write(files: Mapping[PurePosixPath, str], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that it only has to be renamed.
    staging = Path(tempfile.mkdtemp(prefix=".new-kernel-", dir=target.parent))
    try:
        grown = staging / "kernel"
        for name, text in files.items():
            path = grown / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode("utf-8", "replace"))
        if target.is_dir():
            target.rmdir()  # empty, or someone else was quicker
        grown.rename(target)
    except OSError as error:
        _check_free(target)
        raise error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
