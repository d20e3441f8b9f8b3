"""What this machine cannot build of a new kernel, and which backends have no device code of their own."""

from __future__ import annotations

import os
from pathlib import Path

from kernels.authoring.compile import read_source
from kernels.authoring.compile.plan.build_plan import plan_build, source_state
from kernels.authoring.scaffold.render import has_device_code
from kernels.backends import find
from kernels.errors import CompilerNotFound

__all__ = ["notes_on_building"]


def notes_on_building(folder: os.PathLike[str] | str) -> list[str]:
    """One line for each backend of a new kernel that this machine cannot build for, or that has no device code yet.

    Args:
        folder: The kernel's folder.

    Returns:
        The lines; none for a noarch kernel.

    Raises:
        RequestError: The folder has no valid `build.toml`.

    Example:
        >>> import tempfile
        >>> from kernels.authoring.scaffold import new_kernel
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     notes_on_building(new_kernel("relu", f"{parent}/relu", backends=["cpu"], noarch=True))
        []
    """
    source = read_source(Path(folder))
    if not source.compiled:
        return []
    notes, state = [], source_state(source)
    for name in source.backends:
        if not has_device_code(find(name)):
            notes.append(f"There is no device code for {name} yet: its source uses Torch's own operators.")
        try:
            plan_build(source, state, name)
        except CompilerNotFound as error:
            notes.append(f"This machine cannot build for {name}: {' '.join(str(error).split())}")
    return notes
