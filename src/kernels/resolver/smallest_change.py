"""What would have to be different on a machine for a build to suit: another Torch, toolkit, Python or macOS.

Pure, as the choice is: a change is named only if the same choice, on the changed machine, finds a build. What a build's
name does not say, its metadata, is read by a function of the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from kernels import backends
from kernels.backends import Backend
from kernels.errors import KernelsError
from kernels.models.metadata import Metadata
from kernels.resolver.least_macos import least_macos
from kernels.resolver.rejection import RejectionKind
from kernels.resolver.selection import Resolution, name_misfits, resolve
from kernels.resolver.target import Target
from kernels.resolver.target_text import usual_abi
from kernels.resolver.variant import Variant
from kernels.support.formatting import format_names
from kernels.support.version import MajorMinor

__all__ = ["ReadMetadata", "smallest_changes", "suits", "torch_for", "unnamed_version"]

ReadMetadata = Callable[[str], "Metadata | KernelsError | None"]
"""Gives the metadata of a build, the error that rejects it, or None where it cannot be read now."""

#: Changes of one kind that are named, and changes that are tried, at most.
_NAMED, _TRIED = 4, 16
#: Builds with the same change whose metadata is looked at.
_BUILDS = 4
#: Builds that are looked at, the nearest misses: published kernels have at most some 60.
_LOOKED_AT = 1000

# The smallest change first: packages of Python's, Python itself, the system.
_FRAMEWORK, _TOOLKIT, _PYTHON, _SYSTEM = range(4)


class _Step(NamedTuple):
    """One difference."""

    rank: int
    distance: tuple[int, ...]
    text: str


class _Change(NamedTuple):
    """What differs, and the machine with it."""

    steps: tuple[_Step, ...]
    target: Target

    @property
    def size(self) -> tuple[bool, int]:
        """A change of the system is larger than several without."""
        return (any(step.rank == _SYSTEM for step in self.steps), len(self.steps))


def smallest_changes(resolution: Resolution, read: ReadMetadata | None = None) -> str:
    """The smallest changes of the machine with which a build suits, in words; "" if there are none.

    Args:
        resolution: The result, without an accepted build.
        read: Reads the metadata of a build; without it, no architecture is compared.

    Example:
        >>> machine = Target.parse("torch2.6-cu126-x86_64-linux+sm_90")
        >>> smallest_changes(resolve(["torch213-cxx11-cu126-x86_64-linux"], machine))
        'Torch 2.13'
    """
    backend = backends.get(resolution.backend)
    groups: dict[tuple[_Step, ...], tuple[_Change, list[str]]] = {}
    for each in resolution.rejected[:_LOOKED_AT]:
        change = _change_for(each.variant, resolution.target, backend) if isinstance(each.variant, Variant) else None
        if change is not None:
            groups.setdefault(change.steps, (change, []))[1].append(each.variant.variant_str)
    ordered = sorted(groups.values(), key=lambda group: (group[0].size, group[0].steps))
    found: list[_Change] = []
    for change, names in ordered[:_TRIED]:
        if found and change.size != found[0].size:
            break
        if suits(resolution, names[:_BUILDS], read, target=change.target):
            found.append(change)
    if not found or len(found[0].steps) > 1:  # alternatives of several things each are hard to read
        return format_names([step.text for step in found[0].steps], " and ") if found else ""
    kinds: dict[int, list[str]] = {}
    for change in found:
        kinds.setdefault(change.steps[0].rank, []).append(change.steps[0].text)
    return "; or ".join(format_names(texts[:_NAMED], " or ") for texts in kinds.values())


def torch_for(backend: str) -> str:
    """The change of a Torch that is not built for a backend.

    Example:
        >>> torch_for("cuda")
        'a Torch that is built for cuda'
    """
    return f"a Torch that is built for {backend}"


def suits(
    resolution: Resolution,
    names: Iterable[str],
    read: ReadMetadata | None = None,
    *,
    target: Target | None = None,
    backend: str | None = None,
    device: int | None = None,
) -> bool:
    """Whether one of these builds would be chosen if one thing were different.

    Args:
        resolution: The result, without an accepted build.
        names: The builds.
        read: Reads the metadata of a build; without it, no architecture is compared.
        target: The machine; the default is the one of the result.
        backend: The backend; the default is the one of the result.
        device: The device's index; the default is the one of the result.
    """
    if device is None and backend is None and resolution.device is not None:
        device = resolution.device.index

    def choose(name: str, known: dict[str, Metadata | KernelsError]) -> Resolution:
        return resolve(
            [name],
            target or resolution.target,
            backend=backend or resolution.backend,
            metadata=known,
            check_arch=read is not None,
            device=device,
        )

    for name in names:
        found = choose(name, {})
        if found.needs_metadata is not None and read is not None:
            facts = read(name)
            if facts is None:
                return True  # its name suits, and no more is known
            found = choose(name, {name: facts})
        if found.best is not None:
            return True
    return False


def unnamed_version(resolution: Resolution) -> str:
    """Why no build can be named for the machine's version of a backend, if one was named so; else "".

    Example:
        >>> machine = Target.parse("torch2.9-rocm7.10-x86_64-linux")
        >>> unnamed_version(resolve(["torch29-cxx11-rocm710-x86_64-linux"], machine)).partition(":")[0]
        "rocm710 in a build's name is rocm 71.0, not 7.10"
    """
    there = resolution.target.backend_version(resolution.backend)
    for each in resolution.rejected:
        if isinstance(each.variant, Variant) and each.variant.backend == resolution.backend:
            named = each.variant.accelerator_version
            if named is not None and _misread(named, there):
                return (
                    f"{each.variant.accelerator} in a build's name is {resolution.backend} {named}, not {there}: the "
                    f"last digit is the minor version, so no build can be named for {there}."
                )
    return ""


def _misread(named: MajorMinor, there: MajorMinor | None) -> bool:
    """Whether a name was meant for a version whose minor has two digits, which no name can carry."""
    return there is not None and named != there and f"{named.major}{named.minor}" == f"{there.major}{there.minor}"


def _change_for(variant: Variant, target: Target, backend: Backend) -> _Change | None:
    """What would have to be different for one build, by its name; None where it is for another kind of machine."""
    steps: list[_Step] = []
    for _ in RejectionKind:
        misfit = next(name_misfits(variant, target, backend), None)
        if misfit is None:
            return _Change(tuple(sorted(steps)), target) if steps else None
        made = _STEPS[misfit.kind](variant, target, backend) if misfit.kind in _STEPS else None
        if made is None:
            return None
        step, target = made
        steps.append(step)
    return None


_Made = tuple[_Step, Target] | None


def _platform(variant: Variant, target: Target, backend: Backend) -> _Made:
    major = (target.os_version or "").split(".")[0]
    if target.os != "darwin" or (variant.os, variant.cpu) != (target.os, target.cpu) or not major.isdecimal():
        return None
    least, there = least_macos(backend), int(major[:4])
    if there >= least:
        return None
    return _Step(_SYSTEM, (least - there,), f"macOS {least}"), replace(target, os_version=f"{least}.0")


def _python(variant: Variant, target: Target, backend: Backend) -> _Made:
    return _Step(_PYTHON, (), "a Python that is not free-threaded"), replace(target, free_threaded=False)


def _framework(variant: Variant, target: Target, backend: Backend) -> _Made:
    needed = variant.framework_version
    if variant.kind == "tvm-ffi":
        step = _Step(_FRAMEWORK, _distance(needed, target.tvm_ffi), f"tvm-ffi {needed}")
        return step, replace(target, tvm_ffi=str(needed))
    built = tuple(dict.fromkeys((*target.torch_backends, backend.name)))
    if target.torch is not None and backend.name not in target.torch_backends:
        step = _Step(_FRAMEWORK, (), torch_for(backend.name))
        return step, replace(target, torch_backends=built)
    if needed is None:
        return None
    newer = " or newer" if variant.kind == "torch-stable-abi" else ""
    step = _Step(_FRAMEWORK, _distance(needed, target.torch), f"Torch {needed}{newer}")
    abi = usual_abi(str(needed)) if target.os == "linux" else None
    return step, replace(target, torch=str(needed), torch_backends=built, cxx11_abi=abi)


def _toolkit(variant: Variant, target: Target, backend: Backend) -> _Made:
    version, there = variant.accelerator_version, target.backends.get(backend.name)
    if version is None or _misread(version, target.backend_version(backend.name)):
        return None
    step = _Step(_TOOLKIT, _distance(version, there), f"{backend.name} {version}")
    return step, replace(target, backends={**target.backends, backend.name: str(version)})


#: How a machine is changed so that a check of the name no longer fails.
_STEPS: dict[RejectionKind, Callable[[Variant, Target, Backend], _Made]] = {
    RejectionKind.PLATFORM: _platform,
    RejectionKind.PYTHON: _python,
    RejectionKind.FRAMEWORK: _framework,
    RejectionKind.ACCELERATOR: _toolkit,
}


def _distance(needed: MajorMinor | None, there: str | None) -> tuple[int, ...]:
    """How far a version is from the one that is there, to sort the nearest first, and of two the newer one."""
    installed = MajorMinor.parse(there or "")
    if needed is None:
        return ()
    if installed is None:
        return (0, -needed.major, -needed.minor)
    if needed.major == installed.major:
        return (0, abs(needed.minor - installed.minor), -needed.minor)
    older = needed.major < installed.major
    return (abs(needed.major - installed.major), older, -needed.minor if older else needed.minor)
