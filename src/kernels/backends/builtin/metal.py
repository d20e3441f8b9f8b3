"""Apple GPUs, through Metal; Torch calls the device `mps`."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Any, Literal

from kernels.backends.base import Backend, BackendProbe, Device, Found

__all__ = ["LABEL", "Metal", "Name"]

#: What is known of it before this file is imported: literals, read from this text (see `kernels.backends.label`).
LABEL = {
    "name": "metal",
    "device_type": "mps",
    "mapping_device": "mps",
    "order": 50,
    "vendor": "Apple",
    "traces": {"systems": ["darwin"], "paths": ["/"], "torch": ["backends.mps"]},
}

#: What a caller may call it.
Name = Literal["metal", "mps"]

# developer.apple.com: Metal Feature Set Tables (May 2026); MTLGPUFamily.metal4; MTLDevice.maxThreadgroupMemoryLength.
_GUIDANCE = """\
Apple GPUs share their memory with the processor; every M-series chip supports Metal 3 and, from macOS 26, Metal 4.
Threads run in SIMD-groups, several of which make a threadgroup with memory of its own.
Limits differ by GPU family: ask the device (`maxThreadgroupMemoryLength`) instead of assuming a number."""
# developer.apple.com: MTLComputePipelineState.threadExecutionWidth, .maxTotalThreadsPerThreadgroup; torch.mps.
_KERNEL_GUIDANCE = """\
Write kernels in the Metal Shading Language; `torch.mps.compile_shader` compiles source text in a noarch kernel.
Make a threadgroup's size a multiple of the pipeline's `threadExecutionWidth`, at most its
`maxTotalThreadsPerThreadgroup`, which may differ from pipeline to pipeline.
In Python the device is `mps`: `torch.mps.synchronize()`. It has no float64."""


class Metal(Backend, label=LABEL):
    """Apple GPUs: one device, no versions, macOS 26 or later for compiled builds."""

    dispatch_key = "MPS"
    device_language = "metal"
    min_macos = 26  # published builds are compiled as Metal 4
    guidance_block = _GUIDANCE
    kernel_guidance = _KERNEL_GUIDANCE
    cuda_hacks_to_strip = ("torch.cuda.", ".cuda()", "import triton", "torch.float64", "__shfl_sync(")

    def torch_build(self, torch: Any) -> Found | None:
        # Asked only where it can be true, so that Linux needs no imported Torch for the answer.
        return Found() if platform.system() == "Darwin" and torch.backends.mps.is_available() else None

    def probe(self) -> BackendProbe:
        if platform.system() != "Darwin":
            return BackendProbe()
        if platform.machine() != "arm64":
            return BackendProbe(notes=("no Apple GPU: this Mac has an Intel processor",))
        # The GPU shares the processor's memory and is named after it.
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return BackendProbe(found=True, devices=(Device(self.name, 0, _processor_name(), memory=memory),))


def _processor_name() -> str:
    """What sysctl calls the processor ("Apple M3 Max"), see sysctl(3) and `machdep.cpu.brand_string`."""
    try:
        libc = ctypes.CDLL(None)
        size = ctypes.c_size_t(256)
        buffer = ctypes.create_string_buffer(size.value)
        if libc.sysctlbyname(b"machdep.cpu.brand_string", buffer, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
            return ""
        return buffer.value.decode(errors="replace")
    except (OSError, AttributeError):
        return ""
