"""One exception tree.

Every error this package raises on purpose is a `KernelsError` and also inherits the built-in exception that code
written for the ecosystem catches: `FileNotFoundError` when no build suits, `ValueError` for a bad request or an
untrusted publisher, `ImportError` for a missing dependency, `RuntimeError` for a client that is too old or a device
that no build covers, `TypeError` for a layer that breaks the rules.
"""

from __future__ import annotations

from kernels.support.text import SafeText

__all__ = [
    "BackendUnavailable",
    "BuildError",
    "CompilerNotFound",
    "DependencyCycle",
    "DependencyOutsideLoad",
    "DigestMismatch",
    "HubUnavailable",
    "IncompatibleClient",
    "InvalidMetadata",
    "InvalidRepository",
    "InvalidVariant",
    "KernelImportError",
    "KernelsError",
    "LayerError",
    "LockError",
    "MappingError",
    "MissingPythonDependency",
    "NoSuitableBuild",
    "NotInCache",
    "NotLocked",
    "RepositoryNotFound",
    "RequestError",
    "RevisionNotFound",
    "StoreError",
    "UnsupportedArch",
    "UntrustedPublisher",
    "UntrustedSignature",
]


class KernelsError(SafeText):
    """Root of every error that this package raises on purpose; its text is safe to print, whatever it quotes."""


class RequestError(KernelsError, ValueError):
    """The caller asked for something that cannot be asked for: an argument, its value and what is allowed."""


class RevisionNotFound(RequestError):
    """The repository exists, the version, branch, tag or commit does not; the message lists what there is."""


class RepositoryNotFound(KernelsError, FileNotFoundError):
    """No source knows a repository of that name (or the token may not see it)."""


class NotInCache(KernelsError, FileNotFoundError):
    """Offline, and what was asked for was never downloaded here."""


class HubUnavailable(KernelsError, ConnectionError):
    """The Hub did not give a usable answer within the bounded time, and the cache could not stand in for it."""


class UntrustedPublisher(KernelsError, ValueError):
    """The repository's publisher is not trusted here; the message says how to allow it."""


class InvalidRepository(KernelsError, ValueError):
    """What a repository contains breaks the format or is hostile: a path that leaves its folder, a redirect loop."""


class InvalidVariant(KernelsError, ValueError):
    """A build folder's name is not a variant name."""


class InvalidMetadata(KernelsError, ValueError):
    """`metadata.json` is missing, is not JSON, or does not have the fields and types of the format."""


class DependencyCycle(KernelsError, ValueError):
    """Kernel dependencies lead back to a kernel that needs them, or nest too deep; the message shows the path."""


class DigestMismatch(KernelsError, ValueError):
    """A file is not the one its digest, or the Hub's listing, describes."""


class NoSuitableBuild(KernelsError, FileNotFoundError):
    """No build suits this machine; the message gives every variant with the reason it was turned down."""


class BackendUnavailable(RequestError, NoSuitableBuild):
    """A backend was named that this machine does not have; the message lists those it has."""


class UnsupportedArch(NoSuitableBuild, RuntimeError):
    """Builds fit this machine by name, but none of them covers the architecture of its device."""


class IncompatibleClient(KernelsError, RuntimeError):
    """The kernel asks for a newer version of this package (`kernels-minver`)."""


class MissingPythonDependency(KernelsError, ImportError):
    """The kernel needs a Python package that is not installed, or one that kernels may not ask for."""


class KernelImportError(KernelsError, ImportError):
    """The kernel's module could not be imported: a bad `id`, a taken namespace, or a failure inside its own code."""


class DependencyOutsideLoad(KernelsError, RuntimeError):
    """`get_kernel_dep` was called by code that is not a kernel being loaded, or for an undeclared dependency."""


class StoreError(KernelsError, OSError):
    """The cache could not be read or written: a full disk, a read-only folder, a lock that cannot be taken."""


class LockError(KernelsError, ValueError):
    """A lock file cannot be read, or pins something else than what is asked for; the message names both."""


class NotLocked(LockError):
    """Only locked kernels may be used, and no lock lists this one."""


class UntrustedSignature(KernelsError, ValueError):
    """A policy asks for a signature, and a build has none, or one that is not valid or of somebody else."""


class MappingError(KernelsError, ValueError):
    """A kernel mapping has no entry for what a layer needs, or an entry that cannot serve the requested mode."""


class LayerError(KernelsError, TypeError):
    """A kernel's layer breaks the rules for layers: members of its own, a constructor, another signature."""


class BuildError(KernelsError, RuntimeError):
    """A kernel's sources could not be built; the message has the compiler's output."""


class CompilerNotFound(BuildError):
    """What is needed to compile a kernel is not installed; the message says what was looked for."""
