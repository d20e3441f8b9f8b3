"""What was decided about a build: one row of the table that `kernels explain` shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Literal

from kernels.errors import KernelsError, NotInCache, UntrustedSignature
from kernels.resolver.variant import UnparsedVariant, Variant
from kernels.support.html_table import TableList

__all__ = ["Decision", "NotInMirror", "RejectionKind", "VariantAccepted", "VariantList", "VariantRejected"]


class NotInMirror(KernelsError):
    """The fact about a build that a mirror does not have, and its origin has."""


class RejectionKind(Enum):
    """Why a variant was rejected, in the order in which the checks are made."""

    NAME = "name"
    """The folder's name is not a variant's."""
    BACKEND = "backend"
    """It is for another backend."""
    PLATFORM = "platform"
    """It is for another operating system or processor."""
    PYTHON = "python"
    """It does not run on this Python."""
    FRAMEWORK = "framework"
    """It is for another version of Torch or tvm-ffi, or that is not installed."""
    ABI = "abi"
    """It is for another C++ ABI than Torch's."""
    ACCELERATOR = "accelerator"
    """It is for another version of the backend."""
    NOT_LOCAL = "not-local"
    """It is not complete on disk, and nothing may be downloaded."""
    NOT_MIRRORED = "not-mirrored"
    """The mirror does not have it, and its origin has."""
    SIGNATURE = "signature"
    """A policy requires a signature, and it has no accepted one."""
    METADATA = "metadata"
    """It is missing, not valid, contradicts the name, or was not read."""
    ARCH = "arch"
    """It does not cover the device's architecture."""

    @staticmethod
    def of(error: KernelsError) -> RejectionKind:
        """Why a build is rejected whose metadata could not be read, or whose signature is not valid.

        Args:
            error: The error.
        """
        kinds = {
            NotInCache: RejectionKind.NOT_LOCAL,
            UntrustedSignature: RejectionKind.SIGNATURE,
            NotInMirror: RejectionKind.NOT_MIRRORED,
        }
        return next((kind for each, kind in kinds.items() if isinstance(error, each)), RejectionKind.METADATA)


@dataclass(frozen=True)
class VariantAccepted:
    """A variant that suits the target.

    Attributes:
        variant: The variant.
        verdict: Whether it is the one to use, or would do.
        why: Why it is.
    """

    variant: Variant
    verdict: Literal["chosen", "accepted"] = field(default="accepted", compare=False)
    # Not `reason`: programs tell by that attribute, as of the existing client's decisions, which variant is rejected.
    why: str = field(default="", compare=False)

    @property
    def row(self) -> tuple[str, str, str]:
        """Its name, verdict and reason."""
        return self.variant.name, self.verdict, self.why


@dataclass(frozen=True)
class VariantRejected:
    """A variant that does not suit the target, and why.

    Attributes:
        variant: The variant; an `UnparsedVariant` where the folder's name is not a variant's.
        reason: Why it was rejected.
        kind: The same, for programs.
        remedy: What the machine needs for it, where no other check fails: `Torch 2.8`; else "".
    """

    variant: Variant | UnparsedVariant
    reason: str
    kind: RejectionKind = field(default=RejectionKind.METADATA, compare=False)
    remedy: str = field(default="", compare=False)
    verdict: ClassVar[Literal["rejected"]] = "rejected"
    """That it is not used."""

    @property
    def row(self) -> tuple[str, str, str]:
        """Its name, verdict and reason."""
        return self.variant.name, self.verdict, self.reason


Decision = VariantAccepted | VariantRejected
"""What was decided about a variant."""


class VariantList(TableList[Decision]):
    """The decision for each build of a kernel: a list that a notebook shows as a table."""

    headings: ClassVar[tuple[str, ...]] = ("variant", "verdict", "reason")

    @staticmethod
    def cells(item: Decision) -> tuple[str, ...]:
        return item.row
