"""Steps about this machine: the probe, the devices' architectures and capabilities, Torch and other packages."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from kernels.backend_check.checked_backend import CheckedBackend
from kernels.backend_check.naming import mine
from kernels.backends.base import Backend, Device, PythonDependency, allowed_python_depends, listed
from kernels.backends.plugins.json_backend import DeclaredBackend
from kernels.backends.probing import PROBE_SECONDS, checked_probe
from kernels.backends.torch_build import checked_torch_build, installed_torch
from kernels.support.checks import StepResult, StepResults, failed, missing, ok, skipped
from kernels.support.formatting import format_error, plural

__all__ = ["answer_seconds", "architectures", "capability", "other_arch", "probe", "python_depends", "torch"]

#: Devices whose architecture is looked at one by one; a host has at most some 16, and they are mostly alike.
_DEVICES = 64

#: What adds a device that is not renamed.
_UNNAMED = ": its extension calls torch._register_device_module('privateuseone', …), with `is_available()`"

#: A project's name (Python packaging user guide, "Names and normalization").
_PACKAGE = re.compile(r"[A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9._-]{0,126}[A-Za-z0-9]")


def probe(checked: CheckedBackend) -> StepResults:
    """The probe returns in time, with values of the right types."""
    backend = checked.backend
    seconds = answer_seconds(checked.seconds)
    imported = "torch" in sys.modules
    answer = checked_probe(backend, seconds)
    if not imported and "torch" in sys.modules:
        yield missing("the probe imports torch; it must work without, as importing it takes seconds")
    if answer.needs_torch:
        no_torch = _import_torch()
        if no_torch is None:
            answer = checked_probe(backend, seconds)
        else:
            yield missing(f"the probe can tell more with Torch, but {no_torch}")
    checked.probe = answer
    unanswered = [str(each) for each in answer.unanswered]
    yield from map(failed, unanswered)
    yield from (missing(note) for note in answer.notes if note not in unanswered)
    if not answer.found:
        yield missing("not found on this machine; where it is, run this check again")
        return
    version = "" if answer.version is None else f", version {answer.version}"
    count = len(answer.devices)
    archs = [device.arch or "unknown" for device in answer.devices]
    each = f": {listed(archs)}" if any(device.arch for device in answer.devices) else ""
    yield ok(f"found{version}, {plural(count, 'device')}{each}")
    if backend.versioned and answer.version is None:
        yield missing(
            "no version, and names of compiled builds carry one: none of them fits a machine of unknown version"
        )
    if not backend.versioned and answer.version is not None:
        yield missing(f"version {answer.version} is not compared, as versioned is False: name builds without one")
    indices = [device.index for device in answer.devices]
    if indices != list(range(count)):
        yield failed(f"devices are numbered {indices[:8]}; they must be numbered 0, 1, … in the order Torch has them")
    unknown = [device.index for device in answer.devices if not device.arch]
    if backend.checks_archs and unknown:
        yield missing(f"device {unknown[0]} has no arch: builds for other architectures are not rejected")


def answer_seconds(seconds: float) -> float:
    """How long a probe may take in a step that may take `seconds`.

    Example:
        >>> answer_seconds(60.0), answer_seconds(1.0)
        (10.0, 0.5)
    """
    return min(PROBE_SECONDS, seconds / 2)


def _import_torch() -> str | None:
    """Import Torch, for the queries of a declaration; why that fails, or None."""
    try:
        import_module("torch")
    except ModuleNotFoundError as error:
        return "Torch is not installed" if error.name == "torch" else f"Torch cannot be imported: {format_error(error)}"
    except Exception as error:  # noqa: BLE001 - extensions are imported with it
        return f"Torch cannot be imported: {format_error(error)}"
    return None


def architectures(checked: CheckedBackend) -> StepResults:
    """An architecture is read as it is written, a build for it fits, and a build for another does not."""
    backend = checked.backend
    devices = _one_each(checked)
    if not devices:
        yield skipped("no device with an architecture is visible here")
    for device in devices:
        arch = device.arch
        short = backend.format_arch(arch)
        for text in dict.fromkeys((arch, short)):
            read = backend.parse_arch(text)
            if read != arch:
                yield failed(f"device {device.index} has arch {arch!r}; parse_arch({text!r}) is {read!r}, not that")
        if not backend.checks_archs:
            continue
        reason = backend.arch_reason([arch], device)
        if reason is not None:
            yield failed(
                f"arch_reason([{arch!r}], device {device.index}) must be None, it is a build for it: {reason!r}"
            )
        other = other_arch(backend, device)
        if other is None:
            yield failed(
                f"arch_reason turns no other architecture down for device {device.index} ({arch}); it must "
                "return why, or checks_archs must be False"
            )
        else:
            written = arch if short == arch else f"{arch}, {short} for short"
            yield ok(f"{written}; a build for another is rejected: {other[1]}")
    if not backend.checks_archs:
        why = "arch_rule is any" if isinstance(backend, DeclaredBackend) else "checks_archs is False"
        yield missing(f"optional: {why}, so a build for one architecture is tried on every device")


def _one_each(checked: CheckedBackend) -> list[Device]:
    """A device of each architecture."""
    seen: dict[str, Device] = {}
    for device in checked.probe.devices[:_DEVICES]:
        if device.arch:
            seen.setdefault(device.arch, device)
    return list(seen.values())


def other_arch(backend: Backend, device: Device) -> tuple[str, str] | None:
    """An architecture whose builds do not run on a device, and the reason; None where none is found.

    Example:
        >>> from kernels import get_backend
        >>> other_arch(get_backend("rocm"), Device("rocm", 0, arch="gfx942"))[0]
        'gfx952'
    """
    for arch in _neighbours(device.arch):
        reason = backend.arch_reason([arch], device)
        if isinstance(reason, str) and reason:
            return arch, reason
    return None


def _neighbours(arch: str) -> Iterator[str]:
    """Other architectures, spelled like one: with another digit, or another letter at the end."""
    for step in (1, 9, 3, 5):
        for place, digit in enumerate(arch):
            if digit in "0123456789":
                yield f"{arch[:place]}{(int(digit) + step) % 10}{arch[place + 1 :]}"
    yield arch + "x"
    yield "x" + arch


def capability(checked: CheckedBackend) -> StepResults:
    """A device's capability is a number, or none: what that means for mappings with a range."""
    backend = checked.backend
    device = checked.device
    if device is None:
        yield skipped("no device is visible here")
        return
    number: Any = backend.device_capability(device)
    probed = device.capability
    if number is None and probed is not None:
        yield missing(f"its probe says capability={probed}, but mappings ask device_capability, which answers None")
    elif number is None:
        why = "a number in its devices' architectures" if isinstance(backend, DeclaredBackend) else "device_capability"
        yield missing(
            f"optional: {why}; without it a mapping entry with a range of capabilities is never used for its devices"
        )
    elif isinstance(number, bool) or not isinstance(number, int) or number < 0:
        yield failed(f"device_capability(device 0) is {number!r}; it must be a whole number such as 75, or None")
    elif probed not in (None, number):
        yield failed(f"device_capability(device 0) is {number}, but its probe says capability={probed}")
    else:
        yield ok(f"{number}: a mapping entry with a range of capabilities is used if the range contains {number}")


