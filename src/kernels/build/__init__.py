"""From a kernel's sources to `build/<variant>`.

A source folder holds `build.toml` and one framework: `[torch]`, compiled here, or `[torch-noarch]`, copied.
`build_kernel` reads as the steps in a row.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from kernels.build.compile import compile_extension
from kernels.build.plan import Plan, default_backends, plan_builds
from kernels.build.source import KernelSource, read_source
from kernels.build.stamp import inputs_hash, is_current, leave_stamp
from kernels.build.variant import install_variant, staged_variant, write_package

__all__ = ["KernelSource", "Plan", "build_kernel", "default_backends", "plan_builds", "read_source"]


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
        source_dir: The folder with `build.toml`.
        out_dir: The repository's folder: variants go to `out_dir/build/<variant>`, beside those of other source
            folders of the same kernel.
        backends: Backends to build for. Default: of those that `build.toml` names, all for noarch sources, and for
            compiled ones those the installed Torch is built for.
        work_dir: Where stamps of finished builds are kept. Default: `out_dir` with `.work` added to its name.
        jobs: Compilers to run at once, default one a processor.

    Returns:
        The variants' folders, in the order of `build.toml`'s backends.

    Raises:
        RequestError: `build.toml` is missing or not valid, or a backend is not one that it names.
        CompilerNotFound: No compiler for one of the sources, or no Torch to compile against.
        BuildError: A compiler failed; the message has its output.

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
    source = read_source(source_dir)
    out = Path(out_dir).absolute()
    work = out.with_name(out.name + ".work") if work_dir is None else Path(work_dir).absolute()
    return [_build(plan, out / "build", work, jobs) for plan in plan_builds(source, backends)]


def _build(plan: Plan, build_dir: Path, work_dir: Path, jobs: int | None) -> Path:
    variant_dir, stamp = build_dir / plan.variant, work_dir / f"{plan.variant}.stamp"
    inputs = inputs_hash(plan)
    if is_current(inputs, variant_dir, stamp):
        return variant_dir
    with staged_variant(work_dir) as staging:
        if plan.compilation is not None:
            compile_extension(plan.compilation, staging.files / plan.extension_file, staging.objects, jobs=jobs)
        write_package(plan, staging.files)
        install_variant(staging.files, variant_dir)
    leave_stamp(inputs, variant_dir, stamp)
    return variant_dir
