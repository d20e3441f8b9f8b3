"""The backends there are. Built-in ones and a stranger's enter by the same door."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from kernels.backends.base import Backend
from kernels.errors import RequestError

__all__ = [
    "all_backends",
    "find",
    "generation",
    "get",
    "known",
    "parse_accelerator",
    "register",
    "unregister",
]

_lock = threading.Lock()
# Replaced as a whole, never changed: readers take no lock.
_backends: dict[str, Backend] = {}
_generation = 0

_TEXTS = ("name", "noarch_name", "token", "device_type", "mapping_device", "dispatch_key")
_OTHERS = ("versioned", "checks_archs", "order", "python_depends")
_METHODS = tuple(name for name, member in vars(Backend).items() if callable(member) and not name.startswith("_"))


def register(backend: Backend) -> None:
    """Add a backend, so that every part of the package knows it; a target probed earlier is probed again.

    Args:
        backend: A `Backend`, or any object with its members.

    Raises:
        TypeError: A member is missing or of the wrong kind.
        ValueError: Another backend already has its name, noarch name or token.
    """
    _check_members(backend)
    global _backends, _generation
    with _lock:
        if _backends.get(backend.name) is backend:
            return
        for other in _backends.values():
            for member in ("name", "noarch_name", "token"):
                if getattr(other, member) == getattr(backend, member):
                    raise ValueError(
                        f"`{member}` is {getattr(backend, member)!r}, which backend {other.name!r} already has."
                    )
        added = [*_backends.values(), backend]
        _backends = {each.name: each for each in sorted(added, key=lambda each: each.order)}
        _generation += 1


def unregister(name: str) -> None:
    """Remove a backend.

    Raises:
        RequestError: None is registered under that name.
    """
    global _backends, _generation
    with _lock:
        if name not in _backends:
            raise _unknown(name, _backends)
        _backends = {key: each for key, each in _backends.items() if key != name}
        _generation += 1


def generation() -> int:
    """A number that changes whenever a backend is added or removed."""
    return _generation


def all_backends() -> tuple[Backend, ...]:
    """Every registered backend, in the order in which one is chosen when none is named."""
    return tuple(_backends.values())


def get(name: str) -> Backend:
    """The backend with that name, as metadata's `backend.type` has it.

    Raises:
        RequestError: There is none; the message lists those there are.

    Example:
        >>> get("cann").device_type
        'npu'
    """
    backend = _backends.get(name)
    if backend is None:
        raise _unknown(name, _backends)
    return backend


def known(name: str) -> Backend | None:
    """The backend with that name, or None: a build for every backend may name one that is not known here.

    Example:
        >>> known("abacus") is None
        True
    """
    return _backends.get(name)


def find(name: str, among: Iterable[str] | None = None) -> Backend:
    """The backend with that name, by any of its four: own, noarch, accelerator token, Torch device.

    Where one backend's device type is another's name, the own name wins; `among` leaves only backends that are there.

    Args:
        name: The name to look for.
        among: Names of the backends to consider, default all.

    Raises:
        TypeError: `name` is not a string.
        RequestError: No backend has that name; the message lists those allowed.

    Example:
        >>> find("npu").name, find("cu").name, find("cuda", among=["rocm", "cpu"]).name
        ('cann', 'cuda', 'rocm')
    """
    if not isinstance(name, str):
        raise TypeError(f"`backend` is {name!r}, a {type(name).__name__}; allowed is a backend's name.")
    known = _backends
    candidates = known if among is None else {each: known[each] for each in among if each in known}
    if name in candidates:
        return candidates[name]
    # A backend's further names, those unique to it before the Torch device that two may share.
    for backend in candidates.values():
        if name in (backend.noarch_name, backend.token):
            return backend
    for backend in candidates.values():
        if name in backend.device_names():
            return backend
    raise _unknown(name, candidates)


def parse_accelerator(text: str) -> tuple[Backend, Any] | None:
    """The backend and version that a compiled variant's accelerator part names, or None.

    Example:
        >>> backend, version = parse_accelerator("cu128")
        >>> backend.name, str(version)
        ('cuda', '12.8')
    """
    for backend in _backends.values():
        found = backend.parse_accelerator(text)
        if found is not None:
            return backend, found.version
    return None


def _unknown(name: str, known: Iterable[str]) -> RequestError:
    names = [each for key in known for each in _backends[key].device_names() if key in _backends]
    return RequestError(f"`backend` is {name!r}; allowed is one of {', '.join(dict.fromkeys(names))}.")


def _check_members(backend: Any) -> None:
    kind = type(backend).__name__
    missing = [name for name in (*_TEXTS, *_OTHERS, *_METHODS) if not hasattr(backend, name)]
    if missing:
        raise TypeError(f"`backend` is a {kind} without {', '.join(missing)}; see kernels.backends.Backend.")
    for name in _TEXTS:
        value = getattr(backend, name)
        if not isinstance(value, str) or not value:
            raise TypeError(f"`backend.{name}` of {kind} is {value!r}; allowed is a name.")
    for name in _METHODS:
        if not callable(getattr(backend, name)):
            raise TypeError(f"`backend.{name}` of {kind} is {getattr(backend, name)!r}; allowed is a method.")
