"""Create a new kernel's folder, completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from kernels.authoring.scaffold.draft import draft_kernel
from kernels.authoring.scaffold.render import render
from kernels.errors import RequestError
from kernels.support.written_paths import stay_inside

__all__ = ["check_free", "new_kernel", "write_files"]


def new_kernel(
    name: str,
    folder: os.PathLike[str] | str | None = None,
    *,
    backends: Iterable[str] | None = None,
    noarch: bool = False,
    license: str = "Apache-2.0",
    repo_id: str | None = None,
) -> Path:
    """Create a folder with the sources of a kernel that builds, passes its own tests and can be benchmarked.

    Args:
        name: The kernel's name, such as `rms-norm`.
        folder: The new folder, or an empty one. Default: the name, in the working directory.
        backends: Names of backends. Default: cpu and cuda. A compiled kernel gets device code for C++, CUDA, HIP, SYCL
            and Metal; for other backends, sources that use Torch's own operators. The backends' guidance is written to
            `GUIDANCE.md`.
        noarch: Python only, with Triton; nothing is compiled.
        license: SPDX expression.
        repo_id: `org/name`, where the kernel will be published.

    Returns:
        The folder.

    Raises:
        TypeError: An argument is of another type.
        RequestError: The name, license or repository is not valid, a backend is not known, or the folder is not empty.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     folder = new_kernel("rms-norm", f"{parent}/rms-norm", backends=["cpu"])
        ...     sorted(path.name for path in folder.iterdir())[2:5]
        ['benchmarks', 'build.toml', 'rms_norm_cpu']
    """
    draft = draft_kernel(name, backends=backends, noarch=noarch, license=license, repo_id=repo_id)
    target = stay_inside(draft.name if folder is None else folder)
    check_free(target)
    write_files(render(draft), target)
    return target


def check_free(target: Path) -> None:
    """Refuse a folder that has something in it.

    Raises:
        RequestError: The folder is not empty, or it is a file.
    """
    if target.is_dir():
        if not any(target.iterdir()):
            return
        found = "is not empty"
    elif os.path.lexists(target):
        found = "is a file"
    else:
        return
    raise RequestError(f"`folder` is {str(target)!r}, which {found}; expected a new or empty folder.")


def write_files(files: Mapping[PurePosixPath, str | bytes], target: Path) -> None:
    """Write all files of a new folder, or nothing.

    Raises:
        RequestError: Another process has filled the folder.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that a rename is enough.
    with TemporaryDirectory(prefix=".new-kernel-", dir=target.parent, ignore_cleanup_errors=True) as staging:
        try:
            for name, text in files.items():
                path = Path(staging) / "kernel" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "replace"))
            if target.is_dir():
                target.rmdir()  # fails if another process has filled it
            (Path(staging) / "kernel").rename(target)
        except OSError:
            check_free(target)
            raise
