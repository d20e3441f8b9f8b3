"""Huawei Ascend NPUs, through CANN; Torch calls the device `npu`."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any, Literal

from kernels.backends.base import Backend, BackendProbe, Device, Found, MajorMinor

__all__ = ["CANN", "Name"]

#: What a caller may call it.
Name = Literal["cann", "npu"]

#: The toolkit's folder and the file in it that states its version.
_TOOLKIT = Path("/usr/local/Ascend/ascend-toolkit/latest")
_VERSION_FILE = "ascend_toolkit_install.info"


class CANN(Backend):
    """Ascend NPUs. Torch reaches them as a renamed PrivateUse1 device."""

    name = token = "cann"
    noarch_name = device_type = mapping_device = "npu"
    dispatch_key = "PrivateUse1"
    versioned = True
    order = 70

    #: One character device a chip, `davinci<N>` (Ascend driver installation guide).
    dev = Path("/dev")

    def torch_build(self, torch: Any) -> Found | None:
        rename = getattr(getattr(torch, "_C", None), "_get_privateuse1_backend_name", None)
        if rename is None or rename() != self.device_type:
            return None
        return Found(_toolkit_version())

    def probe(self) -> BackendProbe:
        try:
            chips = [entry.name for entry in self.dev.iterdir() if re.fullmatch(r"davinci[0-9]+", entry.name)]
        except OSError:
            chips = []
        visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
        if visible is not None:
            wanted = [f"davinci{part.strip()}" for part in visible.split(",") if part.strip()]
            chips = [chip for chip in wanted if chip in chips]
        version = _toolkit_version()
        notes = ("an Ascend device is there, but no CANN toolkit",) if chips and version is None else ()
        return BackendProbe(
            found=bool(chips) or version is not None,
            version=version,
            devices=tuple(Device(self.name, index) for index in range(len(chips))),
            notes=notes,
        )

    def current_device(self) -> int:
        npu = getattr(sys.modules.get("torch"), "npu", None)
        return int(npu.current_device()) if npu is not None and npu.is_initialized() else 0


def _toolkit_version() -> MajorMinor | None:
    roots = [Path(value) for value in (os.environ.get("ASCEND_HOME_PATH"),) if value]
    for root in (*roots, _TOOLKIT):
        # The file lies beside the platform's folder: <toolkit>/<cpu>-linux/ascend_toolkit_install.info.
        for path in (root / _VERSION_FILE, *sorted(root.glob(f"*-linux/{_VERSION_FILE}"))):
            try:
                match = re.search(r"^version=(.*)$", path.read_text(errors="replace"), re.MULTILINE)
            except OSError:
                continue
            version = MajorMinor.parse(match[1].strip()) if match else None
            if version is not None:
                return version
    return None
