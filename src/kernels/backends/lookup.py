"""Questions about the backends there are: one by any of its names, all of them, what they have in common."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from kernels.backends.base import Backend
from kernels.backends.registration import Entry, Problem
from kernels.backends.registry import MISSING_VENDOR, check_name, current, host_among, unknown

__all__ = [
    "all_backends",
    "device_types",
    "dispatch_keys",
    "entries",
    "entry_of",
    "find",
    "generation",
    "get",
    "get_backend",
    "host",
    "known",
    "list_backends",
    "parse_accelerator",
    "problems",
    "reserved_names",
    "unknown_accelerator",
    "variant_tokens",
]


def generation() -> int:
    """A number that changes whenever a backend is added or removed."""
    return current().generation


def all_backends() -> tuple[Backend, ...]:
    """Every registered backend, in the order in which one is chosen when none is named."""
    return tuple(entry.backend for entry in current().entries.values())


def entries() -> tuple[Entry, ...]:
    """Every registered backend with its origin, in the same order."""
    return tuple(current().entries.values())


def list_backends() -> list[Entry]:
    """Every backend with its origin, in the order in which one is chosen when none is named.

    Returns:
        Built-in, installed, declared and run-time ones: `entry.name`, `entry.backend`, and `entry.origin` with its
        `kind` and `place`.

    Example:
        >>> from kernels import list_backends
        >>> {entry.name: str(entry.origin) for entry in list_backends()}["cuda"]
        'built in'
    """
    return list(entries())


def problems() -> tuple[Problem, ...]:
    """What kept backends of installed packages, declared ones and vendors' folders from coming in."""
    return current().problems


def variant_tokens() -> tuple[str, ...]:
    """The accelerator tokens of build names, of all backends."""
    return _all("token")


def device_types() -> tuple[str, ...]:
    """Torch's device types, of all backends."""
    return _all("device_type")


def dispatch_keys() -> tuple[str, ...]:
    """Torch's dispatch keys, of all backends."""
    return _all("dispatch_key")


def reserved_names() -> tuple[str, ...]:
    """Every name that means a backend: no other may take one of them for its own.

    Example:
        >>> {"cann", "npu"} <= set(reserved_names())
        True
    """
    return tuple(dict.fromkeys(name for each in all_backends() for name in (*each.device_names(), each.mapping_device)))


def _all(member: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(getattr(backend, member) for backend in all_backends()))


def host() -> Backend:
    """The backend that is there when nothing else is: the last built-in one."""
    return host_among(entries())


def entry_of(name: str) -> Entry:
    """The entry of the backend with that own name.

    Raises:
        RequestError: There is none.
    """
    known = current().entries
    if name not in known:
        raise unknown(name, known)
    return known[name]


def get(name: str) -> Backend:
    """The backend with that name, as metadata's `backend.type` has it.

    Raises:
        RequestError: There is none; the message lists those there are.

    Example:
        >>> get("cann").device_type
        'npu'
    """
    return entry_of(name).backend


def known(name: str) -> Backend | None:
    """The backend with that name, or None: a build for every backend may name one that is not known here.

    Example:
        >>> known("abacus") is None
        True
    """
    entry = current().entries.get(name)
    return None if entry is None else entry.backend


def get_backend(name: str) -> Backend:
    """The backend with that name, by any of its names.

    Args:
        name: Its own name, noarch name, accelerator token or Torch device type.

    Raises:
        TypeError: `name` is not a string.
        RequestError: No backend has that name; the message lists those there are.

    Example:
        >>> from kernels import get_backend
        >>> get_backend("npu").name
        'cann'
    """
    return find(name)


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
    check_name(name)
    state = current()
    known = state.entries
    candidates = known if among is None else {each: known[each] for each in among if each in known}
    if name in candidates:
        return candidates[name].backend
    if among is None and name in state.disabled:
        raise unknown(name, known)  # not another one that has it for a further name
    # A backend's further names, those unique to it before the Torch device that two may share.
    for entry in candidates.values():
        if name in (entry.backend.noarch_name, entry.backend.token):
            return entry.backend
    for entry in candidates.values():
        if name in entry.backend.device_names():
            return entry.backend
    raise unknown(name, candidates)


def unknown_accelerator(text: str) -> str:
    """What is wrong with an accelerator part that no backend reads, for an error.

    Example:
        >>> unknown_accelerator("abacus12").partition(" (")[0]
        "'abacus12' is no accelerator known here"
    """
    known = ", ".join(backend.token for backend in all_backends())
    unversioned = [
        each.name for each in all_backends() if not each.versioned and text.rstrip("0123456789") == each.token
    ]
    hint = f"builds of {unversioned[0]} carry no version" if unversioned else MISSING_VENDOR
    return f"{text!r} is no accelerator known here ({known}); {hint}"


def parse_accelerator(text: str) -> tuple[Backend, Any] | None:
    """The backend and version that a compiled variant's accelerator part names, or None.

    Example:
        >>> backend, version = parse_accelerator("cu128")
        >>> backend.name, str(version)
        ('cuda', '12.8')
    """
    # Who has the text's token is asked first: a stranger's parser must not take another's names.
    for backend in sorted(all_backends(), key=lambda each: not text.startswith(each.token)):
        with suppress(Exception, SystemExit):  # one that fails must not take them down either
            found = backend.parse_accelerator(text)
            if found is not None:
                return backend, found.version
    return None
