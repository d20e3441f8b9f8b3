"""Steps about stages, and about notes for kernel authors."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from kernels.backend_check.checked_backend import CheckedBackend
from kernels.backend_check.naming import mine
from kernels.backends.base import Backend
from kernels.support.checks import StepResults, failed, missing, ok
from kernels.support.formatting import plural

__all__ = ["notes", "own_stages", "stages"]


def stages(checked: CheckedBackend) -> StepResults:
    """The stages around a build's import are functions with the right arguments and known names."""
    backend = checked.backend
    found: Any = backend.stages(checked.device)
    known = list(Backend().stages(None))
    if not isinstance(found, Mapping):
        yield failed(f"stages: expected a mapping from {', '.join(known)} to functions, got {found!r}")
        return
    unknown = [str(name) for name in found if name not in known]
    if unknown:
        yield failed(f"stages: expected {', '.join(known)}, got {', '.join(unknown)}")
    for name in known:
        if name not in found:
            yield ok(f"{name}: left out")
            continue
        arguments = list(inspect.signature(getattr(Backend, name)).parameters)[1:]
        form = f"{name}({', '.join(arguments)})"
        function: Any = found[name]
        if not callable(function):
            yield failed(f"{name}: expected a function {form}, got {function!r}")
            continue
        try:
            inspect.signature(function).bind(*arguments)
        except TypeError as error:
            yield failed(f"{name} cannot be called as {form}: {error}")
            continue
        except ValueError:  # written in C: nothing tells
            pass
        own = getattr(function, "__func__", function) is not getattr(Backend, name)
        yield ok(f"{name}: {'its own' if own else 'nothing is done'}")


def own_stages(backend: Backend) -> list[str]:
    """The stages that a backend does not have from the base class, and `stages` where it chooses them itself.

    Example:
        >>> from kernels import get_backend
        >>> own_stages(get_backend("cuda"))
        []
    """
    own = mine(backend)
    return [name for name in (*Backend().stages(None), "stages") if name in own]


def notes(checked: CheckedBackend) -> StepResults:
    """Notes for kernel authors, and the vendor's name: all of them optional."""
    backend = checked.backend
    for name in ("vendor", "guidance_block", "kernel_guidance", "cuda_hacks_to_strip"):
        given = getattr(backend, name)
        if not given:
            yield missing(f"optional: {name}")
        elif isinstance(given, str):
            yield ok(f"{name}: {given if name == 'vendor' else plural(len(given.splitlines()), 'line')}")
        else:
            yield ok(f"{name}: {plural(len(given), 'source line')}")
    if backend.experimental:
        yield ok("experimental: using it warns, once")
