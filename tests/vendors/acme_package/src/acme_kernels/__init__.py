"""Acme accelerators: what their vendor tells of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from acme_kernels import runtime
from kernels.backends import Backend, BackendProbe, Device, Found, MajorMinor, listed
from kernels.models.metadata import Metadata

__all__ = ["Acme"]


class Acme(Backend):
    """Accelerators of the a and b series. A build serves its own and every later runtime of the same major version."""

    name = device_type = "acme"
    dispatch_key = "PrivateUse1"
    vendor = "Acme"
    versioned = True
    checks_archs = True
    order = 25  # its extension loads into Torch builds for other accelerators, so it comes before them
    folder = Path(__file__).parent
    kernel_guidance = "Tiles of 64 by 64; no warps."

    def probe(self) -> BackendProbe:
        library = runtime.load()
        if library is None:
            return BackendProbe(notes=("libacmert is not installed",))
        devices = (Device(self.name, index, name, arch) for index, (name, arch) in enumerate(runtime.devices(library)))
        return BackendProbe(
            found=True,
            version=MajorMinor(*runtime.version(library)),
            devices=tuple(replace(each, capability=self.device_capability(each)) for each in devices),
        )

    def torch_build(self, torch: Any) -> Found | None:
        renamed = getattr(getattr(torch, "_C", None), "_get_privateuse1_backend_name", None)
        return Found(MajorMinor(1, 2)) if renamed is not None and renamed() == self.device_type else None

    def version_reason(self, build: MajorMinor | None, target: MajorMinor | None) -> str | None:
        if build is None or target is None or (build.major == target.major and build <= target):
            return None
        return f"built for Acme's runtime {build}, this machine has {target}"

    def arch_reason(self, archs: Sequence[str] | None, device: Device | None) -> str | None:
        if not archs or device is None or not device.arch or device.arch in archs:
            return None
        return f"{device.arch} of device {device.index} is not among the build's {listed(archs)}"

    def device_capability(self, device: Device) -> int | None:
        match = re.fullmatch(r"[ab]([0-9]{3})[xy]", device.arch)
        return None if match is None else int(match[1])

    def before_import(self, variant_dir: Path, metadata: Metadata) -> None:
        runtime.journal(f"before_import {metadata.name}")

    def after_import(self, module: ModuleType, variant_dir: Path, metadata: Metadata) -> None:
        module.program = f"program of {variant_dir.name}"  # type: ignore[attr-defined]
        runtime.journal(f"after_import {metadata.name}")
