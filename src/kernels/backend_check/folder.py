"""Steps about a vendor's folder: operators, tune configurations, heuristics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from kernels.backend_check.checked_backend import CheckedBackend
from kernels.backends.base import Backend
from kernels.backends.plugins.vendor_folder import vendor_module
from kernels.backends.torch_build import installed_torch
from kernels.errors import KernelsError, RequestError
from kernels.support.checks import StepResults, failed, missing, ok, skipped
from kernels.support.formatting import format_error, format_text
from kernels.tuning import read_configs
from kernels.tuning.config_sources import CONFIGS, HEURISTICS, TuneCandidate
from kernels.tuning.heuristics import heuristics_of

if TYPE_CHECKING:
    from kernels.operators import UnusedOp

__all__ = ["OfferedConfigs", "offered_configs", "offered_operators", "operators", "tuning"]


def offered_operators(backend: Backend) -> list[str]:
    """The functions that a vendor's folder offers for operators, by their names.

    Raises:
        RequestError: Its code fails, or does not say which.

    Example:
        >>> from kernels import get_backend
        >>> offered_operators(get_backend("cpu"))
        []
    """
    module = vendor_module(backend, "ops")
    if module is None:
        return []
    from kernels.operators.vendor_functions import listed_functions

    return listed_functions(module, f"{backend.folder}")


class OfferedConfigs(msgspec.Struct, frozen=True):
    """How many configurations a vendor's folder has for each operator.

    Attributes:
        operators: In the part that holds for every architecture.
        archs: In the section of each architecture.

    Example:
        >>> str(OfferedConfigs({"mm": 9, "bmm": 1}, {"a200x": {"mm": 1}}))
        'mm 9, bmm 1; a200x: mm 1'
    """

    operators: dict[str, int] = {}
    archs: dict[str, dict[str, int]] = {}

    def __str__(self) -> str:
        sections = {"": self.operators, **{f"{arch}: ": section for arch, section in self.archs.items()}}
        said = {name: ", ".join(f"{op} {count}" for op, count in each.items()) for name, each in sections.items()}
        return "; ".join(f"{name}{operators}" for name, operators in said.items() if operators)


def offered_configs(backend: Backend) -> OfferedConfigs:
    """How many configurations a vendor's folder has for each operator, for all architectures and for each section.

    Raises:
        RequestError: The file cannot be read or breaks its form.

    Example:
        >>> from kernels import get_backend
        >>> offered_configs(get_backend("cpu"))
        OfferedConfigs(operators={}, archs={})
    """
    if backend.folder is None or not (backend.folder / CONFIGS).exists():
        return OfferedConfigs()
    file = read_configs(backend.folder / CONFIGS)
    return OfferedConfigs(_counts(file.operators), {arch: _counts(section) for arch, section in file.archs.items()})


def _counts(section: Mapping[str, Sequence[object]]) -> dict[str, int]:
    return {operator: len(entries) for operator, entries in section.items()}


def operators(checked: CheckedBackend) -> StepResults:
    """Check that each function can replace its operator."""
    backend = checked.backend
    if backend.folder is None:
        yield skipped("it has no folder")
        return
    if installed_torch() is None:
        yield skipped("Torch is not installed")
        return
    names = offered_operators(backend)
    if not names:
        yield missing(f"optional: ops, a package in {backend.folder} whose `__all__` names functions for operators")
        return
    try:
        replaced, unused = _try(backend)
    except RequestError as error:
        yield failed(format_error(error))
        return
    yield ok(f"{len(replaced)}: {', '.join(replaced)}")
    for each in unused:
        yield missing(f"not used: {each.function}: {format_text(each.reason.splitlines()[0])}")


def _try(backend: Backend) -> tuple[tuple[str, ...], tuple[UnusedOp, ...]]:
    """The operators that functions replace, and the functions that replace none; only during the check."""
    from kernels.operators import use_vendor_ops

    with use_vendor_ops(backend.name) as enabled:
        return enabled.operators, enabled.unused


def tuning(checked: CheckedBackend) -> StepResults:
    """The tune configurations and heuristics can be read."""
    folder = checked.backend.folder
    if folder is None:
        yield skipped("it has no folder")
        return
    for name, step in ((CONFIGS, _configs), (HEURISTICS, _heuristics)):
        if not (folder / name).exists():
            yield missing(f"optional: {name} in {folder}")
            continue
        try:
            yield from step(checked.backend)
        except KernelsError as error:
            yield failed(format_error(error))


def _configs(backend: Backend) -> StepResults:
    yield ok(f"{CONFIGS}: {str(offered_configs(backend)) or 'no operators'}")


def _heuristics(backend: Backend) -> StepResults:
    assert backend.folder is not None
    file = TuneCandidate("vendor", backend.folder / HEURISTICS, exists=True)
    heuristics_of(file, "", backend, None)  # that there is a table
    table = getattr(vendor_module(backend, HEURISTICS.removesuffix(".py")), "HEURISTICS_CONFIGS", None)
    names = [str(name) for name in table] if isinstance(table, Mapping) else []
    for name in names:
        heuristics_of(file, name, backend, None)
    yield ok(f"{HEURISTICS}: {', '.join(names) or 'no operators'}")
