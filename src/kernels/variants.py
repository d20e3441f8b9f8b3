"""Choose among builds by their names alone, for programs that list and download kernels in their own way.

These names are at the path where the existing client has them. `kernels.resolver` decides.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from kernels.api import get_kernel_variants as get_kernel_variants
from kernels.backends import BackendName
from kernels.errors import InvalidVariant
from kernels.resolver.choice import resolve
from kernels.resolver.decision import Decision, VariantAccepted, VariantList, VariantRejected
from kernels.resolver.target import Target
from kernels.resolver.variant import Variant, parse_variant

__all__ = [
    "Decision",
    "Variant",
    "VariantAccepted",
    "VariantRejected",
    "get_kernel_variants",
    "get_variants_local",
    "parse_variant",
    "resolve_variant",
    "resolve_variants",
    "variants_trace_str",
]


def get_variants_local(repo_path: str | os.PathLike[str]) -> list[Variant]:
    """The builds in a folder, by the names of its folders; names that are not a build's are passed over.

    Args:
        repo_path: The folder that holds the builds: the `build` of a repository.

    Returns:
        The builds in the order of their names; none if there is no such folder.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name in ("torch-cuda", "torch-cpu", "docs"):
        ...     (folder / name).mkdir()
        >>> [variant.name for variant in get_variants_local(folder)]
        ['torch-cpu', 'torch-cuda']
    """
    try:
        with os.scandir(repo_path) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
    except OSError:
        return []
    variants = []
    for name in names:
        try:
            variants.append(parse_variant(name))
        except InvalidVariant:
            continue
    return variants


def resolve_variant(
    variants: Iterable[Variant], backend: BackendName | None = None
) -> tuple[Variant | None, list[Decision]]:
    """The build for this machine, by the names of the builds alone.

    Whether it covers the device's architecture stands in its metadata, which `get_kernel_variants` reads.

    Args:
        variants: The builds' names, parsed.
        backend: The backend to choose for; the default follows Torch's build.

    Returns:
        The best one, or None if none suits; and a decision for each.

    Raises:
        RequestError: This machine has no such backend (a `ValueError`).

    Example:
        >>> variant, decisions = resolve_variant([parse_variant("torch-cpu"), parse_variant("torch-npu")], "cpu")
        >>> variant.variant_str, decisions[1].reason
        ('torch-cpu', 'for cann, not cpu')
    """
    suitable, decisions = resolve_variants(variants, backend)
    return (suitable[0] if suitable else None), decisions


def resolve_variants(
    variants: Iterable[Variant], backend: BackendName | None = None
) -> tuple[list[Variant], list[Decision]]:
    """The builds that suit this machine, the best first, by the names of the builds alone.

    Args:
        variants: The builds' names, parsed.
        backend: The backend to choose for; the default follows Torch's build.

    Returns:
        Those that suit, and a decision for each.

    Raises:
        RequestError: This machine has no such backend (a `ValueError`).

    Example:
        >>> variants = [parse_variant("torch-universal"), parse_variant("torch-cpu")]
        >>> [each.name for each in resolve_variants(variants, "cpu")[0]]
        ['torch-cpu', 'torch-universal']
    """
    names = [variant.variant_str for variant in variants]
    resolution = resolve(names, Target.current(), backend=backend, check_arch=False)
    return list(resolution.accepted), VariantList(resolution.decisions)


def variants_trace_str(trace: Sequence[Decision]) -> str:
    """The decisions as text, one line for each build.

    Args:
        trace: The decisions, the best first, as `resolve_variant` returns them.

    Example:
        >>> variants = [parse_variant("torch-cpu"), parse_variant("torch-npu")]
        >>> print(variants_trace_str(resolve_variant(variants, "cpu")[1]))
        torch-cpu: compatible, preferred
        torch-npu: for cann, not cpu
    """
    lines = []
    for decision in trace:
        if isinstance(decision, VariantRejected):
            lines.append(f"{decision.variant.variant_str}: {decision.reason}")
        else:
            best = not lines
            lines.append(f"{decision.variant.variant_str}: compatible{', preferred' if best else ''}")
    return "\n".join(lines)
