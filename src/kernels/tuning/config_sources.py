"""Where tune configurations and heuristics come from, in this order: the user, the vendor, the kernel itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from kernels import backends, settings
from kernels.backends import Backend, Device
from kernels.errors import RequestError
from kernels.loader.registry import KernelPackage, current, packages
from kernels.resolver.choice import resolve
from kernels.resolver.target import Target
from kernels.support.formatting import wrong_type
from kernels.tuning.entries import Operators, TuneFile, read_configs

__all__ = [
    "CONFIGS",
    "HEURISTICS",
    "TuneCandidate",
    "TuneOrigin",
    "candidates",
    "file_identity",
    "hardware",
    "kernel_of",
    "read_cached",
    "section_of",
]

#: The files of a folder, as FlagGems names them.
CONFIGS = "tune_configs.yaml"
HEURISTICS = "heuristics_config_utils.py"

Kind = Literal["user", "vendor", "kernel", "default"]

_KIND_NAMES: dict[Kind, str] = {
    "user": "KERNELS_TUNE_PATH",
    "vendor": "the vendor",
    "kernel": "the kernel",
    "default": "the caller's default",
}


@dataclass(frozen=True)
class TuneOrigin:
    """Where an answer came from.

    Attributes:
        kind: `user` (`KERNELS_TUNE_PATH`), `vendor` (the backend's folder), `kernel` (the calling kernel's own files)
            or `default` (what the caller gave).
        path: The file, or None for a default.
        arch: The architecture whose section it was, or None for the part that holds for all.

    Example:
        >>> str(TuneOrigin("user", Path("/etc/tune_configs.yaml"), "9.0"))
        'KERNELS_TUNE_PATH: /etc/tune_configs.yaml, section 9.0'
    """

    kind: Kind
    path: Path | None = None
    arch: str | None = None

    def __str__(self) -> str:
        where = "" if self.path is None else f": {self.path}"
        return f"{_KIND_NAMES[self.kind]}{where}{'' if self.arch is None else f', section {self.arch}'}"


@dataclass(frozen=True)
class TuneCandidate:
    """A file that may have the operator, and whether it exists."""

    kind: Kind
    path: Path
    exists: bool

    def __str__(self) -> str:
        return f"{_KIND_NAMES[self.kind]}: {self.path}{'' if self.exists else ' (not found)'}"


def hardware(backend: str | None, device: int | str | None, arch: str | None) -> tuple[Backend, Device | None]:
    """The backend to look for, and its device, or None where none is visible.

    Args:
        backend: A backend by any of its names; default the one of this machine.
        device: An index, or Torch's name such as `cuda:1`; default the current device.
        arch: An architecture in place of the device's own; the backend need not be on this machine then.

    Raises:
        TypeError: An argument is of the wrong type.
        RequestError: This machine has no such backend or device, or the backend no such architecture.
    """
    if arch is None:
        chosen = resolve((), Target.current(), backend=backend, device=device)
        backends.mention_experimental(backends.get(chosen.backend))
        return backends.get(chosen.backend), chosen.device
    if not isinstance(arch, str):
        raise wrong_type("arch", "an architecture's name", arch)
    if device is not None:
        raise RequestError(f"`arch` is {arch!r} and `device` is {device!r}; give only one of them.")
    family = backends.get(Target.current().default_backend) if backend is None else backends.find(backend)
    spelled = family.parse_arch(arch)
    if not spelled:
        form = f"; expected {family.arch_form}" if family.arch_form else ""
        raise RequestError(f"`arch` is {arch[:80]!r}, which is not an architecture of {family.name}{form}.")
    return family, Device(family.name, 0, arch=spelled)


def kernel_of(module_name: object) -> KernelPackage | None:
    """The kernel that a module belongs to, else the one that is being imported, if any."""
    package = packages.get(module_name.partition(".")[0]) if isinstance(module_name, str) else None
    return current.get() if package is None else package


def candidates(file: str, backend: Backend, package: KernelPackage | None) -> Iterator[TuneCandidate]:
    """The files to look into, in order.

    Args:
        file: `CONFIGS` or `HEURISTICS`.
        backend: Whose folder to look into.
        package: The calling kernel, or None.

    Raises:
        RequestError: `KERNELS_TUNE_PATH` names a path that does not exist, or a folder with neither file.
    """
    for path in settings.tune_files():
        if os.path.isdir(path):  # unlike `Path.is_dir`, never an error
            if not any(os.path.exists(path / each) for each in (CONFIGS, HEURISTICS)):
                raise RequestError(f"`KERNELS_TUNE_PATH` has {path}, a folder with neither {CONFIGS} nor {HEURISTICS}.")
            yield _candidate("user", path / file)
        elif not os.path.exists(path):
            raise RequestError(f"`KERNELS_TUNE_PATH` has {path}, which does not exist.")
        elif file == CONFIGS:
            yield TuneCandidate("user", path, exists=True)
    if backend.folder is not None:
        yield _candidate("vendor", backend.folder / file)
    if package is not None:
        # In older builds the package is a subfolder.
        for folder in dict.fromkeys((package.init.parent, package.path)):
            candidate = _candidate("kernel", folder / file)
            yield candidate if package.lists(str(candidate.path)) else replace(candidate, exists=False)


def _candidate(kind: Kind, path: Path) -> TuneCandidate:
    return TuneCandidate(kind, path, os.path.exists(path))


def section_of(file: TuneFile, op: str, backend: Backend, device: Device | None) -> tuple[str | None, Operators] | None:
    """The part of a file that has an operator's configurations for a device: an architecture's section, or the rest.

    A section is the device's own when it has the name of its architecture; where none is, the section for which a
    build would run on the device is taken, of several the nearest.

    Returns:
        The section's name, or None for the part that holds for all, and its operators; None when neither has it.
    """
    if device is not None and device.arch:
        fitting = {
            arch: spelled for arch, operators in file.archs.items() if op in operators
            for spelled in [_spelled(arch, backend, device)] if spelled is not None
        }  # fmt: skip
        if fitting:
            arch = max(fitting, key=lambda each: _nearness(fitting, each, backend, device))
            return arch, file.archs[arch]
    return (None, file.operators) if op in file.operators else None


def _spelled(arch: str, backend: Backend, device: Device) -> str | None:
    """A section's architecture as the backend spells it, when it is the device's or a build for it runs there."""
    spelled = arch if arch == device.arch else backend.parse_arch(arch)
    if not spelled or (spelled != device.arch and not _runs(spelled, device, backend)):
        return None
    return spelled


def _runs(arch: str, device: Device, backend: Backend) -> bool:
    return backend.checks_archs and backend.arch_reason([arch], device) is None


def _nearness(fitting: dict[str, str], arch: str, backend: Backend, device: Device) -> tuple[bool, bool, int]:
    """By name, by another spelling, else the one that builds for most of the other sections would run on, too."""
    there = Device(backend.name, device.index, arch=fitting[arch])
    return (
        arch == device.arch,
        fitting[arch] == device.arch,
        sum(_runs(each, there, backend) for each in fitting.values()),
    )


_KEPT = 64
_read: dict[Path, tuple[tuple[int, ...], TuneFile]] = {}


def read_cached(path: Path) -> TuneFile:
    """The content of a `tune_configs.yaml`; the file is read again only when it has changed."""
    identity = file_identity(path)
    kept = _read.get(path)
    if kept is not None and kept[0] == identity:
        return kept[1]
    file = read_configs(path)
    if len(_read) >= _KEPT:
        _read.clear()
    _read[path] = (identity, file)
    return file


def file_identity(path: Path) -> tuple[int, ...]:
    """What changes when a file does: its inode, its size in bytes, and the time it was written, in nanoseconds."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}.") from None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
