"""Whether the client is new enough for a build, and the Python packages it needs are installed."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from kernels import backends
from kernels._version import __version__
from kernels.errors import IncompatibleClient, KernelsError, MissingPythonDependency, UnsupportedPythonDependency
from kernels.models.metadata import Metadata, Provenance
from kernels.support.logs import logger, warn_once

if TYPE_CHECKING:
    from packaging.version import Version

__all__ = ["check_prerequisites", "unmet_prerequisite"]

_log = logger("kernels.validate")


def check_prerequisites(repo_id: str, variant: str, metadata: Metadata) -> None:
    """Check that this client can load a build, with the Python packages that are installed.

    Raises:
        IncompatibleClient: The build needs a newer version of this package.
        MissingPythonDependency: A Python package is not installed.
        UnsupportedPythonDependency: A Python package is not one that kernels may depend on.
    """
    what = f"Build {variant} of {repo_id}"
    unmet = unmet_prerequisite(metadata)
    if unmet is not None:
        raise type(unmet)(f"{what} {unmet}")
    if metadata.provenance is not None and metadata.provenance.dirty:
        warn_once(
            _log,
            f"{what} was built from a dirty git tree: {_dirty_sources(metadata.provenance)} had uncommitted changes, "
            "so no commit has its sources.",
        )


def unmet_prerequisite(metadata: Metadata, *, here: bool = True) -> KernelsError | None:
    """What a build needs and this machine does not have, as the error of `check_prerequisites` without its subject.

    Args:
        metadata: The build's metadata.
        here: Whether the build is for this machine. For another one, only what no machine can have is an error.

    Example:
        >>> from kernels.models.metadata import BackendInfo, KernelName
        >>> metadata = Metadata("_relu", KernelName("relu"), BackendInfo("cpu"), python_depends=["requests"])
        >>> print(unmet_prerequisite(metadata, here=False))
        depends on the Python package 'requests'; a cpu kernel may depend on einops, helion, tvm-ffi only.
    """
    if here and metadata.kernels_minver is not None and _is_older(__version__, metadata.kernels_minver):
        return IncompatibleClient(
            f"needs kernels>={metadata.kernels_minver}; {__version__} is installed. "
            "Install a newer version from where this one came from (`kernels --version` says it); the kernels of the "
            "package index are another client."
        )
    if not metadata.python_depends:
        return None
    backend = backends.known(metadata.backend.type)
    allowed = backends.GENERAL_PYTHON_DEPENDS if backend is None else backends.allowed_python_depends(backend)
    for name in metadata.python_depends:
        if name not in allowed:
            return UnsupportedPythonDependency(
                f"depends on the Python package {name[:80]!r}; a {metadata.backend.type} kernel may depend "
                f"on {', '.join(sorted(allowed))} only."
            )
        module = allowed[name].module
        if here and module is not None and importlib.util.find_spec(module) is None:
            return MissingPythonDependency(
                f"needs the Python package {name}, which is not installed. "
                f"Install it with: pip install {allowed[name].package}"
            )
    return None


def _dirty_sources(provenance: Provenance) -> str:
    kernel = "the kernel's sources" if provenance.kernel is not None and provenance.kernel.dirty else ""
    builder = "kernel-builder" if provenance.builder is not None and provenance.builder.dirty else ""
    return " and ".join(filter(None, (kernel, builder)))


def _is_older(installed: str, needed: Version) -> bool:
    """Whether this package is older than a kernel needs; not if its version cannot be compared, as in some forks."""
    from packaging.version import InvalidVersion
    from packaging.version import Version as Parsed

    try:
        return Parsed(Parsed(installed).base_version) < needed
    except InvalidVersion:
        return False
