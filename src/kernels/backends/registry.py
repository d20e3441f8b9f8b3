"""Which backends are registered: built-in ones and those of plugins, in the same way."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from kernels.backends.deferred import DeferredBackend
from kernels.backends.registration import BackendEntry, Origin, Problem
from kernels.errors import RequestError
from kernels.support.forks import ForkLock
from kernels.support.formatting import did_you_mean, format_value
from kernels.support.logs import logger, warn_once

if TYPE_CHECKING:
    from kernels.backends.base import Backend, BackendLike
else:  # for `typing.get_type_hints`
    Backend = BackendLike = Any

__all__ = [
    "MISSING_VENDOR",
    "check_name",
    "current",
    "enter",
    "forget_discovered",
    "host_among",
    "host_entry",
    "on_leaving",
    "register_backend",
    "registered",
    "report",
    "unknown",
    "unregister_backend",
    "why_unknown",
    "would_override",
]

_log = logger(__name__)

#: What to try where a name may be that of a vendor's backend.
MISSING_VENDOR = (
    "a vendor's backend joins with its package, or a file in KERNELS_BACKENDS_JSON; `kernels backends` lists all"
)

#: How long a thread waits while another one looks for backends. They can wait for each other: one imports a module
#: that asks for backends, the other runs a vendor's code that imports the same module.
_WAIT_SECONDS = 10.0


class _State(NamedTuple):
    """Everything that is known, replaced as a whole and never changed: readers take no lock."""

    registered: Mapping[str, BackendEntry]
    entries: Mapping[str, BackendEntry]  # without the disabled ones
    disabled: frozenset[str] = frozenset()
    problems: tuple[Problem, ...] = ()
    generation: int = 0

    def holding(self, entries: Iterable[BackendEntry]) -> _State:
        registered = {each.name: each for each in sorted(entries, key=lambda each: each.names.order)}
        active = {name: each for name, each in registered.items() if name not in self.disabled}
        return self._replace(registered=registered, entries=active, generation=self.generation + 1)


class _Looking(threading.local):
    """Whether this thread looks for backends now: then it does not look again."""

    now = False


# Held while the state is replaced, never while code of a plugin is imported.
_lock = ForkLock()
_state = _State({}, {})

#: Held by the thread that registers what it has found.
_discovery = ForkLock()
_looking = _Looking()

#: Whether backends were looked for, and all were found that there are.
_looked = False

#: Called with each backend that leaves.
_leaving: list[Callable[[Backend], None]] = []


def register_backend(backend: BackendLike | type[BackendLike], *, override: bool = False) -> None:
    """Add a backend, so that every part of the package knows it at once.

    Args:
        backend: A `kernels.backends.Backend`, or an object with at least its members `name`, `device_type` and `probe`;
            or the class of one, which is called without arguments.
        override: Replace the backend of the same name; `unregister_backend` brings that one back.

    Raises:
        TypeError: A member is missing or of the wrong type; the message names each.
        ValueError: A name is not spelled as names are, or means another backend already; the message names where both
            come from. The registry is unchanged.

    Example:
        >>> from kernels import list_backends, register_backend, unregister_backend
        >>> from kernels.backends import Backend, BackendProbe
        >>> class Acme(Backend):
        ...     name = device_type = "acme"
        ...
        ...     def probe(self) -> BackendProbe:
        ...         return BackendProbe(found=False)
        >>> register_backend(Acme)
        >>> [entry.name for entry in list_backends() if entry.origin.kind == "run-time"]
        ['acme']
        >>> unregister_backend("acme")
    """
    if not isinstance(override, bool):
        raise TypeError(f"`override`: expected a bool, got {override!r} ({type(override).__name__}).")
    caller = sys._getframe(1)
    origin = Origin("run-time", f"{caller.f_code.co_filename}, line {caller.f_lineno}")
    enter([(backend, origin)], override=override)


def enter(
    arrivals: Iterable[tuple[Any, Origin]],
    *,
    override: bool = False,
    unknown_fields: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType({}),
) -> list[BackendEntry]:
    """Add backends from one place: all of them, or none.

    Args:
        arrivals: Each object or its class, or of the built-in ones a `DeferredBackend`, and its origin.
        override: Whether one may replace another of its name.
        unknown_fields: The fields of declarations that were ignored, by the backend's name.

    Returns:
        Their entries, in order; for an object or a vendor's folder that is registered already, its present entry.

    Raises:
        TypeError: As for `register_backend`.
        ValueError: As for `register_backend`.
    """
    new = [_entry(given, origin, override) for given, origin in arrivals]
    new = [replace(each, unknown_fields=unknown_fields.get(each.name, ())) for each in new] if unknown_fields else new
    global _state
    _discover()
    with _lock:
        registered, result = dict(_state.registered), []
        for entry in new:
            layers = _layers(registered.get(entry.name))
            present = _present(entry, layers)
            if present is None:
                above, beneath = _parted(layers, entry.discovered)
                present = replace(entry, overrides=beneath[0] if beneath else None)
                # Also those that others replace: they may come back.
                others = [each for name, other in registered.items() if name != entry.name for each in other.layers()]
                _check_clashes(present, others if override else [*others, *beneath[:1]])
                [registered[entry.name]] = _stacked([*above, present, *beneath])
            result.append(present)
        if registered != _state.registered:
            _state = _state.holding(registered.values())
    return result


def _entry(given: Any, origin: Origin, override: bool) -> BackendEntry:
    if origin.kind == "built-in":
        return BackendEntry(given, origin)
    from kernels.backends.interface_check import validated

    discovered = _looking.now and origin.kind != "run-time"
    return BackendEntry(DeferredBackend.there(validated(given)), origin, given, override, discovered=discovered)


def _check_clashes(entry: BackendEntry, others: list[BackendEntry]) -> None:
    if entry.origin.kind == "built-in":
        return  # the tests have checked those against each other, and they come before all others
    from kernels.backends.conflicts import check_clashes

    check_clashes(entry, others)


def _present(entry: BackendEntry, layers: list[BackendEntry]) -> BackendEntry | None:
    """The entry of the same object, or of the same vendor's folder, where threads register one at once."""
    for each in layers[:1]:
        same = entry.given is not None and (each.given is entry.given or each.deferred.loaded is entry.given)
        if same or (each.origin.kind == "vendor" and each.origin == entry.origin):
            return each
    return None


