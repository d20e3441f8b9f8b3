"""Create a new kernel's folder (`kernels init`), and run a kernel's tests against its builds (`kernels test`)."""

from __future__ import annotations

from kernels.authoring.scaffold.draft import Draft, draft_kernel
from kernels.authoring.scaffold.new import new_kernel
from kernels.authoring.scaffold.own_tests import run_tests

__all__ = ["Draft", "draft_kernel", "new_kernel", "run_tests"]
