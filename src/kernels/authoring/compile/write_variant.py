"""Write a variant's folder: the Python package, `_ops.py` and the metadata; then move it into place."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from kernels.authoring.compile.metadata import build_metadata
from kernels.authoring.compile.plan.build_plan import BuildPlan
from kernels.authoring.compile.sources.python_files import package_files
from kernels.models.metadata import Digest
from kernels.models.snapshot import METADATA_FILE
from kernels.trust.content import BuildContent

__all__ = ["OPS_FILE", "install_variant", "metadata_bytes", "ops_module", "restore_variant", "write_package"]

#: The module with a build's operators.
OPS_FILE = "_ops.py"


def write_package(plan: BuildPlan, folder: Path) -> None:
    """Write the Python package, `_ops.py` and `metadata.json` of a build.

    Args:
        plan: The build.
        folder: The folder to write to; it already has the compiled extension.
    """
    for name, path in package_files(plan.source):
        to = folder / name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)
    (folder / OPS_FILE).write_text(ops_module(plan), encoding="utf-8", newline="\n")
    (folder / METADATA_FILE).write_bytes(metadata_bytes(plan, BuildContent(folder).digest("sha256")))


def ops_module(plan: BuildPlan) -> str:
    """The content of a build's `_ops.py`."""
    return _tvm_ffi_ops(plan) if plan.source.framework == "tvm-ffi" else _torch_ops(plan)


def metadata_bytes(plan: BuildPlan, digest: Digest | None) -> bytes:
    """The content of a build's `metadata.json`."""
    return build_metadata(
        plan.source,
        plan.id,
        plan.backend.name,
        archs=plan.archs,
        digest=digest,
        provenance=plan.state.provenance,
    ).to_bytes()


def install_variant(files: Path, variant_dir: Path, replaced: Path) -> None:
    """Move a finished folder into place; it replaces the previous build.

    Args:
        files: The folder.
        variant_dir: The variant's place.
        replaced: Where the previous build is until the new one is in place: `restore_variant` finds it there if this
            process is killed.
    """
    variant_dir.parent.mkdir(parents=True, exist_ok=True)
    try:
        if os.path.lexists(variant_dir):
            variant_dir.rename(replaced)
        files.rename(variant_dir)
    finally:
        restore_variant(variant_dir, replaced)


def restore_variant(variant_dir: Path, replaced: Path) -> None:
    """Move a variant's previous build back, unless the new one is in place."""
    if replaced.exists() and not variant_dir.exists():
        variant_dir.parent.mkdir(parents=True, exist_ok=True)
        replaced.rename(variant_dir)
    shutil.rmtree(replaced, ignore_errors=True)


def _torch_ops(plan: BuildPlan) -> str:
    loading = (
        "" if plan.compilation is None else f"\nfrom . import {plan.id}  # noqa: F401  (registers the operators)\n"
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
    """The function's name in this build's namespace."""
    return f"{plan.id}::{{name}}"


def jax_add_ffi_target_name_prefix(name: str) -> str:
    """The function's name as a JAX target of this build."""
    return f"{plan.id}.{{name}}"
'''
