"""The error for a kernel without a suitable build: every variant with its reason, and what to try next."""

from __future__ import annotations

from kernels import backends
from kernels.errors import NoSuitableBuild, UnsupportedArch
from kernels.resolver.rejection import RejectionKind
from kernels.resolver.selection import Resolution, name_misfits
from kernels.resolver.smallest_change import ReadMetadata, smallest_changes, suits, torch_for, unnamed_version
from kernels.resolver.variant import UNIVERSAL, Variant
from kernels.support.formatting import format_names, format_text

__all__ = ["advice", "explain", "no_suitable_build"]

#: How many variants an error message lists before it only counts them.
_LISTED = 20
#: How many builds, and devices, are tried for advice.
_TRIED = 16
_ASK = "Build the kernel yourself, or ask its publisher for a build"


def no_suitable_build(
    asked: str, resolution: Resolution, *, here: bool = True, read: ReadMetadata | None = None
) -> NoSuitableBuild:
    """The error for a kernel without a suitable build: `UnsupportedArch` if only the architecture does not match.

    Args:
        asked: The requirement, such as `org/name version 1`.
        resolution: The result, without an accepted variant.
        here: Whether the target is this machine.
        read: Reads the metadata of a build, for the advice.

    Example:
        >>> from kernels import Target
        >>> from kernels.resolver.selection import resolve
        >>> outcome = resolve(["torch-cuda"], Target.parse("torch2.9-cpu-x86_64-linux"))
        >>> print(no_suitable_build("org/relu version 1", outcome))
        No build of org/relu version 1 suits this machine (torch2.9-cpu-x86_64-linux, backend cpu):
          torch-cuda: for cuda, not cpu
        Try a machine with cuda.
    """
    kind = UnsupportedArch if resolution.rejects_for(RejectionKind.ARCH) else NoSuitableBuild
    return kind(explain(asked, resolution, here=here, read=read))


def explain(asked: str, resolution: Resolution, *, here: bool = True, read: ReadMetadata | None = None) -> str:
    """Why no build suits: the requirement, the target, every variant with its reason, and what to try next."""
    where = f"{resolution.target}, backend {resolution.backend}"
    if not resolution.decisions:
        return f"{asked} has no builds at all (no folder build/<variant>), for this machine ({where}) or another."
    lines = [f"No build of {asked} suits {f'this machine ({where})' if here else where}:"]
    rejected = resolution.rejected
    lines += [f"  {format_text(each.variant.variant_str, 80)}: {each.reason}" for each in rejected[:_LISTED]]
    if len(rejected) > _LISTED:
        lines.append(f"  … and {len(rejected) - _LISTED} more")
    return "\n".join([*lines, advice(resolution, here=here, read=read)])


def advice(resolution: Resolution, *, here: bool = True, read: ReadMetadata | None = None) -> str:
    """What to try where no build suits. Whether another version has one that does, is not said: that is looked up.

    Args:
        resolution: The result, without an accepted variant.
        here: Whether the target is this machine.
        read: Reads the metadata of a build, so that no change is named with which its architectures do not suit.

    Example:
        >>> from kernels import Target
        >>> from kernels.resolver.selection import resolve
        >>> advice(resolve(["torch28-cpu-x86_64-linux"], Target.parse("torch2.9-cpu-x86_64-linux")))
        'Try an environment with Torch 2.8.'
    """
    if resolution.rejects_for(RejectionKind.NOT_MIRRORED):
        return "The mirror's origin has a build that suits by its name."
    target, backend = resolution.target, resolution.backend
    changes = smallest_changes(resolution, read)
    uncovering = [each.variant.variant_str for each in resolution.rejected if each.kind is RejectionKind.ARCH]
    if uncovering:
        parts = [f"Try an environment with {changes}." if changes else f"{_ASK} that covers it."]
        others = [each.index for each in target.backend_devices(backend) if each != resolution.device]
        if here and any(suits(resolution, uncovering[:_TRIED], read, device=each) for each in others[:_TRIED]):
            parts.insert(0, "Try another device with `device=`.")
        if here:
            parts.append("If the declared architectures are known to be incomplete, try `check_arch=False`.")
        return " ".join(parts)
    if changes == torch_for(backend):
        return (
            f"Try {changes}, or import the package that adds its device to this one; "
            f"`kernels backends check {backend}` says more."
        )
    if changes:
        return f"Try an environment with {changes}."
    variants = [each.variant for each in resolution.rejected if isinstance(each.variant, Variant)]
    # Another backend of this machine, its processor above all: a build for it fits, or is for another system or Torch.
    at_hand: dict[str, list[str]] = {}
    for each in variants:
        here_too = each.backend in target.backends and each.backend != backend
        if here_too and not any(name_misfits(each, target, backends.get(each.backend))):
            at_hand.setdefault(each.backend, []).append(each.variant_str)
    fitting = [name for name in sorted(at_hand) if suits(resolution, at_hand[name][:_TRIED], read, backend=name)]
    elsewhere = {each.backend for each in variants} - {backend, UNIVERSAL} - set(target.backends)
    tries = [f'the build for {name} with `backend="{name}"` (`--backend {name}`)' for name in fitting]
    if elsewhere:
        tries.append(f"a machine with {format_names(sorted(elsewhere), ' or ')}")
    unnamed = unnamed_version(resolution)
    parts = [unnamed] if unnamed else []
    if tries or not unnamed:
        parts.append(f"Try {', or '.join(tries)}." if tries else f"{_ASK} that suits.")
    return " ".join(parts)
