"""Registered backends: one by any of its names, all of them, and what they have in common."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from kernels.backends.base import Backend
from kernels.backends.label import named_devices
from kernels.backends.registration import BackendEntry, BackendList, Problem
from kernels.backends.registry import MISSING_VENDOR, check_name, current, host_among, host_entry, unknown
from kernels.support.formatting import nearest_name
from kernels.support.logs import logger, warn_once
from kernels.support.version import MajorMinor

if TYPE_CHECKING:
    from kernels.backends.builtin import BuiltInName
else:  # for `typing.get_type_hints`
    BuiltInName = str

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
    "host_name",
    "known",
    "list_backends",
    "mention_experimental",
    "named_by_accelerator",
    "named_by_noarch",
    "parse_accelerator",
    "problems",
    "reserved_names",
    "unknown_accelerator",
    "variant_tokens",
]

_log = logger(__name__)


def generation() -> int:
    """A number that changes whenever a backend is added or removed."""
    return current().generation


def all_backends() -> tuple[Backend, ...]:
    """Every registered backend, in the order in which one is chosen when none is named."""
    return tuple(entry.backend for entry in current().entries.values())


def entries() -> tuple[BackendEntry, ...]:
    """Every registered backend with its origin, in the same order."""
    return tuple(current().entries.values())


def list_backends() -> list[BackendEntry]:
    """Every backend with its origin, in the order in which one is chosen when none is named.

    Returns:
        Entries with `name`, `backend`, and `origin` with its `kind` and `place`.

    Example:
        >>> from kernels import list_backends
        >>> {entry.name: str(entry.origin) for entry in list_backends()}["cuda"]
        'built in'
    """
    return BackendList(entries())


def problems() -> tuple[Problem, ...]:
    """Backends of installed packages, JSON files and vendor folders that could not be registered, and why."""
    return current().problems


def variant_tokens() -> tuple[str, ...]:
    """The accelerator tokens of build names, of all backends."""
    return tuple(dict.fromkeys(entry.names.token for entry in entries()))


def device_types() -> tuple[str, ...]:
    """Torch's device types, of all backends."""
    return tuple(dict.fromkeys(entry.names.device_type for entry in entries()))


def dispatch_keys() -> tuple[str, ...]:
    """Torch's dispatch keys, of all backends."""
    return tuple(dict.fromkeys(backend.dispatch_key for backend in all_backends()))


def reserved_names() -> tuple[str, ...]:
    """Every name that means a backend; a new backend cannot use one of them.

    Example:
        >>> {"cann", "npu"} <= set(reserved_names())
        True
    """
    return tuple(
        dict.fromkeys(name for each in entries() for name in (*each.device_names(), each.names.mapping_device))
    )


def host() -> Backend:
    """The backend of the host processor, which is always there."""
    return host_among(entries())


def host_name() -> str:
    """The own name of the backend of the host processor."""
    return host_entry(entries()).name


def entry_of(name: str) -> BackendEntry:
    """The entry of the backend with that own name.

    Raises:
        RequestError: No backend has that name.
    """
    known = current().entries
    if name not in known:
        raise unknown(name, known)
    return known[name]


def get(name: str) -> Backend:
    """The backend with that name, as metadata's `backend.type` has it.

    Raises:
        RequestError: No backend has that name; the message lists the known ones.

    Example:
        >>> get("cann").device_type
        'npu'
    """
    return entry_of(name).backend


def known(name: str) -> Backend | None:
    """The backend with that name, or None.

    Example:
        >>> known("abacus") is None
        True
    """
    entry = current().entries.get(name)
    return None if entry is None else entry.backend


def get_backend(name: BuiltInName | str) -> Backend:
    """The backend with that name, by any of its names.

    Args:
        name: Its own name, noarch name, accelerator token or Torch device type.

    Returns:
        The backend: its names, and what it knows about versions, architectures and this machine's devices.

    Raises:
        TypeError: `name` is not a string.
        RequestError: No backend has that name; the message lists the known ones.

    Example:
        >>> from kernels import get_backend
        >>> get_backend("npu").name
        'cann'
    """
    return find(name)


def find(name: str, among: Iterable[str] | None = None) -> Backend:
    """The backend with that name, by any of its four: own, noarch, accelerator token, Torch device.

    Where one backend's device type is another's name, the own name wins.

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
        raise unknown(name, known)  # not another backend that has it as its token or device type
    # Names that only one backend has go before the Torch device, which two may share.
    for entry in candidates.values():
        if name in (entry.names.noarch_name, entry.names.token):
            return entry.backend
    for entry in candidates.values():
        if name in entry.device_names():
            return entry.backend
    raise unknown(name, candidates)


def unknown_accelerator(text: str) -> str:
    """Why an accelerator part cannot be read, for an error message.

    Example:
        >>> unknown_accelerator("abacus12").partition(" (")[0]
        "'abacus12' is not a known accelerator"
    """
    every, letters = [entry.names for entry in entries()], text.rstrip("0123456789")
    known = ", ".join(each.token for each in every)
    unversioned = [each.name for each in every if not each.versioned and letters == each.token]
    own = [each.token for each in every if letters in named_devices(each)]  # `mps` for metal
    meant = own[0] if own else nearest_name(letters, [each.token for each in every])
    hint = f"did you mean {meant!r}?" if meant is not None else MISSING_VENDOR
    if unversioned:
        hint = f"builds of {unversioned[0]} carry no version"
    return f"{text!r} is not a known accelerator ({known}); {hint}"


def parse_accelerator(text: str) -> tuple[Backend, MajorMinor | None] | None:
    """The backend and version that a compiled variant's accelerator part names, or None.

    Example:
        >>> backend, version = parse_accelerator("cu128")
        >>> backend.name, str(version)
        ('cuda', '12.8')
    """
    found = named_by_accelerator(text)
    return None if found is None else (found[0].backend, found[1])


def named_by_accelerator(text: str) -> tuple[BackendEntry, MajorMinor | None] | None:
    """The same, with the backend's entry: no built-in backend is imported for the name of a build."""
    # The backend that has the text's token is asked first: another one's parser must not take its names.
    for entry in sorted(entries(), key=lambda each: not text.startswith(each.names.token)):
        with suppress(Exception):  # a plugin whose parser fails harms only itself
            found = entry.parse_accelerator(text)
            if found is not None:
                return entry, found.version
    return None


def named_by_noarch(name: str) -> str | None:
    """The own name of the backend that is called so in noarch variants, or None.

    Example:
        >>> named_by_noarch("npu"), named_by_noarch("abacus")
        ('cann', None)
    """
    return next((entry.name for entry in entries() if entry.names.noarch_name == name), None)


def mention_experimental(backend: Backend) -> None:
    """Warn, once a process, when an experimental backend is used.

    Example:
        >>> from kernels import get_backend
        >>> mention_experimental(get_backend("cpu"))
    """
    if backend.experimental:
        origin = next((str(entry.origin) for entry in entries() if entry.deferred.loaded is backend), "not registered")
        warn_once(_log, f"Backend {backend.name!r} ({origin}) is experimental: it may change, or not work yet.")
