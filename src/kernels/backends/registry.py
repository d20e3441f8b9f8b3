"""Which backends are registered, and how they come and go: built-in ones and a stranger's by the same door."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernels.backends.base import Backend, BackendLike
from kernels.backends.conflicts import check_clashes
from kernels.backends.interface_check import checked
from kernels.backends.registration import Entry, Origin, Problem
from kernels.errors import RequestError
from kernels.support.formatting import did_you_mean

__all__ = [
    "MISSING_VENDOR",
    "beneath",
    "check_name",
    "current",
    "enter",
    "host_among",
    "on_first_need",
    "on_leaving",
    "register_backend",
    "registered",
    "renew",
    "report",
    "unknown",
    "unregister_backend",
]

#: What to try where a name may be that of a vendor's backend.
MISSING_VENDOR = "a vendor's backend joins with its package, or a file in KERNELS_BACKENDS_JSON"

_PACKAGE = str(Path(__file__).parents[1])


@dataclass(frozen=True)
class _State:
    """All that is known, replaced as a whole and never changed: readers take no lock."""

    registered: Mapping[str, Entry]
    entries: Mapping[str, Entry]  # without those that are left out
    disabled: frozenset[str] = frozenset()
    problems: tuple[Problem, ...] = ()
    generation: int = 0

    def holding(self, entries: Iterable[Entry]) -> _State:
        registered = {each.name: each for each in sorted(entries, key=lambda each: each.backend.order)}
        active = {name: each for name, each in registered.items() if name not in self.disabled}
        return replace(self, registered=registered, entries=active, generation=self.generation + 1)


# Held while the state is replaced, and never while a stranger's code runs.
_lock = threading.Lock()
_state = _State({}, {})

#: What tells whether to look again, what looks, and what the last look was for.
_key: Callable[[], Hashable] = lambda: None  # noqa: E731
_look: Callable[[], bool] = lambda: True  # noqa: E731
_seen: Hashable = object()

#: The thread that looks, and what others wait on meanwhile; in the middle of an import not for longer than this.
_looker: int | None = None
_turn = threading.Condition()
_IMPORT_SECONDS = 2.0


#: Called with each backend that is not known any more.
_leaving: list[Callable[[Backend], None]] = []


def _renew() -> None:
    # A lock that another thread of the parent held is held for ever in the child.
    global _lock, _turn, _looker
    _lock, _turn, _looker = threading.Lock(), threading.Condition(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def register_backend(backend: BackendLike, *, override: bool = False) -> None:
    """Add a backend, so that every part of the package knows it at once.

    Args:
        backend: A `kernels.backends.Backend`, or an object with at least its members `name`, `device_type` and `probe`.
        override: Stand in for the backend of the same name; `unregister_backend` brings that one back.

    Raises:
        TypeError: A member is missing or of the wrong type; the message names each.
        ValueError: A name is not spelled as names are, or means another backend already; the message names where both
            come from. The registry is as it was.

    Example:
        >>> from kernels import list_backends, register_backend, unregister_backend
        >>> from kernels.backends import Backend, BackendProbe
        >>> class Acme(Backend):
        ...     name = device_type = "acme"
        ...
        ...     def probe(self) -> BackendProbe:
        ...         return BackendProbe(found=False)
        >>> register_backend(Acme())
        >>> [entry.name for entry in list_backends() if entry.origin.kind == "run-time"]
        ['acme']
        >>> unregister_backend("acme")
    """
    if not isinstance(override, bool):
        raise TypeError(f"`override` is {override!r}, a {type(override).__name__}; allowed is True or False.")
    enter([(backend, Origin("run-time", _caller()))], override=override)


def enter(arrivals: Iterable[tuple[Any, Origin]], *, override: bool = False) -> list[Entry]:
    """Add backends from one place: all of them, or none.

    Args:
        arrivals: Each object, and how it came here.
        override: Whether one may stand in for another of its name.

    Returns:
        Their entries, in order; for an object that was here already the one it has.

    Raises:
        TypeError: As for `register_backend`.
        ValueError: As for `register_backend`.
    """
    new = [Entry(checked(given), origin, given, override=override) for given, origin in arrivals]
    global _state
    _discover()
    while True:
        state = _state
        registered, result = _with(new, state.registered)
        with _lock:
            # Another thread may have come in while the newcomers were compared with what was there: then once more.
            if _state.registered is state.registered:
                if registered is not None:
                    _state = _state.holding(registered.values())
                return result


def _with(new: Iterable[Entry], there: Mapping[str, Entry]) -> tuple[dict[str, Entry] | None, list[Entry]]:
    """What is registered when others come in, None where nothing changes, and the entry that each of them has."""
    registered = dict(there)
    changed = False
    result = []
    for entry in new:
        present = registered.get(entry.name)
        if present is not None and present.given is entry.given:
            result.append(present)
            continue
        # Also those that others stand in for: they come back.
        others = [each for name, other in registered.items() if name != entry.name for each in other.layers()]
        above, beneath = _parted(present)
        placed = replace(entry, overrides=beneath)
        check_clashes(placed, others if entry.override or beneath is None else [*others, beneath])
        result.append(placed)
        for each in reversed(above):
            placed = replace(each, overrides=placed)
        registered[entry.name], changed = placed, True
    return registered if changed else None, result


def beneath(name: str) -> Backend | None:
    """The backend upon which one of that name would be laid that enters now, if there is one."""
    _discover()
    entry = _parted(_state.registered.get(name))[1]
    return None if entry is None else entry.backend


def _parted(entry: Entry | None) -> tuple[list[Entry], Entry | None]:
    """The layers above one that enters now, the topmost first, and what lies beneath it.

    What is found in the environment stays below what a call has put in the place of another.
    """
    above = []
    while _looker == threading.get_ident() and entry is not None and entry.origin.kind == "run-time" and entry.override:
        above.append(entry)
        entry = entry.overrides
    return above, entry


def unregister_backend(name: str) -> None:
    """Remove a backend; one that it stood in for is back.

    Args:
        name: The backend's own name.

    Raises:
        TypeError: `name` is not a string.
        RequestError: None is registered under that name, or it is a built-in one.
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
                f"`name` is {name!r}, a built-in backend; KERNELS_DISABLE_BACKENDS={name} leaves it out, and "
                "register_backend(…, override=True) puts another in its place."
            )
        rest = [other for other in _state.registered.values() if other is not entry]
        _state = _state.holding([*rest, *([entry.overrides] if entry.overrides else [])])
    _say_goodbye([entry])


