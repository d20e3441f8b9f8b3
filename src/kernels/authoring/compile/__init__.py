"""Compile a kernel's sources into `build/<variant>`.

A source folder has a `build.toml` with one framework: `[torch]` or `[tvm-ffi]`, which is compiled, or `[torch-noarch]`,
which is copied. `builder` has the steps in a row.
"""

from __future__ import annotations

from kernels.authoring.compile.build_toml.model import KernelSource
from kernels.authoring.compile.build_toml.reader import read_source
from kernels.authoring.compile.builder import BuildResult, build_kernel, build_variants
from kernels.authoring.compile.frameworks.installed import default_backends
from kernels.authoring.compile.plan.build_plan import BuildPlan, plan_builds

__all__ = [
    "BuildPlan",
    "BuildResult",
    "KernelSource",
    "build_kernel",
    "build_variants",
    "default_backends",
    "plan_builds",
    "read_source",
]
