"""Names of build variants, parsed and written.

A variant's name says for what a build was made: `torch213-cxx11-cu130-x86_64-linux` is compiled for Torch 2.13 with the
new C++ ABI, for CUDA 13.0; `torch-cuda` is Python or just-in-time compiled code for CUDA.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Literal

import msgspec

from kernels import backends
from kernels.backends.lookup import named_by_accelerator, named_by_noarch
from kernels.errors import InvalidVariant
from kernels.support.formatting import format_text, format_value
from kernels.support.version import MajorMinor

__all__ = ["UNIVERSAL", "Accelerator", "UnparsedVariant", "Variant", "parse_variant"]

#: The noarch name that fits every backend.
UNIVERSAL = "universal"

#: The longest name that is parsed; published ones have at most some 45 characters.
_MAX_LENGTH = 128

# Numbers without leading zeros: a name that would print differently than it was written is none.
_NUMBER = "(?:0|[1-9][0-9]{0,3})"
_COMPILED = (
    rf"(?:torch(?P<torch>[0-9]{_NUMBER})(?:-(?P<abi>cxx11|cxx98))?"
    rf"|torch-stable-abi(?P<stable>[0-9]{_NUMBER})"
    rf"|tvm-ffi(?P<tvm>[0-9]{_NUMBER}))"
    r"-(?P<accelerator>[a-z][a-z0-9_.]*)-(?P<processor>[a-z0-9_]+)-(?P<os>[a-z0-9_]+)"
)
_NOARCH = r"torch-(?P<backend>[a-z][a-z0-9_]*)"

Accelerator = tuple[str, MajorMinor | None]
"""A backend's name and version."""

Kind = Literal["torch-stable-abi", "torch", "tvm-ffi", "torch-noarch"]
"""What a variant was built against: Torch's stable ABI, one Torch version, tvm-ffi, or nothing."""
_KINDS: tuple[tuple[str, Kind], ...] = (("torch", "torch"), ("stable", "torch-stable-abi"), ("tvm", "tvm-ffi"))


class Variant(msgspec.Struct, frozen=True):
    """A build variant, as its name describes it.

    Attributes:
        kind: What it was built against: Torch's stable ABI, one Torch version, tvm-ffi, or nothing (noarch).
        backend: The backend's name, or "universal".
        accelerator: The backend and its version as the name spells them: `cu128`, `npu`, `universal`.
        framework_version: Torch's or tvm-ffi's version; None for noarch.
        abi: C++ ABI tag, if there is one.
        accelerator_version: The backend's version, None where it has none and for noarch.
        cpu: Processor architecture; None for noarch.
        os: Operating system; None for noarch.

    Example:
        >>> variant = parse_variant("torch213-cxx11-cu130-x86_64-linux")
        >>> variant.backend, str(variant.accelerator_version), variant.name
        ('cuda', '13.0', 'torch213-cxx11-cu130-x86_64-linux')
    """

    kind: Kind
    backend: str
    accelerator: str
    framework_version: MajorMinor | None = None
    abi: Literal["cxx11", "cxx98"] | None = None
    accelerator_version: MajorMinor | None = None
    cpu: str | None = None
    os: str | None = None

    @staticmethod
    def compiled(
        kind: Kind,
        framework_version: MajorMinor | tuple[int, int],
        backend: str,
        accelerator_version: MajorMinor | tuple[int, int] | None,
        *,
        cpu: str,
        os: str,
        abi: Literal["cxx11", "cxx98"] | None = None,
    ) -> Variant:
        """The variant of a compiled build.

        Args:
            kind: What it is built against.
            framework_version: Torch's or tvm-ffi's version.
            backend: The backend's name.
            accelerator_version: The backend's version; None where it has none.
            cpu: Processor architecture.
            os: Operating system.
            abi: C++ ABI tag, if there is one.

        Raises:
            ValueError: No variant name says this.

        Example:
            >>> Variant.compiled("torch", (2, 13), "cuda", (13, 0), cpu="x86_64", os="linux", abi="cxx11").name
            'torch213-cxx11-cu130-x86_64-linux'
        """
        version = None if accelerator_version is None else MajorMinor(*accelerator_version)
        accelerator = backends.get(backend).format_accelerator(version)
        tag = f"-{abi}" if abi else ""
        framework = "".join(str(part) for part in framework_version)
        variant = parse_variant(f"{kind}{framework}{tag}-{accelerator}-{cpu}-{os}")
        if variant.framework_version != tuple(framework_version):
            raise InvalidVariant(f"`framework_version` is {framework_version}; the major must have one digit.")
        return variant

    @staticmethod
    def for_noarch(backend: str | None = None) -> Variant:
        """The noarch variant of a backend, or the universal one.

        Args:
            backend: The backend's name; None for the universal variant.

        Example:
            >>> Variant.for_noarch("cann").name, Variant.for_noarch().name
            ('torch-npu', 'torch-universal')
        """
        return parse_variant(f"torch-{UNIVERSAL if backend is None else backends.get(backend).noarch_name}")

    @property
    def noarch(self) -> bool:
        """Whether nothing in the build was compiled."""
        return self.kind == "torch-noarch"

    @property
    def name(self) -> str:
        """The name, exactly as it was parsed."""
        if self.framework_version is None:
            return f"torch-{self.accelerator}"
        version = f"{self.framework_version.major}{self.framework_version.minor}"
        tag = f"-{self.abi}" if self.abi else ""
        return f"{self.kind}{version}{tag}-{self.accelerator}-{self.cpu}-{self.os}"

    @property
    def variant_str(self) -> str:
        """The same as `name`."""
        return self.name

    def __str__(self) -> str:
        return self.name


