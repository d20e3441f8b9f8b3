"""The machine a kernel must run on: this one, or one described in a string or a file."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby

import msgspec

from kernels import backends, settings
from kernels.backends import Backend, Device, Unanswered
from kernels.backends.hindrance import Hindrance
from kernels.backends.probing import probe_backend, probe_backend_once
from kernels.backends.registry import why_unknown
from kernels.backends.torch_build import torch_builds
from kernels.errors import BackendUnavailable, RequestError
from kernels.resolver.this_machine import cpu_name, machine_facts
from kernels.support.forks import ForkLock
from kernels.support.formatting import did_you_mean, format_text, format_value, wrong_type
from kernels.support.record_file import decode_json
from kernels.support.version import MajorMinor

__all__ = ["Device", "Target", "backend_of"]

#: The largest description that is read: a machine has some dozens of devices, each with a few hundred bytes.
_MAX_JSON = 4 * 1024 * 1024

_EXAMPLE = "torch2.9-cu128-x86_64-linux+sm_90"
_FORM = "torch<version>-<accelerator>-<cpu>-<os>"
_TEXT = (
    r"(?:torch(?P<torch>[0-9]+\.[0-9]+(?:\.[0-9]+)?)-)?(?:(?P<abi>cxx11|cxx98)-)?"
    r"(?:tvm-ffi(?P<tvm>[0-9]+\.[0-9]+(?:\.[0-9]+)?)-)?(?:py(?P<python>3\.[0-9]+)(?P<threaded>t?)-)?"
    r"(?P<accelerator>[a-z]+[a-z0-9_.]*)-(?P<processor>[A-Za-z0-9_]+)-(?P<os>[a-z]+)(?P<os_version>[0-9][0-9.]*)?"
)
_DEVICES = r"(?:(?P<count>[1-9][0-9]{0,3})x)?(?P<arch>.+)"

#: The most devices: a machine has some dozens.
_MAX_DEVICES = 10_000

# How people spell what variants call otherwise.
_SYSTEMS = {"macos": "darwin", "win": "windows"}


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
        target = _known()
        wanted = settings.preferred_backend()  # instead of the one that Torch's build suggests
        default = target.default_backend if wanted is None else backend_of(target, "KERNELS_BACKEND", wanted).name
        index = backends.get(default).current_device()
        if (default, index) == (target.default_backend, target.current_device):
            return target
        return msgspec.structs.replace(target, default_backend=default, current_device=index)

    @staticmethod
    def probe() -> Target:
        """This machine, looked at now."""
        return Target(cpu=cpu_name(platform.machine()), **machine_facts(probe_backend))

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
        return _parse(text)

    @staticmethod
    def from_json(data: bytes | str) -> Target:
        """A machine from what `to_json` wrote.

        Args:
            data: The JSON.

        Raises:
            TypeError: `data` is neither bytes nor a string.
            RequestError: It is not that.
        """
        if not isinstance(data, (bytes, str)):
            raise wrong_type("data", "bytes or a string of JSON", data)
        try:
            if len(data) > _MAX_JSON:
                raise _invalid_json(f"it has more than {_MAX_JSON} bytes")
            return decode_json(data, Target)
        except (UnicodeError, msgspec.DecodeError) as error:
            raise _invalid_json(format_text(error)) from None

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
        from kernels.support.html_table import html_table

        found = [f"{name} {version or ''}".strip() for name, version in self.backends.items()]
        rows = [
            ("system", " ".join(filter(None, (self.os, self.os_version, self.cpu)))),
            ("Python", self.python and f"{self.python}{' free-threaded' if self.free_threaded else ''}"),
            ("C library", self.glibc and f"glibc {self.glibc}"),
            ("Torch", self.torch and f"{self.torch} for {', '.join(self.torch_backends)}"),
            ("tvm-ffi", self.tvm_ffi),
            ("backends", f"{', '.join(found)}; default: {self.default_backend}"),
            *(
                (f"device {each.index}", f"{each.backend} {each.arch or ''} {each.name}".strip())
                for each in self.devices
            ),
            *(("note", note) for note in self.notes),
        ]
        return html_table(("machine", str(self)), [row for row in rows if row[1]])

    def __str__(self) -> str:
        """The string that describes the machine best; it does not say everything."""
        parts = []
        if self.torch is not None:
            parts.append(f"torch{_minor(self.torch)}")
            if self.os == "linux" and self.cxx11_abi is not None and self.cxx11_abi != _usual_abi(self.torch):
                parts.append("cxx11" if self.cxx11_abi else "cxx98")
        if self.tvm_ffi is not None:
            parts.append(f"tvm-ffi{_minor(self.tvm_ffi)}")
        if self.free_threaded:
            parts.append(f"py{_minor(self.python or '3.0')}t")
        backend = backends.get(self.default_backend)
        version = self.backend_version(backend.name)
        try:
            parts.append(backend.format_accelerator(version))
        except ValueError:  # a version that names cannot carry (rocm 7.10), or one that is not known
            parts.append(f"{backend.token}{version or ''}")
        system = self.os + (self.os_version or "" if self.os == "darwin" else "")
        named = [device.arch for device in self.backend_devices(backend.name) if device.arch]
        runs = groupby(backend.format_arch(arch) for arch in named)
        counted = [(arch, len(list(run))) for arch, run in runs]
        archs = [f"+{count}x{arch}" if count > 1 else f"+{arch}" for arch, count in counted]
        return "-".join([*parts, self.cpu, system]) + "".join(archs)


_lock = ForkLock()
_cache: tuple[object, Target] | None = None


def _known() -> Target:
    """This machine, probed again only when a backend is registered or Torch has been imported since."""
    global _cache
    key = (backends.generation(), "torch" in sys.modules, tuple(torch_builds().items()))
    cached = _cache
    if cached is not None and cached[0] == key:
        return cached[1]
    with _lock:
        if _cache is None or _cache[0] != key:
            _cache = (key, Target(cpu=cpu_name(platform.machine()), **machine_facts(probe_backend_once)))
        return _cache[1]


def _parse(text: str) -> Target:
    if not isinstance(text, str):
        raise wrong_type("target", f"a string such as {_EXAMPLE!r}", text)
    head, *archs = text.split("+")
    match = re.fullmatch(_TEXT, head) if len(text) <= 1000 else None
    system = None if match is None else _SYSTEMS.get(match["os"], match["os"])
    if match is None or system not in ("linux", "darwin", "windows"):
        raise RequestError(
            f"`target`: expected {_FORM}, with devices as +<architecture>, such as {_EXAMPLE!r}; got {text[:200]!r}."
        )
    backend, version = _parse_accelerator(text, match["accelerator"])
    found: dict[str, str | None] = {backend.name: None if version is None else str(version)}
    host = backends.host()
    found.setdefault(host.name, None)
    torch = match["torch"]
    abi = None
    if torch is not None and system == "linux":
        abi = match["abi"] == "cxx11" if match["abi"] else _usual_abi(torch)
    return Target(
        os=system,
        cpu=cpu_name(match["processor"]),
        os_version=match["os_version"],
        python=match["python"],
        free_threaded=bool(match["threaded"]),
        torch=torch,
        cxx11_abi=abi,
        tvm_ffi=match["tvm"],
        backends=found,
        torch_backends=() if torch is None else tuple(found),
        devices=_parse_devices(text, backend, archs),
        default_backend=backend.name,
    )


def _parse_accelerator(text: str, accelerator: str) -> tuple[Backend, MajorMinor | None]:
    found = backends.parse_accelerator(accelerator)
    if found is not None:
        return found
    for backend in backends.all_backends():
        # Also what a variant's name cannot say: a version of its own spelling (rocm7.10), or none at all.
        if backend.versioned and accelerator.startswith(backend.token):
            rest = accelerator[len(backend.token) :]
            if not rest or re.fullmatch(r"[0-9]+\.[0-9]+", rest):
                return backend, MajorMinor.parse(rest)
    # Another of a backend's names: `mps` for metal, `cuda12.8` for cu128.
    word = accelerator.rstrip("0123456789.")
    with suppress(RequestError):
        token = backends.find(word).token
        if token != word:
            return _parse_accelerator(text, token + accelerator[len(word) :])
    why = backends.unknown_accelerator(accelerator)
    stop = "" if why.endswith("?") else "."
    raise RequestError(f"`target` is {text[:200]!r}: {why}{stop} Expected {_FORM}, such as {_EXAMPLE!r}.")


def _parse_devices(text: str, backend: Backend, archs: Sequence[str]) -> tuple[Device, ...]:
    devices: list[Device] = []
    for part in archs:
        match = re.fullmatch(_DEVICES, part)
        arch = None if match is None else backend.parse_arch(match["arch"])
        if match is None or not arch:
            form = f"; expected {backend.arch_form}" if backend.arch_form else ""
            raise RequestError(f"`target` is {text[:200]!r}: {part!r} is no architecture of {backend.name}{form}.")
        if len(devices) + int(match["count"] or 1) > _MAX_DEVICES:
            raise RequestError(f"`target` is {text[:200]!r}: it has more than {_MAX_DEVICES} devices.")
        for _ in range(int(match["count"] or 1)):
            device = Device(backend.name, len(devices), arch=arch)
            devices.append(replace(device, capability=backend.device_capability(device)))
    return tuple(devices)


def _usual_abi(torch: str) -> bool:
    """Whether Torch's Linux packages of a version have the new C++ ABI: since 2.7 (release notes of PyTorch 2.7)."""
    version = MajorMinor.parse(torch)
    return version is None or version >= (2, 7)