def would_override(name: str) -> Backend | None:
    """The backend that one of that name would override if it were registered now, or None."""
    _discover()
    beneath = _parted(_layers(_state.registered.get(name)), _looking.now)[1]
    return beneath[0].backend if beneath else None


def _layers(entry: BackendEntry | None) -> list[BackendEntry]:
    return [] if entry is None else [*entry.layers()]


def _parted(layers: list[BackendEntry], discovered: bool) -> tuple[list[BackendEntry], list[BackendEntry]]:
    """The layers above and below one that enters now: what is discovered stays below what a call has overridden."""
    count = 0
    while discovered and count < len(layers) and layers[count].override and not layers[count].discovered:
        count += 1
    return layers[:count], layers[count:]


def _stacked(layers: list[BackendEntry]) -> list[BackendEntry]:
    """The first of some layers in a list, each of them overriding the next one; an empty list for no layers."""
    top: list[BackendEntry] = []
    for each in reversed(layers):
        beneath = top[0] if top else None
        top = [each if each.overrides is beneath else replace(each, overrides=beneath)]
    return top


def unregister_backend(name: str) -> None:
    """Remove a backend; one that it overrides is back.

    Args:
        name: The backend's own name.

    Raises:
        TypeError: `name` is not a string.
        RequestError: No backend is registered under that name, or it is a built-in one.
    """
    global _state
    check_name(name)
    _discover()
    with _lock:
        entry = _state.registered.get(name)
        if entry is None:
            raise unknown(name, _state.registered)
        if entry.origin.kind == "built-in":
            raise RequestError(
                f"`name` is {name!r}, a built-in backend; KERNELS_DISABLE_BACKENDS={name} disables it, and "
                "register_backend(…, override=True) replaces it."
            )
        rest = [other for other in _state.registered.values() if other is not entry]
        _state = _state.holding([*rest, *([entry.overrides] if entry.overrides else [])])
    _announce([entry])


