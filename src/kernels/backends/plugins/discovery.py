"""Backends that join without a call: installed packages, JSON files and vendor folders that the environment names.

The registry looks for them at the first question, once in a process. One that fails is a
`Problem`: it is reported, and every other backend works.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels import settings
from kernels.backends import lookup, registry
from kernels.backends.plugins.entry_points import installed_backends, triton_points
from kernels.backends.registration import DeclarationError, Origin, OriginKind, Problem
from kernels.errors import RequestError
from kernels.support.formatting import format_error
from kernels.support.logs import logger, warn_once

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["collect", "register"]

DISCOVERY_LOG = logger(__name__)


def collect() -> list[tuple[Any, Origin] | Problem | None]:
    """Import the installed packages that offer backends; None is one whose import has not finished."""
    return [*installed_backends(settings.disabled_backends())]


def register(arrivals: list[tuple[Any, Origin] | Problem | None]) -> bool:
    """Register installed, declared and vendors' backends in place of those of an earlier search.

    Returns:
        Whether these were all: a package whose import has not finished is missing.
    """
    disabled = settings.disabled_backends()
    registry.forget_discovered(disabled)
    for arrival in arrivals:
        if isinstance(arrival, Problem):
            registry.report(arrival)
        elif arrival is not None:
            _register_installed(*arrival)
    points = triton_points()
    if points:
        _register_for_triton(points, disabled)
    host = lookup.host_name()
    if host in disabled:
        origin = Origin("run-time", "KERNELS_DISABLE_BACKENDS")
        registry.report(Problem(origin, f"KERNELS_DISABLE_BACKENDS: {host!r} cannot be disabled.", (host,)))
    _register_paths(settings.backend_files, "declared", _load_file)
    _register_paths(settings.vendor_folders, "vendor", _load_folder)
    return None not in arrivals


def _register_installed(given: Any, origin: Origin) -> None:
    if isinstance(given, os.PathLike):
        _register_installed_file(given, origin)
        return
    try:
        registry.enter([(given, origin)])
    except Exception as error:  # noqa: BLE001 - a plugin that fails is reported and passed over
        name = vars(type(given)).get("name")
        names = (name,) if isinstance(name, str) else ()
        registry.report(Problem(origin, f"Backend {name or type(given).__name__!r}, {origin}: {_said(error)}", names))


# Most processes need none of these modules.


def _register_installed_file(path: os.PathLike[str], origin: Origin) -> None:
    from kernels.backends.plugins.json_backend import enter_declared

    try:
        enter_declared(path, origin, override=False)
    except Exception as error:  # noqa: BLE001 - a plugin that fails is reported and passed over
        names = error.names if isinstance(error, DeclarationError) else ()
        registry.report(Problem(origin, f"The file that is {origin}: {_said(error)}", names))


def _register_for_triton(points: list[EntryPoint], disabled: frozenset[str]) -> None:
    from kernels.backends.plugins.triton_backends import triton_backends

    for arrival in triton_backends(points, disabled):
        if isinstance(arrival, Problem):
            registry.report(arrival)
        else:
            _register_installed(*arrival)


def _load_file(path: Path) -> object:
    from kernels.backends.plugins.json_backend import load_backends

    return load_backends(path)


def _load_folder(path: Path) -> object:
    from kernels.backends.plugins.vendor_folder import register_vendor

    return register_vendor(path)


def _register_paths(setting: Callable[[], tuple[Path, ...]], kind: OriginKind, load: Callable[[Path], object]) -> None:
    try:
        paths = setting()
    except RequestError:
        return  # `kernels doctor` reports settings that cannot be read
    for path in paths:
        try:
            load(path)
        except Exception as error:  # noqa: BLE001 - a plugin that fails is reported and passed over
            names = error.names if isinstance(error, DeclarationError) else ()
            registry.report(Problem(Origin(kind, str(path)), _said(error), names))
            warn_once(DISCOVERY_LOG, f"{_said(error)}\nIts backends are not available until this is fixed.")


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, (RequestError, TypeError, ValueError)) else format_error(error)
