"""The functions in a `heuristics_config_utils.py`, which compute an operator's parameters."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from kernels.backends import Backend
from kernels.errors import RequestError
from kernels.loader.import_system import all_or_nothing
from kernels.loader.registry import KernelPackage
from kernels.support.forks import ForkLock
from kernels.support.formatting import format_error, format_value
from kernels.tuning.config_sources import HEURISTICS, TuneCandidate, file_identity

__all__ = ["heuristics_of"]

_TABLE = "HEURISTICS_CONFIGS"
_MODULE = HEURISTICS.removesuffix(".py")


def heuristics_of(
    candidate: TuneCandidate, op: str, backend: Backend, package: KernelPackage | None
) -> Mapping[str, Callable[[Mapping[str, Any]], Any]] | None:
    """An operator's functions in a file, by parameter; None where the file does not have the operator.

    Args:
        candidate: The file, which exists.
        op: The operator.
        backend: Whose folder a vendor's file is in.
        package: The kernel whose folder a kernel's file is in.

    Raises:
        RequestError: The file fails, or its content is wrong.
        Exception: What a kernel's file raises.
    """
    if candidate.kind == "vendor":
        from kernels.backends.plugins.vendor_folder import vendor_module

        module = vendor_module(backend, _MODULE)
    elif candidate.kind == "kernel":
        module = _of_kernel(package, candidate.path)
    else:
        module = _of_user(candidate.path)
    return None if module is None else _functions(candidate.path, module, op)


def _functions(path: Path, module: ModuleType, op: str) -> Mapping[str, Callable[[Mapping[str, Any]], Any]] | None:
    table = getattr(module, _TABLE, None)
    if not isinstance(table, Mapping):
        raise RequestError(f"{path}: `{_TABLE}` is {format_value(table)}; expected a dictionary of operators.")
    if op not in table:
        return None
    functions = table[op]
    if not isinstance(functions, Mapping):
        raise RequestError(
            f"{path}: `{_TABLE}[{op!r}]` is {format_value(functions)}; expected a dictionary of functions."
        )
    for name, function in functions.items():
        if not isinstance(name, str) or not callable(function):
            where = f"`{_TABLE}[{op!r}][{name!r}]`"
            raise RequestError(f"{path}: {where} is {format_value(function)}; expected a function.")
    return functions


def _of_kernel(package: KernelPackage | None, path: Path) -> ModuleType | None:
    """The kernel's own module of that name."""
    if package is None or path.parent != package.init.parent:  # a file outside the package is not imported
        return None
    name = f"{package.name}.{_MODULE}"
    if name not in sys.modules:
        with all_or_nothing(package):
            importlib.import_module(name)
    return sys.modules[name]


# Files that the user names are modules of no package.

_lock = ForkLock()
_modules: dict[Path, tuple[tuple[int, ...], ModuleType]] = {}


def _of_user(path: Path) -> ModuleType:
    identity = file_identity(path)
    kept = _modules.get(path)
    if kept is None or kept[0] != identity:
        # No lock is held while a user's file is imported: it may wait for the import of another thread, which waits for
        # this file. Of two threads that import it at once, both use the module of the first that is done.
        made = _imported(path)
        with _lock:
            kept = _modules.get(path)
            if kept is None or kept[0] != identity:
                kept = _modules[path] = (identity, made)
    return kept[1]


def _imported(path: Path) -> ModuleType:
    # A name that no import statement can write, so that it hides nothing.
    name = f"kernels tuning {path}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up there
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # whatever the file raises, `sys.exit` too
        sys.modules.pop(name, None)
        if before is not None:
            sys.modules[name] = before
        if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
            raise
        raise RequestError(f"{path} cannot be imported: {format_error(error)}") from error
    return module
