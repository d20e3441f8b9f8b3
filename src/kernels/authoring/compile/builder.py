"""Build a kernel's variants into `build/<variant>`: the steps in a row."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Literal

from filelock import FileLock

from kernels.authoring.compile.build_plan import BuildPlan, plan_build, plan_builds, source_state
from kernels.authoring.compile.build_toml.model import KernelSource
from kernels.authoring.compile.freshness import WORK_FOLDER, inputs_hash, is_current, stamp_file, write_stamp
from kernels.authoring.compile.run_compiler import compile_extension
from kernels.authoring.compile.source_files import is_source
from kernels.authoring.compile.workspace import read_sources
from kernels.authoring.compile.write_variant import install_variant, write_package
from kernels.backends import find
from kernels.errors import BuildError, CompilerNotFound, KernelsError, RequestError
from kernels.models.snapshot import BUILD_FOLDER

__all__ = ["BuildResult", "build_kernel", "build_variants"]


@dataclass(frozen=True)
class BuildResult:
    """The result of building one variant.

    Attributes:
        backend: The backend that it is for.
        variant: The variant's name; None if Torch, tvm-ffi or a compiler is missing that decides it.
        state: `built`; `up to date`: built before from the same sources; `not built`: this machine cannot build it;
            `failed`.
        reason: Why it was not built, in one line; else "".
        detail: The output of a compiler that failed.
        path: Its folder, if it is complete.
    """

    backend: str
    variant: str | None
    state: Literal["built", "up to date", "not built", "failed"]
    reason: str = ""
    detail: str = ""
    path: Path | None = None


def build_kernel(
    source_dir: os.PathLike[str] | str,
    out_dir: os.PathLike[str] | str,
    *,
    backends: Iterable[str] | None = None,
    work_dir: os.PathLike[str] | str | None = None,
    jobs: int | None = None,
) -> list[Path]:
    """Build a source folder's variants that can be built here.

    A variant is skipped if its inputs (sources, flags, compiler, Torch) have not changed since its last build and its
    files still match their digest.

    Args:
        source_dir: The folder with `build.toml`, or the parent of one kernel's source folders.
        out_dir: The repository's folder: variants go to `out_dir/build/<variant>`.
        backends: Backends to build for. Default: of those in `build.toml`, all for noarch sources, and for compiled
            sources those that the installed Torch is built for, or whose compiler is installed (tvm-ffi).
        work_dir: The folder of objects, logs and stamps, on the file system of `out_dir`. Default: `.kernels-build` in
            `out_dir`.
        jobs: Compilers to run at once. Default: one for each processor.

    Returns:
        The variants' folders, in the order of `build.toml`'s backends.

    Raises:
        RequestError: `build.toml` is missing or not valid, or it does not list a backend.
        CompilerNotFound: Torch, tvm-ffi or a compiler is not installed.
        BuildError: A compiler failed, and the message has its output; or the files could not be written.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> package = folder / "src" / "torch-ext" / "twice"
        >>> package.mkdir(parents=True)
        >>> _ = (package / "__init__.py").write_text("def twice(x): return x + x")
        >>> general = 'name = "twice"\\nversion = 1\\nlicense = "MIT"\\nedition = 5\\nbackends = ["cpu"]'
        >>> _ = (folder / "src" / "build.toml").write_text(f"[general]\\n{general}\\n[torch-noarch]\\n")
        >>> [path.name for path in build_kernel(folder / "src", folder / "out")]
        ['torch-cpu']
    """
    sources = read_sources(source_dir)
    out, work = _folders(sources, out_dir, work_dir)
    wanted = _check_backends(sources, backends)
    built = []
    for plan in [each for source in sources for each in plan_builds(source, wanted)]:
        with _exclusive(plan.variant, work):
            built.append(_current(plan, out, work) or _build(plan, out, work, jobs))
    return built


def build_variants(
    source_dir: os.PathLike[str] | str,
    out_dir: os.PathLike[str] | str,
    *,
    backends: Iterable[str] | None = None,
    variant: str | None = None,
    this_gpu: bool = False,
    work_dir: os.PathLike[str] | str | None = None,
    jobs: int | None = None,
    starting: Callable[[str], None] | None = None,
) -> Iterator[BuildResult]:
    """Build the variants of a source folder that this machine can build, one after the other.

    Args:
        source_dir: As for `build_kernel`.
        out_dir: As for `build_kernel`.
        backends: Backends to build for; one that cannot be built for here then counts as failed. Default: all.
        variant: The only variant to build.
        this_gpu: Compile for the visible devices' architectures only.
        work_dir: As for `build_kernel`.
        jobs: As for `build_kernel`.
        starting: Called with a variant's name before it is built.

    Returns:
        A result for each, in the order of `build.toml`'s backends; a failure does not end the iteration.

    Raises:
        RequestError: `build.toml` is missing or not valid, it does not list a backend, or the variant cannot be
            built here.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> (folder / "torch-ext" / "twice").mkdir(parents=True)
        >>> _ = (folder / "torch-ext" / "twice" / "__init__.py").write_text("def twice(x): return x + x")
        >>> general = 'name = "twice"\\nversion = 1\\nlicense = "MIT"\\nedition = 5\\nbackends = ["cpu", "cuda"]'
        >>> _ = (folder / "build.toml").write_text(f"[general]\\n{general}\\n[torch-noarch]\\n")
        >>> [(result.variant, result.state) for result in build_variants(folder, folder)]
        [('torch-cpu', 'built'), ('torch-cuda', 'built')]
    """
    sources = read_sources(source_dir)
    wanted = _check_backends(sources, backends)
    out, work = _folders(sources, out_dir, work_dir)
    planned = [each for source in sources for each in _plan(source, wanted or source.backends, this_gpu)]
    if variant is not None:
        planned = _only(variant, planned)
    for backend, plan in planned:
        if isinstance(plan, Exception):
            yield BuildResult(backend, None, "failed" if wanted else "not built", _one_line(plan))
        else:
            yield _result(plan, out, work, jobs, starting)


def _check_backends(sources: Sequence[KernelSource], backends: Iterable[str] | None) -> tuple[str, ...] | None:
    wanted = None if backends is None else tuple(backends)
    listed = dict.fromkeys(name for source in sources for name in source.backends)
    for name in wanted or ():
        if name not in listed:
            raise RequestError(f"`backend` is {name!r}; {sources[0].name} has {', '.join(listed)}.")
    return wanted


def _plan(source: KernelSource, names: Iterable[str], this_gpu: bool) -> list[tuple[str, BuildPlan | Exception]]:
    """Each backend's plan, or why this machine cannot build for it."""
    state = source_state(source)
    planned: list[tuple[str, BuildPlan | Exception]] = []
    for name in (each for each in source.backends if each in names):
        try:
            find(name)
        except RequestError as error:
            planned.append((name, error))
            continue
        try:
            planned.append((name, plan_build(source, state, name, this_gpu=this_gpu)))
        except CompilerNotFound as error:
            planned.append((name, error))
    return planned


