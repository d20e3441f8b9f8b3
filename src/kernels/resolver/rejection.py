"""Why a build is rejected, as a value."""

from __future__ import annotations

from enum import Enum

from kernels.errors import KernelsError, NotInCache, UntrustedSignature

__all__ = ["NotInMirror", "RejectionKind", "rejection_of"]


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


def rejection_of(error: KernelsError) -> RejectionKind:
    """Why a build is rejected whose metadata could not be read, or whose signature is not valid."""
    kinds = {
        NotInCache: RejectionKind.NOT_LOCAL,
        UntrustedSignature: RejectionKind.SIGNATURE,
        NotInMirror: RejectionKind.NOT_MIRRORED,
    }
    return next((kind for each, kind in kinds.items() if isinstance(error, each)), RejectionKind.METADATA)