class UnparsedVariant(msgspec.Struct, frozen=True):
    """A build folder whose name is not a variant's; it is always rejected.

    Attributes:
        name: The folder's name.
    """

    name: str

    @property
    def variant_str(self) -> str:
        """The same as `name`."""
        return self.name

    def __str__(self) -> str:
        return format_text(self.name)


def parse_variant(name: str, accelerators: MutableMapping[str, Accelerator | None] | None = None) -> Variant:
    """Parse a variant's name.

    Args:
        name: The name.
        accelerators: What accelerator parts were found to name, for further names: the builds of a kernel share a few.

    Returns:
        The variant; its `name` is what was parsed.

    Raises:
        InvalidVariant: It is not a variant's name, or names an accelerator that no registered backend has.

    Example:
        >>> parse_variant("torch-npu").backend
        'cann'
    """
    if not isinstance(name, str) or len(name) > _MAX_LENGTH:
        raise InvalidVariant(f"{format_value(name)} is not a variant's name: at most {_MAX_LENGTH} characters of text.")
    match = re.fullmatch(_NOARCH, name) if name.startswith("torch-") else None
    if match is not None:
        named = match["backend"]
        # One that is not known keeps its name, and fits nowhere.
        return Variant("torch-noarch", named_by_noarch(named) or named, named)
    match = re.fullmatch(_COMPILED, name)
    if match is None:
        raise InvalidVariant(
            f"{format_value(name)} is not a variant's name, such as torch-cuda or torch213-cxx11-cu130-x86_64-linux."
        )
    accelerator = match["accelerator"]
    known = {} if accelerators is None else accelerators
    if accelerator not in known:
        entry = named_by_accelerator(accelerator)
        known[accelerator] = None if entry is None else (entry[0].name, entry[1])
    found = known[accelerator]
    if found is None:
        why = backends.unknown_accelerator(accelerator)
        raise InvalidVariant(f"{format_value(name)}: {why}{'' if why.endswith('?') else '.'}")
    backend, version = found
    group, kind = next((group, kind) for group, kind in _KINDS if match[group] is not None)
    return Variant(
        kind=kind,
        backend=backend,
        accelerator=accelerator,
        framework_version=MajorMinor(int(match[group][0]), int(match[group][1:])),
        abi=match["abi"],  # type: ignore[arg-type]
        accelerator_version=version,
        cpu=match["processor"],
        os=match["os"],
    )
