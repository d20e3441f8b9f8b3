"""Build a kernel's variants into `build/<variant>`: the steps in a row."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from filelock import FileLock

from kernels.authoring.compile.build_toml.model import KernelSource
from kernels.authoring.compile.compile_commands import compile_commands, write_compile_commands
from kernels.authoring.compile.execution.run_compiler import compile_extension
from kernels.authoring.compile.frameworks.torch_installation import TorchInstallation
from kernels.authoring.compile.freshness import inputs_hash, is_current, stamp_file, write_stamp
from kernels.authoring.compile.output_folders import output_folders
from kernels.authoring.compile.plan.build_plan import BuildPlan, plan_builds
from kernels.authoring.compile.plan.variant_plans import VariantPlan, check_backends, plan_variants
from kernels.authoring.compile.sources.source_files import COMPILE_COMMANDS
from kernels.authoring.compile.sources.workspace import read_sources
from kernels.authoring.compile.write_variant import install_variant, restore_variant, write_package
from kernels.errors import BuildError, CompilerNotFound, KernelsError, RequestError
from kernels.models.snapshot import BUILD_FOLDER, METADATA_FILE
from kernels.support.logs import logger

__all__ = ["BuildResult", "build_here", "build_kernel", "build_variants"]


_log = logger(__name__)


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
    out, work = output_folders(sources, out_dir, work_dir)
    wanted = check_backends(sources, backends)
    built = []
    plans = [each for source in sources for each in plan_builds(source, wanted)]
    if wanted is None:
        _describe_to_editors(sources, plans, out, work)
    for plan in plans:
        with _exclusive(plan.variant, out, work):
            built.append(_current(plan, out, work) or _build(plan, out, work, jobs))
    return built


def build_variants(
    source_dir: os.PathLike[str] | str,
    out_dir: os.PathLike[str] | str,
    *,
    backends: Iterable[str] | None = None,
    variant: str | None = None,
    this_gpu: bool = False,
    torches: Sequence[TorchInstallation] = (),
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
        torches: The installations of Torch to compile against, one after the other. Default: this Python's.
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
    out, work = output_folders(sources, out_dir, work_dir)
    wanted = check_backends(sources, backends)
    planned = plan_variants(sources, backends=wanted, variant=variant, this_gpu=this_gpu, torches=torches)
    possible = {each.backend for each in planned if each.plan is not None}
    # The file for editors is for all sources, also where only some variants are built.
    every = planned if wanted is None and variant is None else _every_variant(sources, torches) or planned
    _describe_to_editors(sources, (each.plan for each in every if each.plan is not None), out, work)
    for each in planned:
        if each.plan is None:
            failed = wanted is not None and each.backend not in possible
            yield BuildResult(each.backend, None, "failed" if failed else "not built", each.reason)
        else:
            yield _result(each.plan, out, work, jobs, starting)


def build_here(folder: Path) -> None:
    """Build into a kernel's folder what this machine can build.

    Args:
        folder: The folder of its builds (`Workspace.folder`).

    Raises:
        RequestError: As for `build_variants`.
        BuildError: A variant failed; the message has the compiler's output.
        CompilerNotFound: This machine can build none, and the folder has none of another machine.
    """
    results = list(build_variants(folder, folder))

    def reasons(of: str) -> str:
        found = [each for each in results if each.state == of]
        return "\n".join(f"{each.variant or each.backend}: {each.reason}\n{each.detail}".rstrip() for each in found)

    if failed := reasons("failed"):
        raise BuildError(failed)
    if not any(folder.glob(f"{BUILD_FOLDER}/*/{METADATA_FILE}")):
        raise CompilerNotFound(reasons("not built"))


def _every_variant(sources: Sequence[KernelSource], torches: Sequence[TorchInstallation]) -> list[VariantPlan]:
    try:
        return plan_variants(sources, torches=torches)
    except RequestError:  # of a variant that is not built
        return []


def _describe_to_editors(sources: Sequence[KernelSource], plans: Iterable[BuildPlan], out: Path, work: Path) -> None:
    """Write `compile_commands.json` beside the sources; a build does not fail for it."""
    if not any(out in (source.folder, source.folder.parent) for source in sources):
        return  # builds that go elsewhere leave the sources as they are
    try:
        write_compile_commands(compile_commands(plans, work))
    except OSError as error:
        _log.warning("%s was not written: %s", COMPILE_COMMANDS, error)


def _result(
    plan: BuildPlan, out: Path, work: Path, jobs: int | None, starting: Callable[[str], None] | None
) -> BuildResult:
    backend = plan.backend.name
    try:
        with _exclusive(plan.variant, out, work):
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
        install_variant(files, variant_dir, _replaced(work, plan.variant))
    write_stamp(inputs_hash(plan), plan.state.contents.code, variant_dir, stamp)
    return variant_dir


@contextmanager
def _exclusive(variant: str, out: Path, work: Path) -> Iterator[None]:
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
            restore_variant(out / BUILD_FOLDER / variant, _replaced(work, variant))
            yield
    except OSError as error:
        if isinstance(error, KernelsError):
            raise
        raise BuildError(f"{variant} could not be written; the previous build is unchanged: {error}") from error


def _replaced(work: Path, variant: str) -> Path:
    """Where the previous build of a variant is while the new one takes its place."""
    return work / f"{variant}.replaced"


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
