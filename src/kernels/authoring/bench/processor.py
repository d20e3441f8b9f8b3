"""The name of this machine's processor."""

from __future__ import annotations

import platform
from contextlib import suppress

__all__ = ["processor_name"]


def processor_name() -> str:
    """The processor's name as its vendor writes it, else its architecture.

    Example:
        >>> bool(processor_name())
        True
    """
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
