"""What joins without being called: installed packages, declared files, vendors' folders, as the environment says.

Looked for at the first question about backends, and again when the environment's answer has changed. What cannot come
in is a `Problem`: it breaks the call that needs it, and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from kernels import settings
from kernels.backends import lookup, registry
from kernels.backends.plugins.entry_points import Unfinished, installed_backends
from kernels.backends.registration import Entry, Origin, Problem
from kernels.errors import RequestError
from kernels.support.formatting import format_error
from kernels.support.warn import warn_once

__all__ = ["discover"]

#: What the last look brought in.
_found: list[Any] = []


def discover() -> bool:
    """Bring in what packages and the environment offer, in place of what an earlier look brought in.

    Returns:
        Whether all of it was there to be looked at; a package that is being imported is not yet.
    """
    disabled = settings.disabled_backends()
    registry.renew(lambda entry: not any(entry.given is each for each in _found), disabled)
    _found.clear()
    complete = True
    for arrival in installed_backends(disabled):
        if isinstance(arrival, Unfinished):
            complete = False
        elif isinstance(arrival, Problem):
            registry.report(arrival)
        else:
            _installed(*arrival)
    always = lookup.host().name
    if always in disabled:
        origin = Origin("run-time", "KERNELS_DISABLE_BACKENDS")
        problem = f"KERNELS_DISABLE_BACKENDS names {always!r}, which cannot be left out."
        registry.report(Problem(origin, problem, (always,)))
    _each(settings.backend_files, "declared", _declared)
    _each(settings.vendor_folders, "vendor", _vendor)
    return complete


def _installed(given: Any, origin: Origin) -> None:
    try:
        registry.enter([(given, origin)])
    except Exception as error:  # noqa: BLE001 - a stranger's object
        name = vars(type(given)).get("name")
        names = (name,) if isinstance(name, str) else ()
        registry.report(Problem(origin, f"Backend {name or type(given).__name__!r}, {origin}: {_said(error)}", names))
    else:
        _found.append(given)


# What most processes never need is imported by those that do.


def _declared(path: Path) -> list[Entry]:
    from kernels.backends.plugins.json_backend import load_backends

    return load_backends(path)


def _vendor(path: Path) -> list[Entry]:
    from kernels.backends.plugins.vendor_folder import register_vendor

    return [register_vendor(path)]


def _each(paths: Callable[[], Iterable[Path]], kind: Any, bring: Callable[[Path], Iterable[Entry]]) -> None:
    try:
        named = list(paths())
    except RequestError:
        return  # `kernels doctor` tells of settings that cannot be read
    for path in named:
        try:
            _found.extend(entry.given for entry in bring(path))
        except Exception as error:  # noqa: BLE001 - a vendor's code
            message = _said(error)
            registry.report(Problem(Origin(kind, str(path)), message, tuple(getattr(error, "names", ()))))
            warn_once(f"{message}\nWhat it says of backends does not count until it is mended.")


def _said(error: Exception) -> str:
    if isinstance(error, (RequestError, TypeError, ValueError)):
        return str(error)
    return format_error(error)
