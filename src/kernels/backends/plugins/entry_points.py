"""Installed packages that offer a backend, with an entry point for this project or for Triton."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kernels.backends.base import Backend
from kernels.backends.registration import Origin, Problem
from kernels.support.formatting import format_error
from kernels.support.installed import entry_points

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["GROUP", "TRITON_GROUP", "installed_backends", "installed_names", "triton_points"]

#: The entry point group. Each entry point names a backend, its class, the path of a JSON file that declares backends,
#: or a function that returns one of these.
GROUP = "kernels.backends"

#: Triton's entry point group. Each entry point names a package with `compiler.py` and `driver.py`.
TRITON_GROUP = "triton.backends"


def installed_backends(disabled: frozenset[str]) -> Iterator[tuple[Any, Origin] | Problem | None]:
    """Each backend that an installed package offers, or why it cannot be loaded; None while its package is imported.

    Args:
        disabled: Names of entry points whose packages are not imported.
    """
    for point in entry_points(GROUP):
        if point.name not in disabled:
            yield _load(point)


def installed_names() -> tuple[str, ...]:
    """The names of the entry points of installed packages; nothing is imported."""
    return tuple(point.name for point in entry_points(GROUP))


def triton_points() -> list[EntryPoint]:
    """The entry points of vendors' packages for Triton; those of Triton itself, or of a fork of it, are left out."""
    return [point for point in entry_points(TRITON_GROUP) if not _is_tritons_own(point)]


def _is_tritons_own(point: EntryPoint) -> bool:
    if not point.value.startswith(f"{TRITON_GROUP}."):
        return False
    record = point.dist.read_text("RECORD") if point.dist is not None else None
    return record is None or re.search(r"^triton/__init__\.py,", record, re.MULTILINE) is not None


def _load(point: EntryPoint) -> tuple[Any, Origin] | Problem | None:
    dist = point.dist
    origin = Origin("installed", f"{dist.name} {dist.version} ({point.value})" if dist else point.value)
    try:
        offered = point.load()
        # An object with a name is a backend, even if it can be called.
        named = isinstance(offered, Backend) or isinstance(getattr(offered, "name", None), str)
        is_factory = isinstance(offered, type) or (callable(offered) and not named)
        return offered() if is_factory else offered, origin
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin that fails is reported and passed over
        spec = getattr(sys.modules.get(point.module), "__spec__", None)
        if isinstance(error, (AttributeError, ImportError)) and getattr(spec, "_initializing", False):
            return None
        return Problem(origin, f"Backend {point.name!r}, {origin}: {format_error(error).rstrip('.')}.", (point.name,))
