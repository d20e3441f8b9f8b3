"""The variants of a kernel's sources: each with its plan, or why this machine cannot build it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernels.authoring.compile.build_toml.model import KernelSource
from kernels.authoring.compile.frameworks.torch_installation import TorchInstallation
from kernels.authoring.compile.plan.build_plan import BuildPlan, SourceState, plan_build, source_state
from kernels.backends import find
from kernels.errors import CompilerNotFound, RequestError

__all__ = ["VariantPlan", "check_backends", "plan_variants"]


@dataclass(frozen=True)
class VariantPlan:
    """A variant of a source.

    Attributes:
        source: The source.
        backend: The backend's name.
        plan: How to build it; None if this machine cannot.
        reason: Why it cannot, in one line; else "".
    """

    source: KernelSource
    backend: str
    plan: BuildPlan | None
    reason: str = ""


def check_backends(sources: Sequence[KernelSource], backends: Iterable[str] | None) -> tuple[str, ...] | None:
    """The backends that a user named.

    Raises:
        RequestError: No source lists one of them.
    """
    wanted = None if backends is None else tuple(backends)
    listed = dict.fromkeys(name for source in sources for name in source.backends)
    for name in wanted or ():
        if name not in listed:
            raise RequestError(f"`backend` is {name!r}; {sources[0].name} has {', '.join(listed)}.")
    return wanted


def plan_variants(
    sources: Sequence[KernelSource],
    *,
    backends: Iterable[str] | None = None,
    variant: str | None = None,
    this_gpu: bool = False,
    torches: Sequence[TorchInstallation] = (),
) -> list[VariantPlan]:
    """Plan the variants of a kernel.

    Args:
        sources: Its sources.
        backends: The backends to plan for. Default: all that the sources list.
        variant: The only variant to plan.
        this_gpu: Compile for the visible devices' architectures only.
        torches: The installations of Torch to compile against. Default: this Python's. What is not compiled against
            Torch is planned once.

    Returns:
        The variants in the order of `build.toml`'s backends, those that cannot be built among them. A variant that
        two installations of Torch make is planned for the first of them.

    Raises:
        RequestError: No source lists a backend, the variant cannot be built here, or a section is wrong.
    """
    wanted = check_backends(sources, backends)
    planned: list[VariantPlan] = []
    for source in sources:
        state = source_state(source)
        against: Sequence[TorchInstallation | None] = (source.framework == "torch" and torches) or (None,)
        for backend in (name for name in source.backends if wanted is None or name in wanted):
            planned += _without_repeats([_plan(source, state, backend, this_gpu, torch) for torch in against])
    return planned if variant is None else _only(variant, planned)


def _plan(
    source: KernelSource, state: SourceState, backend: str, this_gpu: bool, torch: TorchInstallation | None
) -> VariantPlan:
    try:
        find(backend)
    except RequestError as error:
        return VariantPlan(source, backend, None, _one_line(error))
    try:
        return VariantPlan(source, backend, plan_build(source, state, backend, this_gpu=this_gpu, torch=torch))
    except CompilerNotFound as error:
        return VariantPlan(source, backend, None, _one_line(error))


def _without_repeats(planned: Iterable[VariantPlan]) -> list[VariantPlan]:
    kept: dict[str, VariantPlan] = {}
    for each in planned:
        name = each.reason if each.plan is None else each.plan.variant
        kept.setdefault(name, each)
    return list(kept.values())


def _only(variant: str, planned: Sequence[VariantPlan]) -> list[VariantPlan]:
    found = [each for each in planned if each.plan is not None and each.plan.variant == variant]
    if not found:
        here = [each.plan.variant for each in planned if each.plan is not None]
        reasons = "".join(f" {each.backend}: {each.reason}" for each in planned if each.plan is None)
        possible = f"this machine can build {', '.join(here)}." if here else "this machine can build none."
        raise RequestError(f"`variant` is {variant!r}; {possible}{reasons}")
    return found


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
