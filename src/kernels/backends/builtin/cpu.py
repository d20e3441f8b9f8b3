"""The host processor: always there, no devices to choose between."""

from __future__ import annotations

from typing import Any, Literal

from kernels.backends.base import Backend, BackendProbe, Found

__all__ = ["CPU", "Name"]

#: What a caller may call it.
Name = Literal["cpu"]


class CPU(Backend):
    """Builds that run on the host processor; which instructions it has is the build's own affair."""

    name = noarch_name = token = device_type = mapping_device = "cpu"
    dispatch_key = "CPU"
    order = 10_000  # when nothing else is there
    vendor = "any"

    def torch_build(self, torch: Any) -> Found | None:
        return Found()

    def probe(self) -> BackendProbe:
        return BackendProbe(found=True)
