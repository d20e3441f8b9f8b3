"""Configurations and heuristics of an operator, for this machine's hardware."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernels.backends import Backend, BackendName, Device
from kernels.errors import MissingPythonDependency, RequestError
from kernels.loader.registry import KernelPackage
from kernels.support.formatting import format_value, wrong_type
from kernels.tuning.config_sources import (
    CONFIGS,
    HEURISTICS,
    TuneCandidate,
    TuneOrigin,
    candidates,
    hardware,
    kernel_of,
    read_cached,
    section_of,
)
from kernels.tuning.entries import TuneEntry
from kernels.tuning.heuristics import heuristics_of

__all__ = ["Configs", "Heuristics", "get_configs", "get_heuristics"]


class Configs(list[Any]):
    """A list of `triton.Config` that knows where it came from, for `@triton.autotune(configs=…)`.

    Args:
        configs: The configurations.
        origin: Where they came from.

    Attributes:
        origin: Where it came from.
    """

    def __init__(self, configs: Iterable[Any], origin: TuneOrigin) -> None:
        super().__init__(configs)
        self.origin: TuneOrigin = origin


class Heuristics(dict[str, Callable[[Mapping[str, Any]], Any]]):
    """A dictionary of functions that knows where it came from, for `@triton.heuristics(…)`.

    Args:
        functions: The function of each parameter.
        origin: Where they came from.

    Attributes:
        origin: Where it came from.
    """

    def __init__(self, functions: Mapping[str, Callable[[Mapping[str, Any]], Any]], origin: TuneOrigin) -> None:
        super().__init__(functions)
        self.origin: TuneOrigin = origin


def get_configs(
    op: str,
    *,
    backend: BackendName | None = None,
    device: int | str | None = None,
    arch: str | None = None,
    default: Sequence[Any] | None = None,
) -> Configs:
    """The Triton configurations of an operator, for this machine's hardware.

    The first of these that has the operator gives all of them: the files that `KERNELS_TUNE_PATH` names, the vendor's,
    the calling kernel's own, `default`.

    Args:
        op: The operator's name in the files.
        backend: The backend to tune for, by any of its names; default the one of this machine.
        device: The device to tune for: an index, or Torch's name such as `cuda:1`; default the current device.
        arch: An architecture in place of the device's own, such as `9.0`; the backend need not be on this machine then.
        default: Used if no file has the operator: `triton.Config` or `TuneEntry` objects.

    Returns:
        A new list of new `triton.Config` objects, with its `origin`. It is empty if a file has an empty list for the
        operator: `triton.autotune` then uses Triton's own configuration.

    Raises:
        TypeError: An argument is of the wrong type.
        RequestError: No file has the operator and no default is given; a file has a wrong form; the installed Triton
            does not know an argument of a configuration; or this machine has no such backend or device.
        MissingPythonDependency: Triton is not installed.

    Example:
        >>> configs = get_configs("mm", default=[])
        >>> len(configs), str(configs.origin)
        (0, "the caller's default")
    """
    package = kernel_of(sys._getframe(1).f_globals.get("__name__"))
    _check(op, default, Sequence, "a list of configurations")
    family, on = hardware(backend, device, arch)
    searched = list(candidates(CONFIGS, family, package))
    elsewhere: list[str] = []
    for candidate in searched:
        if not candidate.exists:
            continue
        file = read_cached(candidate.path)
        found = section_of(file, op, family, on)
        if found is not None:
            section, operators = found
            return _configs(operators[op], TuneOrigin(candidate.kind, candidate.path, section))
        elsewhere += [f"{candidate.path} has it for {name}" for name, section in file.archs.items() if op in section]
    if default is None:
        raise _not_found("get_configs", op, searched, family, on, package, elsewhere)
    return _configs(default, TuneOrigin("default"))


def get_heuristics(
    op: str,
    *,
    backend: BackendName | None = None,
    device: int | str | None = None,
    default: Mapping[str, Callable[[Mapping[str, Any]], Any]] | None = None,
) -> Heuristics:
    """The functions that compute an operator's parameters from its arguments, for this machine's hardware.

    They come from `heuristics_config_utils.py`, whose `HEURISTICS_CONFIGS` is a dictionary from operators to
    dictionaries from parameters to functions of the arguments, in the order that `get_configs` describes. Of
    `KERNELS_TUNE_PATH`, only folders can have that file.

    Args:
        op: The operator's name in the files.
        backend: As for `get_configs`.
        device: As for `get_configs`.
        default: Used if no file has the operator.

    Returns:
        A new dictionary, with its `origin`.

    Raises:
        TypeError: An argument is of the wrong type.
        RequestError: No file has the operator and no default is given, a file fails or has a wrong form, or this
            machine has no such backend or device.
        Exception: What the kernel's own file raises.

    Example:
        >>> heuristics = get_heuristics("mm", default={"EVEN_K": lambda args: args["K"] % args["BLOCK_K"] == 0})
        >>> heuristics["EVEN_K"]({"K": 96, "BLOCK_K": 64}), heuristics.origin.kind
        (False, 'default')
    """
    package = kernel_of(sys._getframe(1).f_globals.get("__name__"))
    _check(op, default, Mapping, "a dictionary of functions")
    family, on = hardware(backend, device, None)
    searched = list(candidates(HEURISTICS, family, package))
    for candidate in searched:
        functions = heuristics_of(candidate, op, family, package) if candidate.exists else None
        if functions is not None:
            return Heuristics(functions, TuneOrigin(candidate.kind, candidate.path))
    if default is None:
        raise _not_found("get_heuristics", op, searched, family, on, package, [])
    return Heuristics(default, TuneOrigin("default"))


def _check(op: object, default: object, kind: type, expected: str) -> None:
    if not isinstance(op, str):
        raise wrong_type("op", "an operator's name", op)
    if default is not None and (not isinstance(default, kind) or isinstance(default, str)):
        raise wrong_type("default", f"{expected} or None", default)


def _not_found(
    function: str,
    op: str,
    searched: Sequence[TuneCandidate],
    backend: Backend,
    device: Device | None,
    package: KernelPackage | None,
    elsewhere: Sequence[str],
) -> RequestError:
    arch = f", architecture {device.arch}" if device is not None and device.arch else ""
    lines = [f"`{function}({op[:80]!r})`: no file has that operator for {backend.name}{arch}. Searched:"]
    lines += [f"- {candidate}" for candidate in searched] or ["- no files"]
    lines += [f"- {each} only" for each in elsewhere]
    if backend.folder is None:
        lines.append(f"Backend {backend.name} has no vendor folder.")
    if package is None:
        lines.append("The caller is not part of a kernel, so no kernel's own file was searched.")
    return RequestError("\n".join([*lines, "Name a file in KERNELS_TUNE_PATH, or give `default=`."]))


# Triton's objects

#: Arguments that a data file may not set: the parameters themselves, a function, and a file of code to run instead.
_NOT_FROM_FILES = frozenset({"self", "kwargs", "pre_hook", "ir_override"})


def _configs(entries: Sequence[Any], origin: TuneOrigin) -> Configs:
    if not any(isinstance(each, TuneEntry) for each in entries):
        return Configs(entries, origin)
    config = _triton().Config
    known = [name for name in inspect.signature(config).parameters if name not in _NOT_FROM_FILES]
    return Configs(
        (_config(config, each, known, origin.path) if isinstance(each, TuneEntry) else each for each in entries), origin
    )


def _config(config: Callable[..., Any], entry: TuneEntry, known: Sequence[str], path: Path | None) -> Any:
    for name, value in entry.others.items():
        if name not in known:
            where = "`default`" if path is None else f"{path}, {entry.place}"
            raise RequestError(
                f"{where}: `{name}` is {format_value(value)}, but a file may not set this argument of the "
                f"installed Triton's Config; it may set {', '.join(known)}."
            )
    numbers = {"num_warps": entry.num_warps, "num_stages": entry.num_stages, "num_ctas": entry.num_ctas}
    # A vendor's Triton may lack one of them.
    numbers = {name: number for name, number in numbers.items() if name in known}
    return config(dict(entry.meta), **numbers, **entry.others)


def _triton() -> Any:
    try:
        import triton
    except ImportError as error:
        raise MissingPythonDependency(
            f"`get_configs` makes Triton's configurations, but Triton cannot be imported: {error}. Install it with: "
            "pip install triton. Without it, `kernels.tuning.read_configs` reads a file as plain data."
        ) from error
    return triton
