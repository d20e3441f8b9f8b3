"""A backend that is imported when more than its label is needed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kernels.backends.base import Backend
from kernels.backends.label import Label, Names

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DeferredBackend"]


class DeferredBackend:
    """A backend that is imported when more than its label is needed.

    Args:
        label: What is known of it until then.
        load: Imports it, and returns the backend or its class.
    """

    def __init__(self, label: Label, load: Callable[[], Any]) -> None:
        self.label = label
        self._load = load
        self._loaded: dict[str, Backend] = {}

    @staticmethod
    def in_module(name: str, label: Label) -> DeferredBackend:
        """The backend in a module: the one class there that is a `Backend`."""

        def load() -> type[Backend]:
            classes = [each for each in [*vars(importlib.import_module(name)).values()] if isinstance(each, type)]
            [family] = [each for each in classes if issubclass(each, Backend) and each.__module__ == name]
            return family

        return DeferredBackend(label, load)

    @staticmethod
    def there(backend: Backend) -> DeferredBackend:
        """A backend that is imported already."""
        deferred = DeferredBackend(Label(Names.of(backend)), lambda: backend)
        deferred._loaded["backend"] = backend
        return deferred

    @property
    def loaded(self) -> Backend | None:
        """The backend, if it was imported."""
        return self._loaded.get("backend")

    def get(self) -> Backend:
        """The backend, imported if need be: one object for everybody.

        Raises:
            TypeError: As for `register_backend`.
            ValueError: As for `register_backend`; or the class has other names than its label.
        """
        found = self._loaded.get("backend")
        if found is not None:
            return found
        from kernels.backends.interface_check import validated

        backend = validated(self._load())
        if Names.of(backend) != self.label.names:
            raise ValueError(f"The label of backend {self.label.names.name!r} differs from {type(backend).__name__}.")
        return self._loaded.setdefault("backend", backend)
