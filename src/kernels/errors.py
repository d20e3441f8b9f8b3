"""The errors that this package raises on purpose: one tree.

Every error is a `KernelsError`, and also the built-in exception that code for the existing client catches:
`FileNotFoundError` when no build suits, `ValueError` for a bad request or an untrusted publisher, `ImportError` for a
missing dependency, `RuntimeError` for a client that is too old or a device that no build covers, `TypeError` for a
layer that breaks the rules. What a Hub does not have is also huggingface_hub's error.
"""

# The classes that are also huggingface_hub's are in sources/hub_errors.py.

from __future__ import annotations

import copy
from typing import TypeVar

from kernels.support.text import CleanError, clean

__all__ = [
    "ArchiveDamaged",
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
    "LockFileNotFound",
    "MappingError",
    "MissingMetadata",
    "MissingPythonDependency",
    "NoModule",
    "NoSuitableBuild",
    "NotInCache",
    "NotLocked",
    "PinnedCommitGone",
    "PublisherUnknown",
    "RepositoryNotFound",
    "RequestError",
    "RevisionNotFound",
    "StoreError",
    "UnsupportedArch",
    "UnsupportedPythonDependency",
    "UnsupportedSpecifier",
    "UntrustedPublisher",
    "UntrustedSignature",
]

_Error = TypeVar("_Error", bound="KernelsError")


class KernelsError(CleanError):
    """Root of the errors that this package raises on purpose; its text is safe to print, whatever it quotes."""

    def reworded(self: _Error, message: str) -> _Error:
        """The same error with another message.

        Args:
            message: The message.
        """
        other = copy.copy(self)
        other.args = (clean(message),)
        return other


class RequestError(KernelsError, ValueError):
    """An argument, a setting or a file of the user is not valid; the message has the value and what was expected."""


class RevisionNotFound(RequestError):
    """The repository exists, but not the version, branch, tag or commit; the message lists those that exist."""


class RepositoryNotFound(KernelsError, FileNotFoundError):
    """No source has a repository of that name, or the token may not read it."""


class NotInCache(KernelsError, FileNotFoundError, ValueError):
    """The process is offline, and the kernel was never downloaded here."""


class HubUnavailable(KernelsError, ConnectionError, ValueError):
    """The Hub or mirror could not be reached, refused access, or gave no usable answer; and the cache has none.

    It is a `ValueError` as well: the existing client asks about the publisher first, and raises one without an answer.

    Attributes:
        refused: Whether it refused access. No other address is asked then: one that has a kernel of the same name must
            not take its place because a token has expired.
    """

    refused = False


class UntrustedPublisher(KernelsError, ValueError):
    """The repository's publisher is not trusted; the message says how to allow it."""


class PublisherUnknown(HubUnavailable, UntrustedPublisher):
    """The repository was found, and nobody could be asked whether its publisher is trusted."""


class InvalidRepository(KernelsError, ValueError):
    """A repository breaks the format or is hostile: a path that leaves its folder, a redirect loop."""


class InvalidVariant(KernelsError, ValueError):
    """The name of a build folder is not a variant name."""


class InvalidMetadata(KernelsError, ValueError):
    """`metadata.json` is missing, is not JSON, or does not have the fields and types of the format."""


class MissingMetadata(InvalidMetadata, FileNotFoundError):
    """There is no `metadata.json`."""


class DependencyCycle(KernelsError, ValueError):
    """Kernel dependencies form a cycle or nest too deep; the message shows the path."""


class DigestMismatch(KernelsError, ValueError):
    """A file differs from its digest, or from the Hub's listing."""


class ArchiveDamaged(DigestMismatch):
    """An archive of a mirror is not the one that its index lists: it was damaged or changed on its way."""


class NoSuitableBuild(KernelsError, FileNotFoundError):
    """No build suits this machine; the message lists every variant with the reason for its rejection."""


class UnsupportedSpecifier(RequestError, NoSuitableBuild):
    """A range of versions, as clients before 0.12 took it, in place of a major version."""


class BackendUnavailable(RequestError, NoSuitableBuild):
    """This machine does not have the requested backend; the message lists those that it has."""


class UnsupportedArch(NoSuitableBuild, RuntimeError):
    """Builds suit this machine by name, but none covers the architecture of its device."""


class IncompatibleClient(KernelsError, RuntimeError):
    """The kernel needs a newer version of this package (`kernels-minver`)."""


class MissingPythonDependency(KernelsError, ImportError):
    """A Python package that is needed is not installed."""


class UnsupportedPythonDependency(MissingPythonDependency, ValueError):
    """A kernel needs a Python package that kernels may not need."""


class KernelImportError(KernelsError, ImportError):
    """The kernel's module cannot be imported: a bad `id`, a taken namespace, or its code calls `sys.exit`.

    An error that the kernel's own code raises keeps its type.
    """


class NoModule(KernelsError, FileNotFoundError):
    """The build has no module: neither `__init__.py` nor `<name>/__init__.py`."""


class DependencyOutsideLoad(KernelsError, RuntimeError):
    """`get_kernel_dep` was called outside of a kernel's import, or for an undeclared dependency."""


class StoreError(KernelsError, OSError):
    """The cache cannot be read or written: a full disk, a read-only folder, a lock that another process holds."""


class LockError(KernelsError, ValueError):
    """A lockfile cannot be read, or does not pin what is requested; the message names both."""


class LockFileNotFound(LockError, FileNotFoundError):
    """There is no lockfile at that path."""


class NotLocked(LockError):
    """Only locked kernels may be loaded, and no lockfile lists this one."""


class PinnedCommitGone(LockError, RevisionNotFound):
    """A lockfile pins a commit that the Hub or mirror no longer has; the message names the lockfile and the commit."""


class UntrustedSignature(KernelsError, ValueError):
    """The policy requires a signature, and the build's is missing, not valid, or by another signer."""


class MappingError(KernelsError, ValueError):
    """A kernel mapping has no entry for a layer, or its entry does not support the requested mode."""


class LayerError(KernelsError, TypeError):
    """A kernel's layer breaks the rules for layers: members of its own, a constructor, another signature."""


class BuildError(KernelsError, RuntimeError):
    """A kernel's sources cannot be built; the message has the compiler's output."""


class CompilerNotFound(BuildError):
    """A tool that compiling a kernel needs is not installed; the message lists where it was looked for."""
