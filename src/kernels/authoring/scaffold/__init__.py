"""Create a new kernel's folder (`kernels init`)."""

from __future__ import annotations

from kernels.authoring.scaffold.adopt import Adopted, adopt_kernel
from kernels.authoring.scaffold.draft import Draft, draft_kernel
from kernels.authoring.scaffold.new import new_kernel

__all__ = ["Adopted", "Draft", "adopt_kernel", "draft_kernel", "new_kernel"]