def on_leaving(call: Callable[[Backend], None]) -> None:
    """Call a function with each backend that is removed; it must not fail."""
    _leaving.append(call)


def _announce(entries: Iterable[BackendEntry]) -> None:
    for entry in entries:
        for call in _leaving:
            call(entry.backend)


def registered() -> tuple[BackendEntry, ...]:
    """Every entry, also of disabled backends."""
    return tuple(_state.registered.values())


# Discovery


def _discover() -> None:
    """Look for backends before the first question is answered; what the environment says later is not looked at."""
    global _looked
    # The built-in ones are registered first.
    if _looked or _looking.now or not _state.registered:
        return
    from kernels.backends.plugins.discovery import collect, register

    _looking.now = True
    try:
        # No lock is held: another thread may be importing one of these packages, and ask for backends there.
        arrivals = collect()
        if _discovery.acquire(timeout=_WAIT_SECONDS):
            try:
                _looked = _looked or register(arrivals)
            finally:
                _discovery.release()
        else:
            warn_once(
                _log,
                f"Another thread has looked for backends for {_WAIT_SECONDS:g} seconds: this call knows only those "
                "that are registered now, without the others of installed packages, KERNELS_BACKENDS_JSON and "
                "KERNELS_VENDOR_PATH.",
            )
    finally:
        _looking.now = False


def forget_discovered(disabled: frozenset[str]) -> None:
    """Forget all problems and every discovered backend; one that it overrides is back.

    Args:
        disabled: Names of backends that are left out of every answer; the host backend stays.
    """
    global _state
    with _lock:
        layers = [[*entry.layers()] for entry in _state.registered.values()]
        kept = [top for stack in layers for top in _stacked([each for each in stack if not each.discovered])]
        always = {host_entry(kept).name} if kept else set()
        _state = _state._replace(problems=(), disabled=disabled - always).holding(kept)
    _announce(each for stack in layers for each in stack if each.discovered)


def report(problem: Problem) -> None:
    """Keep what is wrong with a backend, for the call that needs it and for `kernels doctor`."""
    global _state
    with _lock:
        _state = _state._replace(problems=(*_state.problems, problem))


def current() -> _State:
    """Everything that is known, after backends were looked for."""
    _discover()
    return _state


def host_among(entries: Iterable[BackendEntry]) -> Backend:
    """The built-in backend that comes last, or the one that overrides it."""
    return host_entry(entries).backend


def host_entry(entries: Iterable[BackendEntry]) -> BackendEntry:
    """The entry of the same."""
    built_in = [entry for entry in entries if entry.root.origin.kind == "built-in"]
    return max(built_in, key=lambda entry: entry.root.names.order)


def check_name(name: object) -> None:
    """Raise a `TypeError` unless it is text."""
    if not isinstance(name, str):
        raise TypeError(f"`backend`: expected a backend's name, got {name!r} ({type(name).__name__}).")


def unknown(name: str, among: Mapping[str, BackendEntry]) -> RequestError:
    """The error for a name that no backend has, with the reason where one is known."""
    names = dict.fromkeys(each for entry in among.values() for each in entry.device_names())
    message = f"`backend`: expected one of {', '.join(names)}, got {format_value(name)}.{did_you_mean(name, names)}"
    reasons = why_unknown(name) or [f"{MISSING_VENDOR[0].upper()}{MISSING_VENDOR[1:]}."]
    return RequestError("\n".join([message, *reasons]))


def why_unknown(name: str) -> list[str]:
    """Why no backend may have a name, in sentences: it is disabled, or a plugin is broken; empty if neither is so."""
    if name in _state.disabled:
        return [f"{format_value(name)} is disabled by KERNELS_DISABLE_BACKENDS."]
    # A problem without names may be the reason for any name.
    naming = [problem.message for problem in _state.problems if name in problem.names]
    return naming or [problem.message for problem in _state.problems if not problem.names]
