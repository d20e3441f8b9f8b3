"""A machine as a short string, such as `torch2.9-cu128-x86_64-linux+sm_90`: read and written."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from kernels import backends
from kernels.backends import Device
from kernels.errors import RequestError
from kernels.support.formatting import wrong_type
from kernels.support.version import MajorMinor

if TYPE_CHECKING:
    from kernels.resolver.target import Target

__all__ = ["target_in", "text_of", "usual_abi"]

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


def target_in(text: str, make: type[Target], processor: Callable[[str], str]) -> Target:
    """The machine that a short string describes.

    Args:
        text: The string.
        make: `Target`, which imports this module when it is needed.
        processor: Gives the name of a processor as variants have it.

    Raises:
        TypeError: `text` is not a string.
        RequestError: It does not describe a machine.
    """
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
        abi = match["abi"] == "cxx11" if match["abi"] else usual_abi(torch)
    return make(
        os=system,
        cpu=processor(match["processor"]),
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


def _parse_accelerator(text: str, accelerator: str) -> tuple[backends.Backend, MajorMinor | None]:
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


def _parse_devices(text: str, backend: backends.Backend, archs: Sequence[str]) -> tuple[Device, ...]:
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


def text_of(target: Target) -> str:
    """The string that describes a machine best; it does not say everything.

    Example:
        >>> from kernels import Target
        >>> text_of(Target.parse("py3.13t-rocm7.10-x86_64-linux+4xgfx942"))
        'py3.13t-rocm7.10-x86_64-linux+4xgfx942'
    """
    parts = []
    if target.torch is not None:
        parts.append(f"torch{_minor(target.torch)}")
        if target.os == "linux" and target.cxx11_abi is not None and target.cxx11_abi != usual_abi(target.torch):
            parts.append("cxx11" if target.cxx11_abi else "cxx98")
    if target.tvm_ffi is not None:
        parts.append(f"tvm-ffi{_minor(target.tvm_ffi)}")
    if target.free_threaded:
        parts.append(f"py{_minor(target.python or '3.0')}t")
    backend = backends.get(target.default_backend)
    version = target.backend_version(backend.name)
    try:
        parts.append(backend.format_accelerator(version))
    except ValueError:  # a version that names cannot carry (rocm 7.10), or one that is not known
        parts.append(f"{backend.token}{version or ''}")
    system = target.os + (target.os_version or "" if target.os == "darwin" else "")
    named = [device.arch for device in target.backend_devices(backend.name) if device.arch]
    runs = groupby(backend.format_arch(arch) for arch in named)
    counted = [(arch, len(list(run))) for arch, run in runs]
    archs = [f"+{count}x{arch}" if count > 1 else f"+{arch}" for arch, count in counted]
    return "-".join([*parts, target.cpu, system]) + "".join(archs)


def usual_abi(torch: str) -> bool:
    """Whether Torch's Linux packages of a version have the new C++ ABI: since 2.7 (release notes of PyTorch 2.7).

    Args:
        torch: The version.

    Example:
        >>> usual_abi("2.6"), usual_abi("2.13")
        (False, True)
    """
    version = MajorMinor.parse(torch)
    return version is None or version >= (2, 7)


def _minor(version: str) -> str:
    return str(MajorMinor.parse(version) or version)
