"""Where builds go: the folder of `build/`, and the folder of objects, logs and stamps."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from kernels.authoring.compile.build_toml.model import KernelSource
from kernels.authoring.compile.freshness import WORK_FOLDER
from kernels.authoring.compile.sources.source_files import is_source
from kernels.errors import RequestError
from kernels.models.snapshot import BUILD_FOLDER
from kernels.support.written_paths import stay_inside

__all__ = ["output_folders"]


def output_folders(
    sources: Iterable[KernelSource], out_dir: os.PathLike[str] | str, work_dir: os.PathLike[str] | str | None = None
) -> tuple[Path, Path]:
    """The folder of `build/<variant>`, and the folder of objects, logs and stamps.

    Args:
        sources: The sources.
        out_dir: The first.
        work_dir: The second. Default: `.kernels-build` in the first.

    Raises:
        RequestError: A build would be among the sources, or a link leads out of the first folder.
    """
    out = Path(out_dir).absolute()
    real = Path(os.path.realpath(out))
    for source in sources:
        inside = PurePosixPath(os.path.relpath(real, source.folder))
        if inside.parts and inside.parts[0] not in (BUILD_FOLDER, "..") and is_source(inside):
            raise RequestError(
                f"`out_dir` is {os.fspath(out_dir)!r}, a folder among the sources: its builds would be sources of the "
                f"next build. Use {source.folder} itself, or a folder outside of it."
            )
    stay_inside(out / BUILD_FOLDER, out)
    if work_dir is not None:
        return out, Path(work_dir).absolute()
    work = out / WORK_FOLDER
    if work.is_symlink():
        raise RequestError(f"{work} is a link; delete it. Builds keep their objects there.")
    return out, work
