"""From a kernel's sources to `build/<variant>`: the steps in a row."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from filelock import FileLock

from kernels.authoring.compile.build_plan import BuildPlan, plan_build, plan_builds, source_state
from kernels.authoring.compile.build_toml.reader import KernelSource
from kernels.authoring.compile.package import install_variant, staged_variant, write_package
from kernels.authoring.compile.run_compiler import compile_extension
from kernels.authoring.compile.source_files import is_source
from kernels.authoring.compile.up_to_date import WORK_FOLDER, inputs_hash, is_current, leave_stamp, stamp_file
from kernels.authoring.compile.workspace import read_sources
from kernels.backends import find
from kernels.errors import BuildError, CompilerNotFound, KernelsError, RequestError
from kernels.models.snapshot import BUILD_FOLDER

__all__ = ["BuildResult", "build_kernel", "build_variants"]

State = Literal["built", "up to date", "not built", "failed"]


@dataclass(frozen=True)
class BuildResult:
    """What became of one variant.

    Attributes:
        backend: The backend it is for.
        variant: Its name, or None where there is no telling without a Torch, a tvm-ffi or a compiler.
        state: `built`; `up to date`: there already, from the same sources; `not built`: this machine cannot build it;
            `failed`.
        reason: Why it is not there, in one line; "" when it is.
        detail: What a compiler said, if one failed.
        path: Its folder, if it is there and complete.
    """

    backend: str
    variant: str | None
    state: State
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

    A variant whose inputs (sources, flags, compiler, Torch) are those of the last build, and whose files still match
    their digest, is left as it is.

    Args:
        source_dir: The folder with `build.toml`, or one whose own folders have it: sources of one kernel.
        out_dir: The repository's folder: variants go to `out_dir/build/<variant>`.
        backends: Backends to build for. Default: of those that `build.toml` names, all for noarch sources, and for
            compiled ones those the installed Torch is built for, or whose compiler is here (tvm-ffi).
        work_dir: Where objects, logs and stamps of finished builds are kept; on the file system of `out_dir`. Default:
            `.kernels-build` in `out_dir`.
        jobs: Compilers to run at once, default one a processor.

    Returns:
        The variants' folders, in the order of `build.toml`'s backends.

    Raises:
        RequestError: `build.toml` is missing or not valid, a backend is not one that it names, or two of its sections
            compile one file.
        CompilerNotFound: No compiler for one of the sources, or no Torch or tvm-ffi to compile against.
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
    wanted = _wanted(sources, backends)
    plans = [each for source in sources for each in plan_builds(source, _own(source, wanted))]
    made = []
    for plan in plans:
        with _exclusive(plan.variant, work):
            made.append(_current(plan, out, work) or _make(plan, out, work, jobs))
    return made


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
    """Build what a source folder names and this machine can build, one variant after the other, and tell of each.

    Args:
        source_dir: As for `build_kernel`.
        out_dir: As for `build_kernel`.
        backends: Backends to build for; one that cannot be built for here has then failed. Default: all.
        variant: The only variant to build.
        this_gpu: Compile for the visible devices' architectures only.
        work_dir: As for `build_kernel`.
        jobs: As for `build_kernel`.
        starting: Called with a variant's name before it is made.

    Returns:
        An outcome for each, in the order of `build.toml`'s backends; a failure does not end it.

    Raises:
        RequestError: `build.toml` is missing or not valid, what was asked for is none of its backends or no variant
            that can be built here, or two of its sections compile one file.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> (folder / "torch-ext" / "twice").mkdir(parents=True)
        >>> _ = (folder / "torch-ext" / "twice" / "__init__.py").write_text("def twice(x): return x + x")
        >>> general = 'name = "twice"\\nversion = 1\\nlicense = "MIT"\\nedition = 5\\nbackends = ["cpu", "cuda"]'
        >>> _ = (folder / "build.toml").write_text(f"[general]\\n{general}\\n[torch-noarch]\\n")
        >>> [(outcome.variant, outcome.state) for outcome in build_variants(folder, folder)]
        [('torch-cpu', 'built'), ('torch-cuda', 'built')]
    """
    sources = read_sources(source_dir)
    wanted = _wanted(sources, backends)
    out, work = _folders(sources, out_dir, work_dir)
    planned = [each for source in sources for each in _planned(source, wanted or source.backends, this_gpu)]
    if variant is not None:
        planned = _only(variant, planned)
    asked = bool(wanted) or variant is not None
    for backend, plan in planned:
        if isinstance(plan, Exception):
            yield BuildResult(backend, None, "failed" if asked else "not built", _line(plan))
        else:
            yield _outcome(plan, out, work, jobs, starting)


def _wanted(sources: Sequence[KernelSource], backends: Iterable[str] | None) -> tuple[str, ...] | None:
    """The backends that are asked for, each one of the sources'."""
    wanted = None if backends is None else tuple(backends)
    listed = dict.fromkeys(name for source in sources for name in source.backends)
    for name in wanted or ():
        if name not in listed:
            raise RequestError(f"`backend` is {name!r}; allowed are those of {sources[0].name}: {', '.join(listed)}.")
    return wanted


