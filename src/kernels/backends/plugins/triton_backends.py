"""Backends of Triton that vendors install as packages of their own, without a word about this project.

Triton finds them by their entry points: each names a package with `compiler.py` and `driver.py`. The driver knows
whether the hardware is there, its target, and Torch's device. It may import Torch, so that it is asked in this process
only where Torch is imported, and in a short-lived one elsewhere.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from kernels.backends import lookup
from kernels.backends.base import Backend, BackendProbe, Device, Found
from kernels.backends.plugins.json_backend import DeclaredBackend
from kernels.backends.plugins.json_schema import Declaration
from kernels.backends.registration import Origin, Problem
from kernels.errors import RequestError
from kernels.support.command import CommandFailed, run_command
from kernels.support.files import read_bounded
from kernels.support.formatting import format_error
from kernels.support.record_file import decode_json

__all__ = ["TritonBackend", "TritonTarget", "ask_driver", "triton_backends"]

#: How long the short-lived process may take: it imports Triton and often Torch. Less than a probe.
_QUERY_SECONDS = 9.5

#: The largest `driver.py` that is read.
_MAX_DRIVER_BYTES = 1024 * 1024

#: Before the answer, as a vendor's code may print too.
_MARK = "kernels-triton-target "


class TritonTarget(msgspec.Struct, frozen=True):
    """What a driver says of this machine.

    Attributes:
        active: Whether the hardware is there.
        backend: The name of the target's backend.
        arch: The target's architecture.
        warp_size: How many threads a warp has.
        device: Torch's device type.
        count: How many devices there are.
    """

    active: bool
    backend: str = ""
    arch: str = ""
    warp_size: int = 0
    device: str = ""
    count: int = 0


def triton_backends(
    points: Iterable[importlib.metadata.EntryPoint], disabled: frozenset[str]
) -> Iterator[tuple[Backend, Origin] | Problem]:
    """The backends of vendors' packages for Triton whose names no other backend has.

    Args:
        points: What `triton_points` found.
        disabled: Names that are passed over.
    """
    for point in points:
        name = re.sub(r"[^a-z0-9_]+", "_", point.name.lower())
        if name in {*disabled, *lookup.reserved_names()}:
            continue
        dist = point.dist
        package = point.value.strip()
        origin = Origin("installed", f"{dist.name} {dist.version} ({package})" if dist else package)
        try:
            backend: Backend = TritonBackend(name, package, _device_type(package) or name)
        except (OSError, ImportError, ValueError) as error:
            why = format_error(error) if isinstance(error, ImportError) else str(error)
            yield Problem(origin, f"Backend {name!r} for Triton, {origin}: {why.rstrip('.')}.", (name,))
        else:
            backend.vendor = (dist.metadata["Author"] or dist.name) if dist else ""
            yield backend, origin


class TritonBackend(DeclaredBackend):
    """A backend of which a package for Triton is all that is known: kernels without compiled code run on it.

    Args:
        name: Its own name.
        package: The package with `driver.py`.
        device_type: Torch's device type.
    """

    def __init__(self, name: str, package: str, device_type: str) -> None:
        others = [each for each in lookup.all_backends() if each.name != name]
        super().__init__(name, Declaration(device_string=device_type), others)
        self.package = package
        self._shares = any(each.device_type == device_type for each in others)
        self._target: TritonTarget | None = None

    def probe(self) -> BackendProbe:
        try:
            target = self.target()
        except (CommandFailed, RequestError) as error:
            return BackendProbe(notes=(f"its driver {self.package}.driver: {error}",), needs_torch=True)
        if not target.active:
            return BackendProbe(notes=(f"its driver {self.package}.driver is not active",))
        arch = self.parse_arch(target.arch) or ""
        one = Device(self.name, 0, f"{target.backend} {target.arch}".strip(), arch)
        one = replace(one, capability=self.device_capability(one))
        return BackendProbe(True, devices=tuple(replace(one, index=index) for index in range(target.count)))

    def torch_build(self, torch: Any) -> Found | None:
        found = super().torch_build(torch)
        if found is None or not self._shares:
            return found
        # That Torch has the device of another backend says nothing about this one's hardware.
        try:
            return found if self.target().active else None
        except (CommandFailed, RequestError):
            return None

    def target(self) -> TritonTarget:
        """What the driver says; asked once.

        Raises:
            CommandFailed: The driver could not be asked in a process of its own.
            RequestError: It could not be asked in this one.
        """
        if self._target is None:
            self._target = _ask_here(self.package) if "torch" in sys.modules else _ask_elsewhere(self.package)
        return self._target


def ask_driver(package: str) -> TritonTarget:
    """Import a package's driver as Triton does, and ask it.

    Raises:
        ImportError: The driver, or Triton, cannot be imported.
        RuntimeError: It has no class for a driver, or several.
    """
    base = importlib.import_module("triton.backends.driver").DriverBase
    module = importlib.import_module(f"{package}.driver")
    kinds: list[Any] = [
        each
        for each in [*vars(module).values()]
        if isinstance(each, type) and issubclass(each, base) and not inspect.isabstract(each)
    ]
    if len(kinds) != 1:
        raise RuntimeError(f"expected one concrete subclass of DriverBase, found {len(kinds)}")
    if not kinds[0].is_active():
        return TritonTarget(False)
    driver = kinds[0]()
    target, device = driver.get_current_target(), driver.get_active_torch_device()
    count = getattr(getattr(importlib.import_module("torch"), device.type, None), "device_count", lambda: 1)()
    return TritonTarget(True, str(target.backend), str(target.arch), int(target.warp_size), device.type, int(count))


def _ask_here(package: str) -> TritonTarget:
    try:
        return ask_driver(package)
    except (Exception, SystemExit) as error:
        raise RequestError(format_error(error)) from error


def _ask_elsewhere(package: str) -> TritonTarget:
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        f"from {__name__} import ask_driver\n"
        "import msgspec\n"
        "try:\n"
        f"    answer = msgspec.json.encode(ask_driver({package!r})).decode()\n"
        "except Exception as error:\n"
        "    sys.exit(f'{type(error).__name__}: {error}')\n"
        f"print({_MARK!r} + answer)\n"
    )
    said = run_command([sys.executable, "-c", code], seconds=_QUERY_SECONDS)
    answers = [line.removeprefix(_MARK) for line in said.splitlines() if line.startswith(_MARK)]
    if not answers:
        raise RequestError("it ended the process that asked it")
    return decode_json(answers[-1], TritonTarget)


def _device_type(package: str) -> str | None:
    """Torch's device type, as the source of the package's driver has it; nothing is imported.

    Raises:
        ImportError: There is no such package.
        ValueError: It has no `compiler.py` or no `driver.py`.
    """
    top, *inner = package.split(".")
    spec = importlib.util.find_spec(top)
    places = [] if spec is None else [Path(each, *inner) for each in spec.submodule_search_locations or ()]
    if not any(each.is_dir() for each in places):
        raise ModuleNotFoundError(f"No module named {package!r}")
    for file in ("compiler.py", "driver.py"):
        if not any((each / file).is_file() for each in places):
            raise ValueError(f"the package {package} has no {file}")
    source = read_bounded(next(each / file for each in places if (each / file).is_file()), _MAX_DRIVER_BYTES)
    found = re.search(r"""torch\.device\(\s*f?["']([A-Za-z][A-Za-z0-9_]{0,62})""", source.decode(errors="replace"))
    return None if found is None else found[1]
