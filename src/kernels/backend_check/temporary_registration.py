"""Register what is to be checked, a backend's name, a JSON file or a vendor folder, and take it back."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from kernels.backends import lookup, registry
from kernels.backends.registration import BackendEntry
from kernels.errors import RequestError

__all__ = ["TemporaryRegistrations", "registration_of"]


def registration_of(what: str) -> Callable[[], Sequence[BackendEntry]]:
    """The function that registers a backend to be checked, and returns its entries.

    Args:
        what: Any name of a registered backend, a JSON file that declares backends, or a vendor folder. A name goes
            before a file of the same name: `./acme` is always a path.

    Raises:
        TypeError: `what` is not a string.
        RequestError: No backend, file or folder has that name.

    Example:
        >>> [entry.name for entry in registration_of("npu")()]
        ['cann']
    """
    if not isinstance(what, str):
        raise TypeError(f"`what`: expected a backend's name or a path, got {what!r} ({type(what).__name__}).")
    try:
        entry = lookup.entry_of(lookup.find(what).name)
    except RequestError as error:
        # Unlike `Path`, these accept text that cannot be a path.
        if os.path.isdir(what):
            return lambda: [_vendor(Path(what))]
        if os.path.isfile(what):
            return lambda: _declared(Path(what))
        if os.sep in what or what.endswith(".json"):
            raise RequestError(
                f"`what`: no such file or folder: {what[:200]!r}. Expected a backend's name, the path of a JSON file "
                "that declares backends, or the path of a vendor folder."
            ) from None
        raise RequestError(f"{error}\nNo file or folder has that name either.") from None
    return lambda: [entry]


def _vendor(folder: Path) -> BackendEntry:
    from kernels.backends.plugins.vendor_folder import register_vendor

    return register_vendor(folder)


def _declared(file: Path) -> Sequence[BackendEntry]:
    from kernels.backends.plugins.json_backend import load_backends

    # A file that the environment names is registered already.
    return [entry for entry in lookup.entries() if _is_from(entry, file)] or load_backends(file)


def _is_from(entry: BackendEntry, file: Path) -> bool:
    return entry.origin.kind == "declared" and Path(entry.origin.place).resolve() == file.resolve()


class TemporaryRegistrations:
    """Undo, at the end of the block, every registration that was made in it.

    Example:
        >>> from kernels import list_backends, register_backend
        >>> from kernels.backends import Backend, BackendProbe
        >>> class Acme(Backend):
        ...     name = device_type = "acme"
        ...
        ...     def probe(self) -> BackendProbe:
        ...         return BackendProbe()
        >>> with TemporaryRegistrations():
        ...     register_backend(Acme())
        >>> "acme" in [entry.name for entry in list_backends()]
        False
    """

    def __enter__(self) -> TemporaryRegistrations:
        lookup.entries()  # the environment's backends are registered first
        self._before = [entry.given for each in registry.registered() for entry in each.layers()]
        self.left = False
        return self

    def __exit__(self, *_: object) -> None:
        self.left = True
        self.take_back()

    def take_back(self) -> None:
        """Unregister what was not there before; also for a registration that ends too late."""
        for name in [entry.name for entry in registry.registered()]:
            while (entry := _registered(name)) is not None and not self._was_there(entry):
                registry.unregister_backend(name)

    def _was_there(self, entry: BackendEntry) -> bool:
        return any(entry.given is given for given in self._before)


def _registered(name: str) -> BackendEntry | None:
    return next((entry for entry in registry.registered() if entry.name == name), None)
