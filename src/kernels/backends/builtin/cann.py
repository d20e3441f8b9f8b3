"""Huawei Ascend NPUs, through CANN; Torch calls the device `npu`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal

from kernels.backends.base import Backend, BackendProbe, Device, Found
from kernels.backends.torch_extension import initialized_device
from kernels.support.version import MajorMinor

__all__ = ["CANN", "LABEL", "Name"]

#: What is known of it before this file is imported: literals, read from this text (see `kernels.backends.label`).
LABEL = {
    "name": "cann",
    "noarch_name": "npu",
    "device_type": "npu",
    "mapping_device": "npu",
    "versioned": True,
    "order": 70,
    "vendor": "Huawei",
    "traces": {"paths": ["/dev/davinci*", "/usr/local/Ascend", "~/Ascend"], "environment": ["ASCEND_HOME_PATH"]},
}

#: What a caller may call it.
Name = Literal["cann", "npu"]

#: Where the toolkit is installed by default, by root or by a user; `cann` since CANN 8.5, the longer names before
#: (CANN 8.5.0 and 8.0.0, Software Installation Guide, "File Paths", and "Querying the Software Package Version").
_TOOLKITS = tuple(
    base / folder
    for base in (Path("/usr/local/Ascend"), Path("~/Ascend"))
    for folder in ("cann", "ascend-toolkit/latest")
)
#: Which of the chips a process sees.
_VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
#: The file in it that states its version.
_VERSION_FILE = "ascend_toolkit_install.info"

# hiascend.com, CANN 8.5.0, Ascend C Operator Development, "Basic Architecture".
_GUIDANCE = """\
Ascend NPUs compute in AI Cores: a Cube unit for matrices, a Vector unit and a Scalar unit, each with its own buffers.
On Atlas A2 and A3 products Cube and Vector are separate cores (AIC, AIV) that exchange data through global memory.
The Vector unit reads and writes the Unified Buffer alone; addresses and lengths are usually aligned to 32 bytes.
The Cube unit multiplies 16x16 tiles of float16, from the buffers L0A and L0B into L0C."""
# The same, and Ascend/ModelZoo-PyTorch, "pytorch_migrate_api.md".
_KERNEL_GUIDANCE = """\
Write compiled kernels in Ascend C; what is PyTorch or JIT alone belongs in `torch-npu`.
Move tiles explicitly: global memory to the Unified Buffer, compute there, and back.
In Python, with `torch_npu` imported, the device is `npu`: `torch.npu.synchronize()`, `tensor.npu()`, `.to("npu")`."""


class CANN(Backend, label=LABEL):
    """Ascend NPUs. Torch reaches them as a renamed PrivateUse1 device."""

    dispatch_key = "PrivateUse1"
    guidance_block = _GUIDANCE
    kernel_guidance = _KERNEL_GUIDANCE
    cuda_hacks_to_strip = ("torch.cuda.", ".cuda()", "triton.language.extra.cuda", "__shfl_sync(")

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
        count = _visible(len(chips))
        version = _toolkit_version()
        # A toolkit alone is no NPU: nothing can be run with it.
        if not chips:
            missing = f"CANN {version} is installed, but no Ascend device, or no driver for it (no /dev/davinci0)"
            return BackendProbe(notes=() if version is None else (missing,))
        return BackendProbe(
            found=True,
            version=version,
            devices=tuple(Device(self.name, index) for index in range(count)),
            notes=("an Ascend device is there, but no CANN toolkit",) if version is None else (),
            hidden="" if count else f"{_VISIBLE}={os.environ.get(_VISIBLE, '')!r}",
        )

    def current_device(self) -> int:
        return initialized_device(self.device_type)


def _visible(count: int) -> int:
    """How many of the chips this process sees (CANN 9.0.0, "ASCEND_RT_VISIBLE_DEVICES").

    The list names logical ids, 0 up to the number of chips, not the numbers in /dev, which a container keeps from its
    host. It ends before the first character that is neither digit nor comma, and before an id that is none.
    """
    value = os.environ.get(_VISIBLE)
    if value is None:
        return count
    chosen: list[int] = []
    for part in value.split(","):
        if re.fullmatch(r"[0-9]{1,4}", part) is None or int(part) >= count or int(part) in chosen:
            break
        chosen.append(int(part))
    return len(chosen)


def _version_files(root: Path) -> list[Path]:
    try:
        return [root / _VERSION_FILE, *sorted(root.glob(f"*-linux/{_VERSION_FILE}"))]
    except OSError:  # a folder, such as another user's home, that may not be read
        return []


def _toolkit_version() -> MajorMinor | None:
    # What the toolkit's set_env.sh sets, before where it usually is.
    given = os.environ.get("ASCEND_HOME_PATH")
    for root in (*([Path(given)] if given else ()), *(path.expanduser() for path in _TOOLKITS)):
        # The file is next to the platform's folder: <toolkit>/<cpu>-linux/ascend_toolkit_install.info.
        for path in _version_files(root):
            try:
                match = re.search(r"^version=(.*)$", path.read_text(errors="replace"), re.MULTILINE)
            except OSError:
                continue
            version = MajorMinor.parse(match[1].strip()) if match else None
            if version is not None:
                return version
    return None
