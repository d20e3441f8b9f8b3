"""The machine a kernel must run on: this one, or one described in a string or a file."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from kernels import backends, settings
from kernels.backends import Backend, BackendProbe, Device, Unanswered
from kernels.backends.hindrance import Hindrance, hindrances
from kernels.backends.probing import probe_backend, probe_backend_once
from kernels.backends.registry import why_unknown
from kernels.backends.torch_build import cxx11_abi, installed_torch, torch_build_failures, torch_builds
from kernels.backends.traces import MachineTraces
from kernels.errors import BackendUnavailable, RequestError
from kernels.support.documents import TooComplex, check_json
from kernels.support.forks import ForkLock
from kernels.support.formatting import did_you_mean, format_value, wrong_type
from kernels.support.installed import installed_version
from kernels.support.record_file import decode_json
from kernels.support.version import MajorMinor

__all__ = ["Device", "Target", "not_there"]

#: The largest description that is read: a machine has some dozens of devices, each with a few hundred bytes.
_MAX_JSON = 4 * 1024 * 1024

# How Darwin, Windows and people spell processors that variants call otherwise.
_CPUS = {"arm64": "aarch64", "amd64": "x86_64", "x64": "x86_64"}


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that a build must suit. Versions are text as found; only their first two numbers count.

    Attributes:
        os: `linux`, `darwin` or `windows`.
        cpu: `x86_64`, `aarch64`, …
        os_version: Version of the operating system.
        python: Version of Python.
        free_threaded: Whether this Python runs without the global lock.
        glibc: Version of the C library, on Linux.
        torch: Version of Torch.
        cxx11_abi: Whether Torch uses the new C++ ABI; None where there is no such choice.
        tvm_ffi: Version of tvm-ffi.
        backends: Backends that are there, with the version of each that has one.
        torch_backends: Those of them that this Torch was built for, or extended with.
        devices: Visible devices.
        default_backend: The backend used when none is named.
        current_device: Index of the default backend's current device.
        notes: Probes that found nothing or failed, and why.
        backend_notes: The same by backend, without its name.
        hindrances: Why a backend cannot be used here, by its name; empty for a machine that was only described.
        unanswered: What backends asked of this machine without an answer, by the backend's name.

    Example:
        >>> target = Target.parse("torch2.9-cu128-x86_64-linux+sm_90")
        >>> target.default_backend, target.devices[0].arch, str(target)
        ('cuda', '9.0', 'torch2.9-cu128-x86_64-linux+sm_90')
    """

    os: str
    cpu: str
    os_version: str | None = None
    python: str | None = None
    free_threaded: bool = False
    glibc: str | None = None
    torch: str | None = None
    cxx11_abi: bool | None = None
    tvm_ffi: str | None = None
    backends: dict[str, str | None] = {}
    torch_backends: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    default_backend: str
    current_device: int = 0
    notes: tuple[str, ...] = ()
    backend_notes: dict[str, tuple[str, ...]] = {}
    hindrances: dict[str, tuple[Hindrance, ...]] = {}
    unanswered: dict[str, tuple[Unanswered, ...]] = {}

    @staticmethod
    def current() -> Target:
        """This machine. Probed once; again when a backend is registered or Torch has been imported since, without
        the probes in which a query failed.

        Never raises for what is broken or absent: that is a fact in `notes`.

        Raises:
            RequestError: `KERNELS_BACKEND` names a backend that this machine does not have.
        """
        target = _cached()
        default = _preferred(target) or target.default_backend
        index = backends.get(default).current_device()
        if (default, index) == (target.default_backend, target.current_device):
            return target
        return msgspec.structs.replace(target, default_backend=default, current_device=index)

    @staticmethod
    def probe() -> Target:
        """This machine, looked at now."""
        return _probe(torch_builds())

    @staticmethod
    def parse(text: str) -> Target:
        """A machine from a short string.

        Args:
            text: `[torch<version>-][cxx11|cxx98-][tvm-ffi<version>-][py<version>[t]-]<accelerator>-<cpu>-<os>[version]`
                and `+<architecture>` or `+<count>x<architecture>` for devices. Without an ABI tag, the one that
                Torch's Linux packages of that version have.

        Raises:
            TypeError: `text` is not a string.
            RequestError: It does not describe a machine.

        Example:
            >>> Target.parse("torch2.13-cpu-aarch64-darwin26.1").os_version
            '26.1'
        """
        from kernels.resolver.target_text import target_in

        return target_in(text, Target, _cpu)

    @staticmethod
    def from_json(data: bytes | str) -> Target:
        """A machine from what `to_json` wrote.

        Args:
            data: The JSON.

        Raises:
            TypeError: `data` is neither bytes nor a string.
            RequestError: It is not that.
        """
        if not isinstance(data, (bytes, bytearray, memoryview, str)):
            raise wrong_type("data", "bytes or a string of JSON", data)
        try:
            data = data if isinstance(data, (bytes, str)) else bytes(data)
            if len(data) > _MAX_JSON:
                raise TooComplex(f"it has more than {_MAX_JSON} bytes")
            check_json(data)
            return decode_json(data, Target)
        except (UnicodeError, TooComplex) as error:
            raise _invalid_json(str(error)) from None
        except msgspec.DecodeError as error:
            from kernels.support.json_mistakes import describe_mistake

            raise _invalid_json(describe_mistake(error, data)) from None

    def to_json(self) -> bytes:
        """The machine as JSON.

        Example:
            >>> target = Target.parse("torch2.9-cpu-x86_64-linux")
            >>> Target.from_json(target.to_json()) == target
            True
        """
        return msgspec.json.encode(self)

    def backend_version(self, name: str) -> MajorMinor | None:
        """The version of a backend, None where it has none or none is known.

        Args:
            name: The backend's own name.
        """
        return MajorMinor.parse(self.backends.get(name) or "")

    def backend_devices(self, name: str) -> tuple[Device, ...]:
        """The visible devices of a backend.

        Args:
            name: The backend's own name.
        """
        return tuple(device for device in self.devices if device.backend == name)

    def why_not(self, name: str) -> str:
        """Why this machine cannot use a backend, and what to do: two sentences; "" where nothing is known.

        Args:
            name: The backend's own name.

        Example:
            >>> Target.parse("torch2.9-cpu-x86_64-linux").why_not("cuda")
            ''
        """
        found = self.hindrances.get(name, ())
        if not found:
            return ""
        fixes = "; ".join(dict.fromkeys(each.fix for each in found))
        return f"Not {name}: {'; and '.join(each.reason for each in found)}. {fixes[0].upper()}{fixes[1:]}."

    def _repr_html_(self) -> str:
        from kernels.resolver.target_table import target_table

        return target_table(self)

    def __str__(self) -> str:
        from kernels.resolver.target_text import text_of

        return text_of(self)


