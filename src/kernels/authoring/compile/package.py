"""One variant's folder: what stands in it, and how it gets to its place."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernels.authoring.compile.build_plan import BuildPlan
from kernels.authoring.compile.contents import package_files
from kernels.trust.digest import variant_digest

__all__ = ["install_variant", "staged_variant", "write_package"]


@contextmanager
def staged_variant(work_dir: Path) -> Iterator[Path]:
    """An empty folder for one build's files, gone afterwards.

    Args:
        work_dir: Where to make them; on the file system of the variant's final place.
    """
    folder = Path(tempfile.mkdtemp(prefix="building-", dir=work_dir))
    try:
        files = folder / "files"
        files.mkdir()
        yield files
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_package(plan: BuildPlan, folder: Path) -> None:
    """Write the Python package, `_ops.py` and `metadata.json` of a build.

    Args:
        plan: The build.
        folder: Where to; a compiled extension is there already.
    """
    source = plan.source
    for name, path in package_files(source):
        to = folder / name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)
    (folder / "_ops.py").write_text(_ops_module(plan), encoding="utf-8", newline="\n")

    digest = variant_digest(folder, "sha256")
    metadata = source.metadata(
        plan.id, plan.backend.name, archs=plan.archs, digest=digest, provenance=plan.state.provenance
    )
    (folder / "metadata.json").write_bytes(metadata.to_bytes())


def install_variant(files: Path, variant_dir: Path) -> None:
    """Put finished files in their place, over what was there.

    Args:
        files: The finished folder; it is moved.
        variant_dir: Its place.
    """
    variant_dir.parent.mkdir(parents=True, exist_ok=True)
    replaced = files.with_name("replaced")
    try:
        if variant_dir.exists():
            variant_dir.rename(replaced)
        files.rename(variant_dir)
    except BaseException:
        # Interrupted between the two: what was there comes back.
        if replaced.exists() and not variant_dir.exists():
            replaced.rename(variant_dir)
        raise


def _ops_module(plan: BuildPlan) -> str:
    return _tvm_ffi_ops(plan) if plan.source.framework == "tvm-ffi" else _torch_ops(plan)


def _torch_ops(plan: BuildPlan) -> str:
    loading = (
        "" if plan.compilation is None else f"\nfrom . import {plan.id}  # noqa: F401  (loading it registers them)\n"
    )
    return f'''"""This build's operators. Written by the builder."""

import torch
{loading}
__all__ = ["add_op_namespace_prefix", "ops"]

ops = torch.ops.{plan.id}


def add_op_namespace_prefix(name: str) -> str:
    """An operator's name with this build's namespace before it."""
    return f"{plan.id}::{{name}}"
'''


def _tvm_ffi_ops(plan: BuildPlan) -> str:
    # Sources that also register their functions with JAX import the last two of these names.
    return f'''"""This build's functions. Written by the builder."""

import importlib.util
from pathlib import Path

import tvm_ffi

__all__ = ["add_op_namespace_prefix", "has_jax", "jax_add_ffi_target_name_prefix", "ops"]

ops = tvm_ffi.load_module(Path(__file__).parent / "{plan.extension_file}")

has_jax = all(importlib.util.find_spec(name) is not None for name in ("jax", "jax_tvm_ffi"))


def add_op_namespace_prefix(name: str) -> str:
    """A function's name with this build's namespace before it."""
    return f"{plan.id}::{{name}}"


def jax_add_ffi_target_name_prefix(name: str) -> str:
    """A function's name as a target of JAX, which no other build has."""
    return f"{plan.id}.{{name}}"
'''