def _only(variant: str, planned: list[tuple[str, BuildPlan | Exception]]) -> list[tuple[str, BuildPlan | Exception]]:
    found = [each for each in planned if isinstance(each[1], BuildPlan) and each[1].variant == variant]
    if not found:
        here = [plan.variant for _, plan in planned if isinstance(plan, BuildPlan)]
        reasons = "".join(f" {name}: {_one_line(plan)}" for name, plan in planned if isinstance(plan, Exception))
        possible = f"this machine can build {', '.join(here)}." if here else "this machine can build none."
        raise RequestError(f"`variant` is {variant!r}; {possible}{reasons}")
    return found


def _result(
    plan: BuildPlan, out: Path, work: Path, jobs: int | None, starting: Callable[[str], None] | None
) -> BuildResult:
    backend = plan.backend.name
    try:
        with _exclusive(plan.variant, work):
            path = _current(plan, out, work)
            if path is not None:
                return BuildResult(backend, plan.variant, "up to date", path=path)
            if starting is not None:
                starting(plan.variant)
            return BuildResult(backend, plan.variant, "built", path=_build(plan, out, work, jobs))
    except KernelsError as error:
        reason, _, detail = str(error).partition("\n")
        return BuildResult(backend, plan.variant, "failed", reason, detail)


def _current(plan: BuildPlan, out: Path, work: Path) -> Path | None:
    variant_dir = out / BUILD_FOLDER / plan.variant
    return variant_dir if is_current(inputs_hash(plan), variant_dir, stamp_file(work, plan.variant)) else None


def _build(plan: BuildPlan, out: Path, work: Path, jobs: int | None) -> Path:
    variant_dir, stamp = out / BUILD_FOLDER / plan.variant, stamp_file(work, plan.variant)
    stamp.unlink(missing_ok=True)
    with TemporaryDirectory(prefix="building-", dir=work, ignore_cleanup_errors=True) as staging:
        files = Path(staging) / "files"
        files.mkdir()
        if plan.compilation is not None:
            log = work / f"{plan.variant}.log"
            compile_extension(plan.compilation, files / plan.extension_file, work / plan.variant, log, jobs=jobs)
        write_package(plan, files)
        install_variant(files, variant_dir)
    write_stamp(inputs_hash(plan), plan.state.contents.code, variant_dir, stamp)
    return variant_dir


def _folders(
    sources: Iterable[KernelSource], out_dir: os.PathLike[str] | str, work_dir: os.PathLike[str] | str | None
) -> tuple[Path, Path]:
    out = Path(out_dir).absolute()
    real = Path(os.path.realpath(out))
    for source in sources:
        inside = PurePosixPath(os.path.relpath(real, source.folder))
        if inside.parts and inside.parts[0] not in (BUILD_FOLDER, "..") and is_source(inside):
            raise RequestError(
                f"`out_dir` is {os.fspath(out_dir)!r}, a folder among the sources: its builds would be sources of the "
                f"next build. Use {source.folder} itself, or a folder outside of it."
            )
    if work_dir is not None:
        return out, Path(work_dir).absolute()
    work = out / WORK_FOLDER
    if work.is_symlink():
        raise RequestError(f"{work} is a link; delete it. Builds keep their objects there.")
    return out, work


@contextmanager
def _exclusive(variant: str, work: Path) -> Iterator[None]:
    """Run one build at a time in a work folder; an error of the file system is a failed build."""
    try:
        work.mkdir(parents=True, exist_ok=True)
        _remove_links(work)
        ignored = work / ".gitignore"
        if not ignored.exists():
            ignored.write_text("*\n", encoding="utf-8")
        with FileLock(work / "lock"):
            for left in work.glob("building-*"):  # from a build that was killed
                shutil.rmtree(left, ignore_errors=True)
            yield
    except OSError as error:
        if isinstance(error, KernelsError):
            raise
        raise BuildError(f"{variant} could not be written; the previous build is unchanged: {error}") from error


def _remove_links(work: Path) -> None:
    """Remove links: builds make none, and those of untrusted sources would overwrite other files."""
    pending = [os.fspath(work)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    os.unlink(entry.path)
                elif entry.is_dir():
                    pending.append(entry.path)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
