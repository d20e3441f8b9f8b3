"""What to try where no build suits: the remedy of the check that failed."""

from __future__ import annotations

from kernels.errors import NoSuitableBuild, UnsupportedArch
from kernels.resolver.choice import Resolution
from kernels.resolver.decision import RejectionKind
from kernels.resolver.name_checks import other_backend
from kernels.resolver.variant import Variant
from kernels.support.formatting import format_names, format_text

__all__ = ["advice", "no_suitable_build"]

#: How many variants an error message lists before it only counts them, and how many remedies advice names.
_LISTED, _NAMED = 20, 4

_ASK = "Build the kernel yourself, or ask its publisher for a build"


def no_suitable_build(asked: str, resolution: Resolution, *, here: bool = True) -> NoSuitableBuild:
    """The error for a kernel without a suitable build: every variant with its reason, and what to try next.

    Args:
        asked: The requirement, such as `org/name version 1`.
        resolution: The result, without an accepted variant.
        here: Whether the target is this machine.

    Returns:
        An `UnsupportedArch` if only the architecture does not match.

    Example:
        >>> from kernels import Target
        >>> from kernels.resolver.choice import resolve
        >>> outcome = resolve(["torch-cuda"], Target.parse("torch2.9-cpu-x86_64-linux"))
        >>> print(no_suitable_build("org/relu version 1", outcome))
        No build of org/relu version 1 suits this machine (torch2.9-cpu-x86_64-linux, backend cpu):
          torch-cuda: for cuda, not cpu
        Try a machine with cuda.
    """
    where = f"{resolution.target}, backend {resolution.backend}"
    rejected = resolution.rejected
    if not rejected:
        return NoSuitableBuild(
            f"{asked} has no builds at all (no folder build/<variant>), for this machine ({where}) or another."
        )
    lines = [f"No build of {asked} suits {f'this machine ({where})' if here else where}:"]
    lines += [f"  {format_text(each.variant.variant_str, 80)}: {each.reason}" for each in rejected[:_LISTED]]
    if len(rejected) > _LISTED:
        lines.append(f"  … and {len(rejected) - _LISTED} more")
    kind = UnsupportedArch if resolution.rejects_for(RejectionKind.ARCH) else NoSuitableBuild
    return kind("\n".join([*lines, advice(resolution, here=here)]))


def advice(resolution: Resolution, *, here: bool = True) -> str:
    """What to try where no build suits. Whether another version has one that does, is not said: that is looked up.

    Args:
        resolution: The result, without an accepted variant.
        here: Whether the target is this machine.

    Example:
        >>> from kernels import Target
        >>> from kernels.resolver.choice import resolve
        >>> advice(resolve(["torch28-cpu-x86_64-linux"], Target.parse("torch2.9-cpu-x86_64-linux")))
        'Try an environment with Torch 2.8.'
    """
    if resolution.rejects_for(RejectionKind.NOT_MIRRORED):
        return "The mirror's origin has a build that suits by its name."
    if resolution.rejects_for(RejectionKind.ARCH):
        ask = f"{_ASK} that covers it."
        if not here:
            return ask
        covered = any(each.kind is RejectionKind.ARCH and each.remedy for each in resolution.rejected)
        device = ["Try another device with `device=`."] if covered else []
        unchecked = "If the declared architectures are known to be incomplete, try `check_arch=False`."
        return " ".join([*device, ask, unchecked])
    changes = list(dict.fromkeys(each.remedy for each in resolution.rejected if each.remedy))
    if changes:
        return f"Try an environment with {format_names(changes[:_NAMED], ' or ')}."
    others = [
        each.variant
        for each in resolution.rejected
        if each.kind is RejectionKind.BACKEND and isinstance(each.variant, Variant)
    ]
    tries = list(dict.fromkeys(filter(None, (other_backend(each, resolution.target) for each in others))))
    elsewhere = sorted({each.backend for each in others} - {resolution.backend, *resolution.target.backends})
    if elsewhere:
        tries.append(f"a machine with {format_names(elsewhere, ' or ')}")
    return f"Try {', or '.join(tries)}." if tries else f"{_ASK} that suits."
