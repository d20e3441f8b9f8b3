"""The host processor: always there, no devices to choose between."""

from __future__ import annotations

from typing import Any, Literal

from kernels.backends.base import Backend, BackendProbe, Found

__all__ = ["CPU", "LABEL", "Name"]

#: What is known of it before this file is imported: literals, read from this text (see `kernels.backends.label`).
LABEL = {
    "name": "cpu",
    "device_type": "cpu",
    "order": 10_000,  # when nothing else is there
    "vendor": "any",
}

#: What a caller may call it.
Name = Literal["cpu"]


class CPU(Backend, label=LABEL):
    """Builds that run on the host processor; which instructions it has is the build's own affair."""

    dispatch_key = "CPU"

    def torch_build(self, torch: Any) -> Found | None:
        return Found()

    def probe(self) -> BackendProbe:
        return BackendProbe(found=True)
