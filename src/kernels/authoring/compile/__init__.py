"""From a kernel's sources to `build/<variant>`.

A source folder holds `build.toml` and one framework: `[torch]` or `[tvm-ffi]`, compiled here, or `[torch-noarch]`,
copied.
"""

from __future__ import annotations

from kernels.authoring.compile.make import Outcome, build_kernel, build_variants
from kernels.authoring.compile.plan import Plan, default_backends, plan_builds
from kernels.authoring.compile.source import KernelSource, read_source

__all__ = [
    "KernelSource",
    "Outcome",
    "Plan",
    "build_kernel",
    "build_variants",
    "default_backends",
    "plan_builds",
    "read_source",
]