def on_leaving(call: Callable[[Backend], None]) -> None:
    """Have someone told of each backend that is not known any more; it is called once for each, and must not fail."""
    _leaving.append(call)


def registered() -> tuple[Entry, ...]:
    """Every entry, also of backends that are left out."""
    return tuple(_state.registered.values())


def _say_goodbye(entries: Iterable[Entry]) -> None:
    for entry in entries:
        for call in _leaving:
            call(entry.backend)


def on_first_need(key: Callable[[], Hashable], look: Callable[[], bool]) -> None:
    """Have someone look for backends before the first question is answered, and again when the key has changed.

    Args:
        key: What the look depends on, such as settings; asked at every question, so it must be quick.
        look: Calls `renew`, and tells whether all was found: else it looks again at the next question.
    """
    global _key, _look, _seen
    _key, _look, _seen = key, look, object()


def renew(keep: Callable[[Entry], bool], disabled: frozenset[str] = frozenset()) -> None:
    """Forget the problems and every entry that is not to be kept, with what it stood in for in its place.

    Args:
        keep: Whether an entry stays.
        disabled: Names of backends that are left out of every answer; the one that is always there stays.
    """
    global _state
    with _lock:
        remaining = [_remaining(entry, keep) for entry in _state.registered.values()]
        kept = [entry for entry in remaining if entry is not None]
        always = {host_among(kept).name} if kept else set()
        before = [each for entry in _state.registered.values() for each in entry.layers()]
        _state = replace(_state, problems=(), disabled=disabled - always).holding(kept)
    _say_goodbye(each for each in before if not keep(each))


def _remaining(entry: Entry | None, keep: Callable[[Entry], bool]) -> Entry | None:
    if entry is None:
        return None
    beneath = _remaining(entry.overrides, keep)
    if not keep(entry):
        return beneath
    return entry if beneath is entry.overrides else replace(entry, overrides=beneath)


def report(problem: Problem) -> None:
    """Keep what stood in a backend's way, for the call that needs it and for `kernels doctor`."""
    global _state
    with _lock:
        _state = replace(_state, problems=(*_state.problems, problem))


def _discover() -> None:
    """Have what the environment names looked for, once; other threads wait for it.

    No lock is held while a stranger's code is imported: it may ask, or wait for a thread that does.
    """
    global _seen, _looker
    if _key() == _seen:
        return
    me = threading.get_ident()
    with _turn:
        while _looker not in (None, me) and _key() != _seen:
            # The one who looks may wait for the very import that asks here.
            if not _turn.wait(_IMPORT_SECONDS if _importing() else None):
                return
        key = _key()
        if key == _seen or _looker == me:  # looking asks questions of its own
            return
        _looker = me
    complete = False
    try:
        complete = _look()
    finally:
        with _turn:
            _looker = None
            if complete:
                _seen = key
            _turn.notify_all()


def _importing() -> bool:
    """Whether this thread is in the middle of an import."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def current() -> _State:
    """All that is known now, once what the environment names was looked for."""
    _discover()
    return _state


def host_among(entries: Iterable[Entry]) -> Backend:
    """The built-in backend that comes last, or what stands in for it."""
    own = [(root.backend.order, entry) for entry in entries if (root := entry.root).origin.kind == "built-in"]
    return max(own, key=lambda each: each[0])[1].backend


def _caller() -> str:
    """The file and line of the code that called this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}"


def check_name(name: object) -> None:
    """Raise a `TypeError` unless it is text."""
    if not isinstance(name, str):
        raise TypeError(f"`backend` is {name!r}, a {type(name).__name__}; allowed is a backend's name.")


def unknown(name: str, among: Mapping[str, Entry]) -> RequestError:
    """The error for a name that no backend has; where something stood in its way, that is said."""
    names = dict.fromkeys(each for entry in among.values() for each in entry.backend.device_names())
    message = f"`backend` is {name!r}; allowed is one of {', '.join(names)}.{did_you_mean(name, names)}"
    reasons = [*_why_missing(name)] or [f"{MISSING_VENDOR[0].upper()}{MISSING_VENDOR[1:]}."]
    return RequestError("\n".join([message, *reasons]))


def _why_missing(name: str) -> Iterator[str]:
    """What may be why a backend is not here: it is left out, or a problem names it, or could not tell whom it hits."""
    problems = _state.problems
    if name in _state.disabled:
        return iter([f"{name!r} is left out by KERNELS_DISABLE_BACKENDS."])
    naming = [problem.message for problem in problems if name in problem.names]
    return iter(naming or [problem.message for problem in problems if not problem.names])
