"""This machine as a `Target`: what its backends, Torch and the system say, each asked once."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Callable
from typing import Any

from kernels import backends
from kernels.backends import Backend, BackendProbe, Device, Unanswered
from kernels.backends.hindrance import Hindrance, hindrances
from kernels.backends.torch_build import cxx11_abi, installed_torch, torch_build_failures, torch_builds
from kernels.backends.traces import MachineTraces
from kernels.support.installed import installed_version

__all__ = ["cpu_name", "machine_facts"]

# How Darwin, Windows and people spell processors that variants call otherwise.
_CPUS = {"arm64": "aarch64", "amd64": "x86_64", "x64": "x86_64"}


def machine_facts(ask: Callable[[Backend], BackendProbe]) -> dict[str, Any]:
    """What a `Target` says of this machine, by the names of its fields; all but the processor.

    Args:
        ask: Probes a backend.
    """
    builds = torch_builds()
    found: dict[str, str | None] = {}
    devices: list[Device] = []
    notes: dict[str, list[str]] = {}
    hindered: dict[str, tuple[Hindrance, ...]] = {}
    unanswered: dict[str, tuple[Unanswered, ...]] = {}
    torch, failures = installed_torch(), torch_build_failures()
    version_of_torch = None if torch is None else str(torch.__version__)
    machine = MachineTraces()
    for entry in backends.entries():
        name, built = entry.name, entry.name in builds
        # Without a trace its probe finds nothing: it need not be imported.
        asked = built or machine.shows(entry.label)
        probe = ask(entry.backend) if asked else BackendProbe(notes=entry.label.without_traces)
        notes[name] = list(probe.notes)
        devices += probe.devices
        if probe.unanswered:
            unanswered[name] = probe.unanswered
        subject = entry.backend if built else entry.names
        why = hindrances(subject, probe, torch=version_of_torch, builds=builds, failure=failures.get(name))
        if why:
            hindered[name] = why
        if not built and not probe.found:
            continue
        version = builds.get(name) or probe.version
        found[name] = None if version is None else str(version)
        if torch is not None and not built:
            unbuilt = f"it is there, but this Torch ({version_of_torch}) is not built for it, or extended with it"
            notes[name].append(failures.get(name, unbuilt))
    return {
        "os": platform.system().lower(),
        "os_version": _os_version(),
        "python": platform.python_version(),
        "free_threaded": _free_threaded(),
        "glibc": _glibc(),
        "torch": version_of_torch,
        "cxx11_abi": cxx11_abi(),
        "tvm_ffi": _tvm_ffi(),
        "backends": found,
        "torch_backends": tuple(builds),
        "devices": tuple(devices),
        "default_backend": next(iter(builds or found)),
        "notes": tuple(f"{name}: {note}" for name, several in notes.items() for note in several),
        "backend_notes": {name: tuple(several) for name, several in notes.items() if several},
        "hindrances": hindered,
        "unanswered": unanswered,
    }


def cpu_name(machine: str) -> str:
    """The name that variants have for a processor.

    Args:
        machine: The name that the system or a person has for it.

    Example:
        >>> cpu_name("arm64")
        'aarch64'
    """
    return _CPUS.get(machine.lower(), machine.lower())


def _os_version() -> str | None:
    version = platform.mac_ver()[0] if platform.system() == "Darwin" else platform.release()
    # To programs linked with an older SDK, macOS 26 calls itself 16; there never was a macOS 16.
    if platform.system() == "Darwin" and version.split(".")[0] == "16":
        version = "26" + version[2:]
    return version or None


def _free_threaded() -> bool:
    if not hasattr(sys, "_is_gil_enabled"):  # before Python 3.13; `sysconfig` reads some thousand values for one
        return False
    import sysconfig

    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def _glibc() -> str | None:
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (AttributeError, ValueError, OSError):  # not this C library, or no such call (Windows)
        return None
    return version if name == "glibc" and version else None


def _tvm_ffi() -> str | None:
    module = sys.modules.get("tvm_ffi")
    if module is not None:
        return str(getattr(module, "__version__", "")) or None
    if importlib.util.find_spec("tvm_ffi") is None:
        return None
    return installed_version("apache-tvm-ffi")
