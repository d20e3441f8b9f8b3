"""From a kernel's sources to `build/<variant>`.

A source folder holds `build.toml` and one framework: `[torch]` or `[tvm-ffi]`, compiled here, or `[torch-noarch]`,
copied.
"""

from __future__ import annotations

from kernels.authoring.compile.build_plan import BuildPlan, default_backends, plan_builds
from kernels.authoring.compile.build_toml.reader import KernelSource, read_source
from kernels.authoring.compile.builder import BuildResult, build_kernel, build_variants

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
