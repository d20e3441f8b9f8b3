"""The name of the variant that a build makes."""

from __future__ import annotations

from kernels.authoring.compile.build_toml.model import KernelSource
from kernels.authoring.compile.frameworks.installed import InstalledFramework
from kernels.backends import Backend
from kernels.resolver.target import Target
from kernels.resolver.variant import Variant

__all__ = ["variant_name"]


def variant_name(source: KernelSource, backend: Backend, framework: InstalledFramework | None) -> str:
    """The variant's name, such as `torch213-cxx11-cu130-x86_64-linux`.

    Args:
        source: The source.
        backend: The backend that is built for.
        framework: What it is compiled against; None for a noarch source.
    """
    if framework is None:
        return Variant.for_noarch(backend.name).name
    target, toolkit = Target.current(), framework.toolkit
    stable = source.stable_abi.get(backend.name)
    if stable is not None:
        return Variant.compiled("torch-stable-abi", stable, backend.name, toolkit, cpu=target.cpu, os=target.os).name
    return Variant.compiled(
        framework.name, framework.version, backend.name, toolkit, cpu=target.cpu, os=target.os, abi=framework.abi
    ).name
