"""Make wheels of a kernel's builds, for those who install kernels with pip.

`build_wheels` has the steps in a row. The format: https://packaging.python.org/en/latest/specifications/.
"""

from __future__ import annotations

from kernels.authoring.wheel.build_wheels import BuiltWheel, build_wheels

__all__ = ["BuiltWheel", "build_wheels"]
