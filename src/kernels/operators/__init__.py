"""ATen operators overridden by dispatch key: by a vendor's functions, or by those of kernels."""

from __future__ import annotations

from kernels.operators.enable import (
    ActiveOp,
    EnabledOps,
    FuncSpec,
    active_ops,
    enable_kernel_ops,
    enable_vendor_ops,
    use_kernel_ops,
    use_vendor_ops,
)
from kernels.operators.vendor_functions import UnusedOp

__all__ = [
    "ActiveOp",
    "EnabledOps",
    "FuncSpec",
    "UnusedOp",
    "active_ops",
    "enable_kernel_ops",
    "enable_vendor_ops",
    "use_kernel_ops",
    "use_vendor_ops",
]
