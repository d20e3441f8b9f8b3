"""The toolkits with which kernels would be built here, and whether they fit Torch."""

from __future__ import annotations

import msgspec

from kernels import backends
from kernels.authoring.compile.frameworks.torch_installation import this_torch
from kernels.authoring.compile.toolchains import Toolkit, toolkit_for
from kernels.diagnosis.finding import Findings
from kernels.errors import CompilerNotFound

__all__ = ["ToolkitReport", "check_toolkits"]

_ONLY_TO_BUILD = "It is needed to build kernels only; those that are built already are loaded without it."


class ToolkitReport(msgspec.Struct, frozen=True):
    """The toolkit that `kernels build` would use for a backend.

    Attributes:
        backend: The backend.
        name: Its name; None if there is none, or none that fits Torch.
        version: Its version.
        folder: Where it is.
        compiler: Its compiler.
        found_by: How it was found.
        torch: The version that Torch was built with; None if Torch is not built for this backend.
    """

    backend: str
    name: str | None = None
    version: str | None = None
    folder: str | None = None
    compiler: str | None = None
    found_by: str | None = None
    torch: str | None = None


def check_toolkits() -> tuple[tuple[ToolkitReport, ...], Findings]:
    """The toolkit of each backend that Torch is built for, and of others that have one here.

    A toolkit that is absent or does not fit is a note: who builds no kernels needs none.
    """
    found, torch = Findings("toolkits"), this_torch()
    reports = []
    for entry in backends.entries():
        language = backends.get(entry.name).device_language
        built = {} if torch is None else torch.builds
        version = built.get(entry.name)
        try:
            toolkit = toolkit_for(language, version, None if torch is None else torch.folder.parent)
        except CompilerNotFound as error:
            if entry.name in built:
                reports.append(ToolkitReport(entry.name, torch=None if version is None else str(version)))
                found.note(f"{entry.name}: {error}", _ONLY_TO_BUILD)
            continue
        if toolkit is not None:
            reports.append(_report(entry.name, toolkit, None if version is None else str(version)))
            for remark in toolkit.remarks:
                found.note(f"{entry.name}: {remark}", _ONLY_TO_BUILD)
    return tuple(reports), found


def _report(backend: str, toolkit: Toolkit, torch: str | None) -> ToolkitReport:
    return ToolkitReport(
        backend=backend,
        name=toolkit.name,
        version=str(toolkit.version),
        folder=str(toolkit.folder),
        compiler=" ".join(toolkit.compiler),
        found_by=toolkit.found_by,
        torch=torch,
    )
