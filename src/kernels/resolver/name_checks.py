"""What a variant's name says against using it on a machine. Pure: names and a `Target`."""

from __future__ import annotations

from collections.abc import Callable

from kernels.backends import Backend
from kernels.resolver.rejection import RejectionKind
from kernels.resolver.target import Target
from kernels.resolver.variant import UNIVERSAL, Variant
from kernels.support.version import MajorMinor

__all__ = ["NAME_CHECKS"]


def _backend_reason(variant: Variant, target: Target, backend: Backend) -> str | None:
    if variant.noarch:
        fits = variant.accelerator in (backend.noarch_name, UNIVERSAL)
    else:
        fits = variant.backend == backend.name
    if fits:
        return None
    if variant.backend == backend.name:
        return f"a noarch build for {backend.name} is called torch-{backend.noarch_name}"
    return f"for {variant.backend}, not {backend.name}"


def _platform_reason(variant: Variant, target: Target, backend: Backend) -> str | None:
    if variant.noarch:
        return None
    if variant.os != target.os:
        return f"for {variant.os}, this machine runs {target.os}"
    if variant.cpu != target.cpu:
        return f"for {variant.cpu} processors, this machine has {target.cpu}"
    return backend.platform_reason(target)


def _python_reason(variant: Variant, target: Target, backend: Backend) -> str | None:
    # Free-threaded CPython gets a stable ABI of its own only with 3.15 (PEP 803).
    python = MajorMinor.parse(target.python or "")
    if variant.noarch or not target.free_threaded or (python is not None and python >= (3, 15)):
        return None
    return "compiled, and free-threaded Python before 3.15 cannot load it"


def _framework_reason(variant: Variant, target: Target, backend: Backend) -> str | None:
    needed = variant.framework_version
    if variant.kind == "tvm-ffi":
        return _same("tvm-ffi", needed, target.tvm_ffi)
    if target.torch is not None and backend.name not in target.torch_backends:
        return f"needs a Torch for {backend.name}, this one is for {', '.join(target.torch_backends) or 'none'}"
    if needed is None:
        return None
    if variant.kind == "torch":
        return _same("Torch", needed, target.torch)
    installed = MajorMinor.parse(target.torch or "")
    if installed is None or needed > installed:
        return f"needs Torch {needed} or newer, this machine has {installed or 'none'}"
    return None


def _same(name: str, needed: MajorMinor | None, version: str | None) -> str | None:
    installed = MajorMinor.parse(version or "")
    return None if needed == installed else f"needs {name} {needed}, this machine has {installed or 'none'}"


def _abi_reason(variant: Variant, target: Target, backend: Backend) -> str | None:
    if variant.abi is None or target.cxx11_abi is (variant.abi == "cxx11"):
        return None
    has = {True: "cxx11", False: "cxx98", None: "neither"}[target.cxx11_abi]
    return f"built with the C++ ABI {variant.abi}, this Torch has {has}"


def _accelerator_reason(variant: Variant, target: Target, backend: Backend) -> str | None:
    if variant.noarch:
        return None
    return backend.version_reason(variant.accelerator_version, target.backend_version(backend.name))


#: The checks, in the order in which they are made; each gives the reason to reject a variant, or None.
NAME_CHECKS: dict[RejectionKind, Callable[[Variant, Target, Backend], str | None]] = {
    RejectionKind.BACKEND: _backend_reason,
    RejectionKind.PLATFORM: _platform_reason,
    RejectionKind.PYTHON: _python_reason,
    RejectionKind.FRAMEWORK: _framework_reason,
    RejectionKind.ABI: _abi_reason,
    RejectionKind.ACCELERATOR: _accelerator_reason,
}