def torch(checked: CheckedBackend) -> StepResults:
    """The installed Torch has the backend's device, and its dispatch key."""
    backend = checked.backend
    if installed_torch() is None:
        yield skipped("Torch is not installed")
        return
    import torch

    found = checked_torch_build(backend, torch)
    given = "torch_build" in mine(backend)
    if found is not None:
        version = "" if found.version is None else f" {found.version}"
        yield ok(f"Torch {torch.__version__} is built for it, or extended with it{version}")
    elif isinstance(backend, DeclaredBackend):
        yield missing(
            f"Torch {torch.__version__} is neither built for device {backend.device_type!r} nor extended with it"
            f"{_UNNAMED if backend.device_type == 'privateuseone' else ''}"
        )
    elif given:
        yield missing(f"torch_build says that Torch {torch.__version__} is neither built for it nor extended with it")
    else:
        yield missing(
            f"torch_build is not given, and no extension gives Torch {torch.__version__} the device "
            f"{backend.device_type!r}: where it comes in another way, return Found() where Torch has it"
        )
    # What Torch does not know is wrong only where the backend says that this Torch is built for it.
    absent = missing if found is None else failed
    known: torch.device | None = None
    try:
        known = torch.device(backend.device_type)
    except RuntimeError:
        how = "import the package that adds it (it renames PrivateUse1, or installs an entry point torch.backends)"
        spelled = backend.device_type == "privateuse1"
        how = "as a device, PrivateUse1 is called 'privateuseone' until it is renamed" if spelled else how
        yield absent(f"this Torch has no device {backend.device_type!r}: {how}")
    else:
        yield ok(f"device {known.type!r} is known to Torch")
    try:
        torch._C._dispatch_key_parse(backend.dispatch_key)
    except (RuntimeError, AttributeError):
        yield failed(f"Torch has no dispatch key {backend.dispatch_key!r}; a renamed device has PrivateUse1")
        return
    key = None if known is None else torch._C._dispatch_key_for_device(known.type)
    if key is not None and key != backend.dispatch_key:
        yield failed(
            f"dispatch_key is {backend.dispatch_key!r}, but Torch's device {backend.device_type!r} has {key!r}"
        )
    else:
        yield ok(f"dispatch key {backend.dispatch_key!r} is known to Torch")


def python_depends(checked: CheckedBackend) -> StepResults:
    """The Python packages that its kernels may ask for have names that can be installed and imported."""
    own = checked.backend.python_depends
    if not own:
        yield ok(f"its kernels may ask for {', '.join(sorted(allowed_python_depends(checked.backend)))}")
    for name, dependency in own.items():
        yield _dependency(name, dependency)


def _dependency(name: str, dependency: PythonDependency) -> StepResult:
    package, module = dependency.package, dependency.module
    if not isinstance(package, str) or _PACKAGE.fullmatch(package) is None:
        return failed(f"{name}: package: expected the name of a project for pip install, got {package!r}")
    if module is None:
        return ok(f"{name}: {package}, of which no module is looked for")
    if not isinstance(module, str) or not all(part.isidentifier() for part in module.split(".")):
        return failed(f"{name}: module: expected the name of a module or None, got {module!r}")
    try:
        there = importlib.util.find_spec(module) is not None
    except ImportError:
        there = False
    except Exception as error:  # noqa: BLE001 - finding a submodule imports its package
        return failed(f"{name}: looking for its module {module} raised {format_error(error)}")
    if there:
        return ok(f"{name}: {package}, installed")
    return missing(f"{name}: not installed here; pip install {package}")