def _own(source: KernelSource, wanted: tuple[str, ...] | None) -> tuple[str, ...] | None:
    return None if wanted is None else tuple(name for name in wanted if name in source.backends)


def _planned(source: KernelSource, names: Iterable[str], this_gpu: bool) -> list[tuple[str, BuildPlan | Exception]]:
    """Each backend's plan, or why there is none on this machine."""
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
        reasons = "".join(f" {name}: {_line(plan)}" for name, plan in planned if isinstance(plan, Exception))
        allowed = f"allowed here: {', '.join(here)}." if here else "none can be built here."
        raise RequestError(f"`variant` is {variant!r}; {allowed}{reasons}")
    return found


def _outcome(
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
            return BuildResult(backend, plan.variant, "built", path=_make(plan, out, work, jobs))
    except KernelsError as error:
        reason, _, detail = str(error).partition("\n")
        return BuildResult(backend, plan.variant, "failed", reason, detail)


def _current(plan: BuildPlan, out: Path, work: Path) -> Path | None:
    variant_dir = out / "build" / plan.variant
    return variant_dir if is_current(inputs_hash(plan), variant_dir, stamp_file(work, plan.variant)) else None


def _make(plan: BuildPlan, out: Path, work: Path, jobs: int | None) -> Path:
    variant_dir, stamp = out / "build" / plan.variant, stamp_file(work, plan.variant)
    stamp.unlink(missing_ok=True)
    with staged_variant(work) as files:
        if plan.compilation is not None:
            log = work / f"{plan.variant}.log"
            compile_extension(plan.compilation, files / plan.extension_file, work / plan.variant, log, jobs=jobs)
        write_package(plan, files)
        install_variant(files, variant_dir)
    leave_stamp(inputs_hash(plan), plan.state.contents.code, variant_dir, stamp)
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
                f"`out_dir` is {os.fspath(out_dir)!r}, among the sources: builds there would be sources of the next. "
                f"Allowed are {source.folder} itself, and folders outside of it."
            )
    if work_dir is not None:
        return out, Path(work_dir).absolute()
    work = out / WORK_FOLDER
    if work.is_symlink():
        raise RequestError(f"{work} is a link; delete it. Builds keep their objects there.")
    return out, work


@contextmanager
def _exclusive(variant: str, work: Path) -> Iterator[None]:
    """One build at a time in a work folder; what the file system refuses is a failed build."""
    try:
        work.mkdir(parents=True, exist_ok=True)
        _remove_links(work)
        ignored = work / ".gitignore"
        if not ignored.exists():
            ignored.write_text("*\n", encoding="utf-8")
        with FileLock(work / "lock"):
            for left in work.glob("building-*"):  # by a build that was killed
                shutil.rmtree(left, ignore_errors=True)
            yield
    except OSError as error:
        if isinstance(error, KernelsError):
            raise
        raise BuildError(f"{variant} could not be written; what was there is as it was: {error}") from error


def _remove_links(work: Path) -> None:
    """No build leaves links there; those that came with a stranger's sources would have other files overwritten."""
    pending = [os.fspath(work)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    os.unlink(entry.path)
                elif entry.is_dir():
                    pending.append(entry.path)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
