"""Way in: an installed package, by an entry point of the group `kernels.backends`."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kernels.backends.base import Backend
from kernels.backends.registration import Origin, Problem
from kernels.support.formatting import format_error

__all__ = ["GROUP", "Unfinished", "installed_backends"]

#: The entry point group. Each entry point names a backend, its class, or a function that returns one.
GROUP = "kernels.backends"


@dataclass(frozen=True)
class Unfinished:
    """A package whose import asks about backends, and is not done yet."""

    point: str


def installed_backends(disabled: frozenset[str]) -> Iterator[tuple[Any, Origin] | Problem | Unfinished]:
    """Each backend that an installed package offers, or why it cannot be had.

    Args:
        disabled: Names of entry points that are left alone: their packages are not imported.
    """
    for point in importlib.metadata.entry_points(group=GROUP):
        if point.name not in disabled:
            yield _offered(point)


def _offered(point: importlib.metadata.EntryPoint) -> tuple[Any, Origin] | Problem | Unfinished:
    dist = point.dist
    origin = Origin("installed", f"{dist.name} {dist.version} ({point.value})" if dist else point.value)
    before = set(sys.modules)
    try:
        return _backend(point.load()), origin
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a stranger's package, which may even call `sys.exit`
        if isinstance(error, (AttributeError, ImportError)) and _being_imported(point.module):
            return Unfinished(point.name)
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == point.module.partition(".")[0]:
                sys.modules.pop(name, None)
        return Problem(origin, f"Backend {point.name!r}, {origin}: {format_error(error).rstrip('.')}.", (point.name,))


def _being_imported(name: str) -> bool:
    return bool(getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False))


def _backend(offered: Any) -> Any:
    # An object with a name is a backend itself, also where it can be called.
    if isinstance(offered, type) or (callable(offered) and not isinstance(offered, Backend) and not _named(offered)):
        return offered()
    return offered


def _named(offered: Any) -> bool:
    return isinstance(getattr(offered, "name", None), str)
