"""What the installed Torch was built for, learned without importing it where that is safe."""

from __future__ import annotations

import ast
import functools
import importlib.util
import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from kernels.backends import lookup
from kernels.backends.base import Backend, Found
from kernels.backends.traces import torch_shows
from kernels.errors import RequestError
from kernels.support.files import open_regular, read_bounded
from kernels.support.formatting import did_you_mean, format_error, format_value
from kernels.support.installed import entry_points
from kernels.support.version import MajorMinor

__all__ = [
    "checked_torch_build",
    "cxx11_abi",
    "for_device_type",
    "for_torch",
    "installed_torch",
    "torch_build_failures",
    "torch_builds",
    "torch_builds_in",
    "torch_in",
]

_described: dict[str, SimpleNamespace] = {}
_failures: dict[str, str] = {}


def installed_torch() -> Any:
    """The installed Torch: the module where it is imported, else a stand-in with its version facts; None without one.

    A Torch that installed extensions add to (entry points `torch.backends`), or that must look at the hardware to
    know its backend (macOS), is imported: only the module itself knows then.
    """
    module = sys.modules.get("torch")
    if _is_complete(module):
        return module
    spec = importlib.util.find_spec("torch") if module is None else module.__spec__
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations)))
    if sys.platform != "darwin" and not _extended():
        described = _describe(folder)
        if described is not None:
            return described
    return _import_torch()


def torch_builds() -> dict[str, MajorMinor | None]:
    """The backends that the installed Torch was built for or extended with, first the one used when none is named.

    Example:
        >>> list(torch_builds())[-1:] in (["cpu"], [])
        True
    """
    torch = installed_torch()
    if torch is None:
        return {}
    builds: dict[str, MajorMinor | None] = {}
    failed: dict[str, str] = {}
    for backend in _asked_about(torch):
        try:
            found = checked_torch_build(backend, torch)
        except Exception as error:  # noqa: BLE001 - a plugin that fails is reported and passed over
            if not isinstance(torch, ModuleType) and _import_torch() is not None:
                return torch_builds()  # it looks at more of Torch than the stand-in has
            failed[backend.name] = f"its torch_build failed: {format_error(error)}"
            continue
        if found is not None:
            builds[backend.name] = found.version
    _failures.clear()
    _failures.update(failed)
    return builds


def torch_in(folder: Path) -> Any:
    """A Torch that need not be this Python's: a stand-in with the version facts in its files; None if they lack some.

    Args:
        folder: Its package's folder, `site-packages/torch`.

    Example:
        >>> torch_in(Path("/nowhere")) is None
        True
    """
    return _describe(folder)


def torch_builds_in(torch: Any) -> dict[str, MajorMinor | None]:
    """As `torch_builds`, for a Torch from `torch_in`: without what installed extensions add to it."""
    builds: dict[str, MajorMinor | None] = {}
    for backend in _asked_about(torch):
        try:
            found = checked_torch_build(backend, torch)
        except Exception:  # noqa: BLE001 - it looks at more of Torch than its files say
            continue
        if found is not None:
            builds[backend.name] = found.version
    return builds


def _asked_about(torch: Any) -> Iterator[Backend]:
    """The backends of which a Torch shows a trace, and those that declare none."""
    return (entry.backend for entry in lookup.entries() if torch_shows(torch, entry.label))


def checked_torch_build(backend: Backend, torch: Any) -> Found | None:
    """What a backend's `torch_build` returns, if it has the right type.

    Raises:
        TypeError: It has another type.
        Exception: What `torch_build` raises.
    """
    found: Any = backend.torch_build(torch)
    if found is None or (isinstance(found, Found) and isinstance(found.version, MajorMinor | None)):
        return found
    raise TypeError(f"expected Found(MajorMinor(1, 2)), Found() or None, got {format_value(found)}")


def torch_build_failures() -> dict[str, str]:
    """What went wrong when backends were last asked about the installed Torch, by the backend's name."""
    return dict(_failures)


def for_device_type(device_type: str) -> Backend:
    """The backend that a Torch device type means under the installed Torch (`cuda` is rocm where Torch is built so).

    Raises:
        RequestError: No backend has that device type.
    """
    matching = {each.name: each for each in lookup.entries() if each.names.device_type == device_type}
    for name in torch_builds():
        if name in matching:
            return matching[name].backend
    if not matching:
        types = sorted({each.names.device_type for each in lookup.entries()})
        hint = did_you_mean(device_type, types)
        known, got = ", ".join(types), format_value(device_type)
        raise RequestError(f"`device_type`: expected one of {known}, got {got}.{hint}")
    return (matching.get(device_type) or next(iter(matching.values()))).backend


def for_torch() -> str | None:
    """The name of the backend that the installed Torch is built for, or extended with; None without Torch."""
    return next(iter(torch_builds()), None)


def cxx11_abi() -> bool | None:
    """Whether Torch's C++ library uses GCC's new string ABI; None without Torch, or where there is no such choice."""
    torch = installed_torch()
    if torch is None or not sys.platform.startswith("linux"):
        return None
    if isinstance(torch, ModuleType):
        return bool(torch.compiled_with_cxx11_abi())
    return bool(torch.cxx11_abi)


def _import_torch() -> ModuleType | None:
    try:
        import torch
    except (ImportError, OSError):
        return None  # Torch is installed, but cannot be loaded
    return torch


def _is_complete(module: ModuleType | None) -> bool:
    # Another thread may be in the middle of importing it.
    return module is not None and not getattr(module.__spec__, "_initializing", False)


def _extended() -> bool:
    """Whether installed packages extend Torch when it is imported (torch.__init__, "_import_device_backends")."""
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        return False
    return _extensions_installed()


@functools.cache
def _extensions_installed() -> bool:
    return bool(entry_points("torch.backends"))


def _describe(folder: Path) -> SimpleNamespace | None:
    """The facts in an installation's files, or None where they are not all there."""
    key = str(folder)
    if key not in _described:
        version, abi = _version_file(folder / "version.py"), _library_abi(folder / "lib" / "libc10.so")
        if version is None or (abi is None and sys.platform.startswith("linux")):
            return None
        _described[key] = SimpleNamespace(
            __version__=version["__version__"],
            version=SimpleNamespace(**{"cuda": None, "hip": None, "xpu": None, **version}),
            backends=SimpleNamespace(),
            cxx11_abi=abi,
        )
    return _described[key]


def _version_file(path: Path) -> dict[str, Any] | None:
    """The constants that `torch/version.py` assigns; it is generated when Torch is built."""
    try:
        tree = ast.parse(read_bounded(path, 1024 * 1024))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    facts: dict[str, Any] = {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
                facts[target.id] = value.value
    return facts if isinstance(facts.get("__version__"), str) and {"cuda", "hip"} <= set(facts) else None


def _library_abi(path: Path) -> bool | None:
    """Which string type the constructor of `c10::Error` takes, from its symbol: `std::__cxx11::basic_string` or not."""
    try:
        with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data.find(b"_ZN3c105ErrorC1ENS_14SourceLocationE") < 0:
                return None
            return data.find(b"_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_string") >= 0
    except (OSError, ValueError):
        return None
