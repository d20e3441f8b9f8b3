"""The steps that read a variant's sources: all of them read once, in a process with limits of time and memory."""

from __future__ import annotations

from kernels import backends
from kernels.authoring.check.checked_variant import CheckedVariant
from kernels.authoring.check.python_sources import SourceFindings, read_sources
from kernels.resolver.variant import UNIVERSAL
from kernels.support.checks import StepResults, failed, skipped
from kernels.support.limited_call import LimitExceeded, call_limited

__all__ = ["layers", "source_findings", "source_lines", "source_namespaces"]


def source_findings(checked: CheckedVariant) -> SourceFindings:
    """What the sources of a variant show; they are read at the first call, after the metadata."""
    if checked.sources is None:
        try:
            checked.sources = call_limited(read_sources, checked, _hacks(checked))
        except LimitExceeded as error:
            problem = [failed(f"the sources cannot be parsed: {error}")]
            checked.sources = SourceFindings(problem, problem, problem)
    return checked.sources


def source_namespaces(checked: CheckedVariant) -> StepResults:
    """Whether all operators that the sources register by a literal name are in the kernel's own namespace."""
    yield from source_findings(checked).namespaces


def layers(checked: CheckedVariant) -> StepResults:
    """Whether the sources of the layers define constructors or additional members, which is not allowed."""
    yield from source_findings(checked).layers


def source_lines(checked: CheckedVariant) -> StepResults:
    """Whether the sources have text that the variant's backend forbids."""
    if checked.variant is None or checked.variant.backend == UNIVERSAL:
        yield skipped("the variant is not for one backend")
    elif not _hacks(checked):
        yield skipped(f"{checked.variant.backend} forbids no source lines")
    else:
        yield from source_findings(checked).lines


def _hacks(checked: CheckedVariant) -> tuple[str, ...]:
    backend = None if checked.variant is None else backends.known(checked.variant.backend)
    return () if backend is None else tuple(backend.cuda_hacks_to_strip)
