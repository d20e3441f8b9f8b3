"""The functions of a backend that run before and after the import of a build."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernels.backends import Backend, Device, Stage
from kernels.errors import KernelImportError
from kernels.support.formatting import format_error, format_value

__all__ = ["stages_of"]

_IDLE = {"before_import": Backend.before_import, "after_import": Backend.after_import}


def stages_of(backend: Backend | None, device: Device | None) -> Mapping[str, Stage]:
    """The stages of a backend for a device, by name, without those that do nothing.

    Args:
        backend: The backend of the chosen build, or None.
        device: The device that it was chosen for, or None if none is visible.

    Raises:
        KernelImportError: The backend's `stages` fails, or is not valid.

    Example:
        >>> from kernels import get_backend
        >>> stages_of(get_backend("cpu"), None)
        {}
    """
    if backend is None:
        return {}
    try:
        given: Any = backend.stages(device)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # a vendor's code may raise anything
        raise KernelImportError(f"Backend {backend.name}: its `stages` raised {format_error(error)}.") from error
    if not isinstance(given, Mapping):
        raise KernelImportError(
            f"Backend {backend.name}: expected `stages` to return a dictionary, got {format_value(given)}."
        )
    for name, stage in given.items():
        if name not in _IDLE or not callable(stage):
            raise KernelImportError(
                f"Backend {backend.name}: expected `stages` to hold functions called {', '.join(_IDLE)}, got "
                f"{format_value(name)}: {format_value(stage)}."
            )
    return {name: stage for name, stage in given.items() if getattr(stage, "__func__", None) is not _IDLE[name]}
