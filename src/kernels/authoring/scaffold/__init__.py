"""What a kernel's author starts from and works with: a new kernel's folder, and its tests against its own builds."""

from __future__ import annotations

from kernels.authoring.scaffold.draft import Draft, draft_kernel
from kernels.authoring.scaffold.new import new_kernel
from kernels.authoring.scaffold.own_tests import run_tests

__all__ = ["Draft", "draft_kernel", "new_kernel", "run_tests"]