_lock = ForkLock()
_cache: tuple[Any, Target] | None = None


def _preferred(target: Target) -> str | None:
    """The backend that the user wants where none is named, instead of the one that Torch's build suggests."""
    wanted = settings.preferred_backend()
    if wanted is None:
        return None
    try:
        return backends.find(wanted, among=target.backends).name
    except RequestError:
        raise not_there(target, "KERNELS_BACKEND", wanted) from None


def not_there(target: Target, argument: str, name: str, given: object = None) -> RequestError:
    """The error for a backend that a machine does not have: why it does not, or which name was meant.

    Args:
        target: The machine.
        argument: The argument or variable that names the backend.
        name: The backend's name.
        given: The argument as it was given, if it says more than the name.

    Example:
        >>> not_there(Target.parse("torch2.9-cpu-x86_64-linux"), "device", "cuda", "cuda:1")
        BackendUnavailable("`device` is 'cuda:1'; this machine (torch2.9-cpu-x86_64-linux) has cpu.")
    """
    value = format_value(given or name, 200)
    message = f"`{argument}` is {value}; this machine ({target}) has {', '.join(target.backends)}."
    try:
        known = backends.find(name)
    except RequestError:
        reasons = why_unknown(name)
        hint = "" if reasons else did_you_mean(name, backends.reserved_names())
        if not reasons and not hint:
            reasons = [f"No backend {format_value(name)} is registered; {backends.MISSING_VENDOR}."]
        return RequestError("\n".join([message + hint, *reasons]))
    return BackendUnavailable("\n".join(filter(None, (message, target.why_not(known.name)))))


def _invalid_json(problem: str) -> RequestError:
    return RequestError(f"The target's JSON is not valid: {problem}. `Target.to_json` writes a valid one.")


def _cached() -> Target:
    global _cache
    builds = torch_builds()
    key = (backends.generation(), "torch" in sys.modules, tuple(builds.items()))
    cached = _cache
    if cached is not None and cached[0] == key:
        return cached[1]
    with _lock:
        if _cache is None or _cache[0] != key:
            _cache = (key, _probe(builds, probe_backend_once))
        return _cache[1]


def _probe(builds: dict[str, MajorMinor | None], ask: Callable[[Backend], BackendProbe] = probe_backend) -> Target:
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
            unbuilt = f"it is there, but this Torch ({torch.__version__}) is not built for it, or extended with it"
            notes[name].append(failures.get(name, unbuilt))
    return Target(
        os=platform.system().lower(),
        cpu=_cpu(platform.machine()),
        os_version=_os_version(),
        python=platform.python_version(),
        free_threaded=_free_threaded(),
        glibc=_glibc(),
        torch=None if torch is None else str(torch.__version__),
        cxx11_abi=cxx11_abi(),
        tvm_ffi=_tvm_ffi(),
        backends=found,
        torch_backends=tuple(builds),
        devices=tuple(devices),
        default_backend=next(iter(builds or found)),
        notes=tuple(f"{name}: {note}" for name, several in notes.items() for note in several),
        backend_notes={name: tuple(several) for name, several in notes.items() if several},
        hindrances=hindered,
        unanswered=unanswered,
    )


def _cpu(machine: str) -> str:
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
