"""What shows that a backend may be on a machine: looked for without importing the backend.

A trace that is there means that the backend is asked. None at all means that its probe would find nothing, so that it
need not even be imported.

| a label's `traces` | a trace is |
|---|---|
| `systems` | not a trace itself: the values of `sys.platform` where there can be any; elsewhere there is none |
| `paths` | a path that exists; `~` is the user's home, a `*` at the end stands for the rest of a name |
| `environment` | a variable that is set |
| `libraries` | a shared library that loads |
| `pci` | a device of this vendor on the PCI bus (`0x10de`) |
| `torch` | an attribute of Torch that is there and not None (`version.cuda`) |
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernels.backends.label import Label

__all__ = ["KINDS", "MachineTraces", "torch_shows"]

#: Every kind of trace.
KINDS = frozenset({"systems", "paths", "environment", "libraries", "pci", "torch"})

#: Tests lay out other machines below a folder.
ROOT = ""


class MachineTraces:
    """This machine, as it is looked at once."""

    def shows(self, label: Label) -> bool:
        """Whether there is a trace of a backend, or it has to be asked."""
        traces = label.traces
        if traces is None:
            return True
        return _in_systems(traces) and (
            any(name in os.environ for name in traces.get("environment", ()))
            or any(map(_exists, traces.get("paths", ())))
            or any(vendor in self._pci_vendors for vendor in traces.get("pci", ()))
            or any(map(_loads, traces.get("libraries", ())))
        )

    @cached_property
    def _pci_vendors(self) -> frozenset[str]:
        """The vendors of all PCI devices, from the one file that lists them; else from the folder of each."""
        try:
            # Bus and function, then vendor and device in eight digits (Linux, drivers/pci/proc.c).
            with open(f"{ROOT}/proc/bus/pci/devices", "rb") as file:
                return frozenset(f"0x{line.split(None, 2)[1][:4].decode('latin-1')}" for line in file if line.strip())
        except (OSError, IndexError):
            pass
        vendors = set()
        try:
            folders = os.listdir(f"{ROOT}/sys/bus/pci/devices")
        except OSError:
            return frozenset()
        for folder in folders:
            try:
                with open(f"{ROOT}/sys/bus/pci/devices/{folder}/vendor", "rb") as file:
                    vendors.add(file.read().strip().decode("latin-1"))
            except OSError:
                continue
        return frozenset(vendors)


def torch_shows(torch: Any, label: Label) -> bool:
    """Whether Torch may be built for a backend, or extended with it.

    Args:
        torch: The module, or a stand-in with its version facts.
        label: The backend's label.
    """
    traces = label.traces
    if traces is None:
        return True
    if not _in_systems(traces):
        return False
    renamed = getattr(getattr(torch, "_C", None), "_get_privateuse1_backend_name", None)
    if renamed is not None and renamed() == label.names.device_type:
        return True
    return any(_attribute(torch, path) is not None for path in traces.get("torch", ()))


def _attribute(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def _in_systems(traces: Mapping[str, tuple[str, ...]]) -> bool:
    systems = traces.get("systems")
    return systems is None or sys.platform in systems


def _exists(path: str) -> bool:
    path = os.path.expanduser(path) if path.startswith("~") else ROOT + path
    if not path.endswith("*"):
        return os.path.lexists(path)
    folder, _, begin = path[:-1].rpartition("/")
    try:
        return any(name.startswith(begin) for name in os.listdir(folder))
    except OSError:
        return False


def _loads(name: str) -> bool:
    if name.endswith(".dll") != (sys.platform == "win32"):
        return False
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
