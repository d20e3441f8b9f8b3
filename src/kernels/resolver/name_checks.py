"""What a build's name says against using it on a machine, and what would help. Pure: names and a `Target`."""

from __future__ import annotations

from collections.abc import Callable

from kernels import backends
from kernels.backends import Backend
from kernels.resolver.decision import RejectionKind, VariantRejected
from kernels.resolver.target import Target
from kernels.resolver.variant import UNIVERSAL, Variant
from kernels.support.version import MajorMinor

__all__ = ["name_misfit", "other_backend"]


def name_misfit(variant: Variant, target: Target, backend: Backend) -> VariantRejected | None:
    """The first check that a variant's name fails, with its remedy if it fails no other one; None if it fails none.

    Args:
        variant: The variant.
        target: The machine it would run on.
        backend: The backend to choose for.

    Example:
        >>> from kernels.resolver.variant import parse_variant
        >>> machine = Target.parse("torch2.9-cpu-x86_64-linux")
        >>> name_misfit(parse_variant("torch28-cpu-x86_64-linux"), machine, backends.get("cpu")).remedy
        'Torch 2.8'
    """
    rejected: VariantRejected | None = None
    for kind, check in _CHECKS.items():
        found = check(variant, target, backend)
        if found is None:
            continue
        if rejected is not None:
            return VariantRejected(variant, rejected.reason, rejected.kind)
        reason, remedy = found
        rejected = VariantRejected(variant, reason, kind, remedy)
        if not remedy:
            break
    return rejected


def other_backend(variant: Variant, target: Target) -> str:
    """How to use a build for another backend of the machine; "" if it does not fit for that one either.

    Args:
        variant: The build.
        target: The machine.
    """
    own = backends.known(variant.backend) if variant.backend in target.backends else None
    if own is None or name_misfit(variant, target, own) is not None:
        return ""
    return f'the build for {own.name} with `backend="{own.name}"` (`--backend {own.name}`)'


_Found = tuple[str, str]
"""The reason to reject a variant, and what the machine needs for it, or ""."""


def _backend_check(variant: Variant, target: Target, backend: Backend) -> _Found | None:
    if variant.noarch:
        fits = variant.accelerator in (backend.noarch_name, UNIVERSAL)
    else:
        fits = variant.backend == backend.name
    if fits:
        return None
    if variant.backend == backend.name:
        return f"a noarch build for {backend.name} is called torch-{backend.noarch_name}", ""
    return f"for {variant.backend}, not {backend.name}", ""


def _platform_check(variant: Variant, target: Target, backend: Backend) -> _Found | None:
    if variant.noarch:
        return None
    if variant.os != target.os:
        return f"for {variant.os}, this machine runs {target.os}", ""
    if variant.cpu != target.cpu:
        return f"for {variant.cpu} processors, this machine has {target.cpu}", ""
    reason = backend.platform_reason(target)
    newer = f"macOS {backend.min_macos}" if backend.min_macos and target.os == "darwin" else ""
    return None if reason is None else (reason, newer)


def _python_check(variant: Variant, target: Target, backend: Backend) -> _Found | None:
    # Free-threaded CPython gets a stable ABI of its own only with 3.15 (PEP 803).
    python = MajorMinor.parse(target.python or "")
    if variant.noarch or not target.free_threaded or (python is not None and python >= (3, 15)):
        return None
    return "compiled, and free-threaded Python before 3.15 cannot load it", "a Python that is not free-threaded"


def _framework_check(variant: Variant, target: Target, backend: Backend) -> _Found | None:
    needed = variant.framework_version
    if variant.kind == "tvm-ffi":
        return _same("tvm-ffi", needed, target.tvm_ffi)
    if _is_unbuilt(variant, target, backend):
        has = ", ".join(target.torch_backends) or "none"
        torch = "a Torch" if needed is None else f"Torch {needed}"
        built_for = " ".join(map(str, filter(None, (backend.name, variant.accelerator_version))))
        return f"needs a Torch for {backend.name}, this one is for {has}", f"{torch} that is built for {built_for}"
    if needed is None:
        return None
    if variant.kind == "torch":
        return _same("Torch", needed, target.torch)
    installed = MajorMinor.parse(target.torch or "")
    if installed is None or needed > installed:
        newer = f"Torch {needed} or newer"
        return f"needs {newer}, this machine has {installed or 'none'}", newer
    return None


def _is_unbuilt(variant: Variant, target: Target, backend: Backend) -> bool:
    """Whether a build needs a Torch that is built for the backend, and this one is not."""
    return variant.kind != "tvm-ffi" and target.torch is not None and backend.name not in target.torch_backends


def _same(name: str, needed: MajorMinor | None, version: str | None) -> _Found | None:
    installed = MajorMinor.parse(version or "")
    if needed == installed:
        return None
    same = f"{name} {needed}"
    return f"needs {same}, this machine has {installed or 'none'}", same


def _abi_check(variant: Variant, target: Target, backend: Backend) -> _Found | None:
    if variant.abi is None or target.cxx11_abi is (variant.abi == "cxx11"):
        return None
    if variant.framework_version != MajorMinor.parse(target.torch or ""):
        return None  # another Torch has its own ABI
    has = {True: "cxx11", False: "cxx98", None: "neither"}[target.cxx11_abi]
    return f"built with the C++ ABI {variant.abi}, this Torch has {has}", ""


def _accelerator_check(variant: Variant, target: Target, backend: Backend) -> _Found | None:
    if variant.noarch or _is_unbuilt(variant, target, backend):  # a Torch for the backend brings its version
        return None
    reason = backend.version_reason(variant.accelerator_version, target.backend_version(backend.name))
    return None if reason is None else (reason, f"{backend.name} {variant.accelerator_version}")


#: The checks of a name, in the order in which they are made.
_CHECKS: dict[RejectionKind, Callable[[Variant, Target, Backend], _Found | None]] = {
    RejectionKind.BACKEND: _backend_check,
    RejectionKind.PLATFORM: _platform_check,
    RejectionKind.PYTHON: _python_check,
    RejectionKind.FRAMEWORK: _framework_check,
    RejectionKind.ABI: _abi_check,
    RejectionKind.ACCELERATOR: _accelerator_check,
}
