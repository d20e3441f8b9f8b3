"""The rules of selection as data for a page, which judges builds for a target in the browser.

What a backend decides in Python is asked of it here, with examples: whether a runtime loads what an older minor version
was built for, how architectures are compared, which macOS its builds need. So no page knows a backend by its name, and
a vendor's plugin has its rules as well. `tests/catalog/test_browser.py` compares the page's decisions with `resolve`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec

from kernels import backends
from kernels.backends import Backend, Device
from kernels.catalog.shown import ShownBuild
from kernels.errors import KernelsError
from kernels.resolver.target import Target
from kernels.resolver.variant import UNIVERSAL, Variant
from kernels.support.version import MajorMinor

__all__ = ["backend_label", "backend_rules", "build_facts", "common_targets"]

#: Targets that a page offers: of each system the newest Torch versions, and architectures of the newest one.
_MAX_TARGETS, _MAX_TORCH, _MAX_ARCHS = 40, 2, 8

_SYSTEMS = {"linux": "Linux", "darwin": "macOS", "windows": "Windows"}


def backend_rules() -> dict[str, dict[str, Any]]:
    """The registered backends by name: their tokens, and how versions and architectures are compared.

    Example:
        >>> backend_rules()["cuda"]["version"], backend_rules()["cpu"]["version"]
        ('minor', 'equal')
    """
    rules = {}
    for backend in backends.all_backends():
        with suppress(Exception):  # a plugin that fails harms only itself
            rules[backend.name] = {
                "token": backend.token,
                "noarch": backend.noarch_name,
                "versioned": backend.versioned,
                "version": _version_rule(backend),
                "arch": _arch_rule(backend),
                "macos": backend.min_macos,
            }
    return rules


def _version_rule(backend: Backend) -> str:
    old, new = MajorMinor(7, 1), MajorMinor(7, 2)
    return "minor" if backend.version_reason(old, new) is None else "equal"


def _arch_rule(backend: Backend) -> str:
    if not backend.checks_archs:
        return "none"
    newer = Device(backend.name, 0, arch="8.9")
    older = Device(backend.name, 0, arch="7.5")
    covers = backend.arch_reason(["8.0"], newer) is None and backend.arch_reason(["8.0"], older) is not None
    return "capability" if covers else "equal"


def build_facts(build: ShownBuild) -> str:
    """What a page needs to judge a build, as JSON; "" if its name is not a variant's.

    Args:
        build: The build.
    """
    variant = build.variant
    if variant is None:
        return ""
    facts: dict[str, Any] = {
        "name": build.name,
        "kind": variant.kind,
        "backend": variant.backend,
        "accelerator": variant.accelerator,
        "framework": variant.framework_version,
        "abi": variant.abi,
        "version": variant.accelerator_version,
        "processor": variant.cpu,
        "os": variant.os,
        "type": None if build.metadata is None else build.metadata.backend.type,
        "archs": _known_archs(build),
    }
    return msgspec.json.encode(facts).decode()


def _known_archs(build: ShownBuild) -> list[str]:
    """The architectures of a build that its backend compares; it passes over others."""
    info = None if build.metadata is None else build.metadata.backend
    backend = None if info is None else backends.known(info.type)
    if info is None or backend is None or not backend.checks_archs:
        return []
    nowhere = [Device(backend.name, 0, arch="0.0"), Device(backend.name, 0, arch="1.0")]
    return [arch for arch in info.archs or () if any(backend.arch_reason([arch], each) for each in nowhere)]


def common_targets(builds: Iterable[ShownBuild]) -> list[tuple[str, str]]:
    """Targets that a page offers, as label and text: the systems that the builds are for.

    Args:
        builds: The builds of the page.

    Example:
        >>> build = ShownBuild.of("torch29-cxx11-cu128-x86_64-linux", size=1, files=1, metadata=None, signature=None)
        >>> common_targets([build])
        [('CUDA 12.8, Torch 2.9, Linux x86_64', 'torch2.9-cu128-x86_64-linux')]
    """
    every = list(builds)
    systems: dict[tuple[str, str, str], set[tuple[MajorMinor, MajorMinor | None, str]]] = {}
    archs: dict[str, dict[str, None]] = {}
    noarch: dict[str, None] = {}
    for build in every:
        variant = build.variant
        if variant is None:
            continue
        archs.setdefault(variant.backend, {}).update(dict.fromkeys(_known_archs(build)))
        if variant.cpu is None or variant.os is None or variant.framework_version is None:
            noarch[variant.backend] = None
        else:
            place = systems.setdefault((variant.backend, variant.os, variant.cpu), set())
            place.add((variant.framework_version, variant.accelerator_version, _head(variant)))
    found: dict[str, str] = {}
    for (name, system, cpu), options in sorted(systems.items(), key=_system_order):
        backend = backends.known(name)
        if backend is None:
            continue
        newest = sorted(options, key=lambda each: (each[0], each[1] or MajorMinor(0, 0)), reverse=True)
        tail = f"{cpu}-{system}" + (str(backend.min_macos or "") if system == "darwin" else "")
        for number, (_, version, head) in enumerate(newest[:_MAX_TORCH]):
            label = f"{backend_label(name)}{f' {version}' if version else ''}, {_framework(head)}"
            place_name = f"{_SYSTEMS.get(system, system)} {cpu}"
            chosen = list(archs.get(name, ()))[-_MAX_ARCHS:] if number == 0 else []
            text = f"{head}-{backend.format_accelerator(version)}-{tail}"
            _offer(found, f"{label}, {place_name}", text)
            for arch in chosen:
                _offer_arch(found, backend, f"{label}, {place_name}", text, arch)
    for name in noarch:
        backend = backends.known(name) or (backends.host() if name == UNIVERSAL else None)
        if backend is not None and not any(each[0] == name for each in systems):
            _offer(found, f"{backend_label(backend.name)}, Linux x86_64", f"{backend.token}-x86_64-linux")
    return [(label, text) for text, label in list(found.items())[:_MAX_TARGETS]]


def backend_label(name: str) -> str:
    """How a page calls a backend.

    Example:
        >>> backend_label("cuda"), backend_label("metal")
        ('CUDA', 'Metal')
    """
    backend = backends.known(name)
    if backend is None:
        return "Any backend" if name == UNIVERSAL else name
    own = type(backend).__name__
    return own if own.lower() == name else name


def _system_order(item: tuple[tuple[str, str, str], Any]) -> tuple[int, bool, str, str]:
    (name, system, cpu), _ = item
    backend = backends.known(name)
    return (0 if backend is None else backend.order, system != "linux", system, "" if cpu == "x86_64" else cpu)


def _head(variant: Variant) -> str:
    framework = "tvm-ffi" if variant.kind == "tvm-ffi" else "torch"
    return f"{framework}{variant.framework_version}{f'-{variant.abi}' if variant.abi == 'cxx98' else ''}"


def _framework(head: str) -> str:
    version = head.removesuffix("-cxx98").removeprefix("torch")
    return f"Torch {version}" if head.startswith("torch") else head.replace("tvm-ffi", "tvm-ffi ")


def _offer_arch(found: dict[str, str], backend: Backend, label: str, text: str, arch: str) -> None:
    with suppress(ValueError):
        short = backend.format_arch(arch.partition("+")[0])
        _offer(found, f"{label}, {short}", f"{text}+{short}")


def _offer(found: dict[str, str], label: str, text: str) -> None:
    with suppress(KernelsError):  # a version that no target names
        Target.parse(text)
        found.setdefault(text, label)