def _minor(version: str) -> str:
    return str(MajorMinor.parse(version) or version)


def backend_of(target: Target, argument: str, name: str, given: object = None) -> Backend:
    """The backend of a machine that an argument names, by any of its names.

    Args:
        target: The machine.
        argument: The argument or variable that names the backend.
        name: The backend's name.
        given: The argument as it was given, if it says more than the name.

    Raises:
        RequestError: The machine does not have it: why, or which name was meant.

    Example:
        >>> backend_of(Target.parse("torch2.9-cpu-x86_64-linux"), "device", "cuda", "cuda:1")
        Traceback (most recent call last):
        kernels.errors.BackendUnavailable: `device` is 'cuda:1'; this machine (torch2.9-cpu-x86_64-linux) has cpu.
    """
    with suppress(RequestError):
        return backends.find(name, among=target.backends)
    value = format_value(given or name, 200)
    message = f"`{argument}` is {value}; this machine ({target}) has {', '.join(target.backends)}."
    try:
        known = backends.find(name)
    except RequestError:
        reasons = why_unknown(name)
        hint = "" if reasons else did_you_mean(name, backends.reserved_names())
        if not reasons and not hint:
            reasons = [f"No backend {format_value(name)} is registered; {backends.MISSING_VENDOR}."]
        raise RequestError("\n".join([message + hint, *reasons])) from None
    raise BackendUnavailable("\n".join(filter(None, (message, target.why_not(known.name)))))


def _invalid_json(problem: str) -> RequestError:
    return RequestError(f"The target's JSON is not valid: {problem}. `Target.to_json` writes a valid one.")
