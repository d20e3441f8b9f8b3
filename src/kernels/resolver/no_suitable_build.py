"""The error for a kernel without a suitable build: every variant with its reason, and what to try next."""

from __future__ import annotations

from kernels import backends
from kernels.errors import NoSuitableBuild, UnsupportedArch
from kernels.resolver.rejection import RejectionKind
from kernels.resolver.selection import Resolution, name_misfits
from kernels.resolver.variant import UNIVERSAL, Variant
from kernels.support.formatting import format_names, format_text

__all__ = ["advice", "explain", "no_suitable_build"]

#: How many variants an error message lists before it only counts them.
_LISTED = 20
_ASK = "Build the kernel yourself, or ask its publisher for a build"


def no_suitable_build(asked: str, resolution: Resolution, *, here: bool = True) -> NoSuitableBuild:
    """The error for a kernel without a suitable build: `UnsupportedArch` if only the architecture does not match.

    Args:
        asked: The requirement, such as `org/name version 1`.
        resolution: The result, without an accepted variant.
        here: Whether the target is this machine.

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
    return kind(explain(asked, resolution, here=here))


def explain(asked: str, resolution: Resolution, *, here: bool = True) -> str:
    """Why no build suits: the requirement, the target, every variant with its reason, and what to try next."""
    where = f"{resolution.target}, backend {resolution.backend}"
    if not resolution.decisions:
        return f"{asked} has no builds at all (no folder build/<variant>), for this machine ({where}) or another."
    lines = [f"No build of {asked} suits {f'this machine ({where})' if here else where}:"]
    rejected = resolution.rejected
    lines += [f"  {format_text(each.variant.variant_str, 80)}: {each.reason}" for each in rejected[:_LISTED]]
    if len(rejected) > _LISTED:
        lines.append(f"  … and {len(rejected) - _LISTED} more")
    return "\n".join([*lines, advice(resolution, here=here)])


def advice(resolution: Resolution, *, here: bool = True) -> str:
    """What to try where no build suits. Whether another version has one that does, is not said: that is looked up.

    Args:
        resolution: The result, without an accepted variant.
        here: Whether the target is this machine.

    Example:
        >>> from kernels import Target
        >>> from kernels.resolver.selection import resolve
        >>> advice(resolve(["torch28-cpu-x86_64-linux"], Target.parse("torch2.9-cpu-x86_64-linux")))
        'Try an environment with Torch 2.8.'
    """
    if resolution.rejects_for(RejectionKind.NOT_MIRRORED):
        return "The mirror's origin has a build that suits by its name."
    target, backend = resolution.target, backends.get(resolution.backend)
    arch_rejected = resolution.rejects_for(RejectionKind.ARCH)
    if arch_rejected:
        parts = [f"{_ASK} that covers it."]
        if here and len(target.backend_devices(backend.name)) > 1:
            parts.insert(0, "Try another device with `device=`.")
        if here:
            parts.append("If the declared architectures are known to be incomplete, try `check_arch=False`.")
        return " ".join(parts)
    variants = [each.variant for each in resolution.rejected if isinstance(each.variant, Variant)]
    own = any(each.backend == backend.name for each in variants)
    if own and target.torch is not None and backend.name not in target.torch_backends:
        return (
            f"Try a Torch that is built for {backend.name}, or import the package that adds its device to this one; "
            f"`kernels backends check {backend.name}` says more."
        )
    # What would suit if one thing were different: variants that fail only one check.
    single: dict[str, set[str]] = {}
    for variant in variants:
        failing = [each.kind for each in name_misfits(variant, target, backend)]
        if failing == [RejectionKind.FRAMEWORK] and variant.framework_version is not None:
            newer = " or newer" if variant.kind == "torch-stable-abi" else ""
            name = "tvm-ffi" if variant.kind == "tvm-ffi" else "Torch"
            single.setdefault("framework", set()).add(f"{name} {variant.framework_version}{newer}")
        elif failing == [RejectionKind.ACCELERATOR]:
            single.setdefault("accelerator", set()).add(f"{backend.name} {variant.accelerator_version}")
    wishes = [format_names(sorted(options), " or ") for options in single.values()]
    if wishes:
        return f"Try an environment with {'; or '.join(wishes)}."
    # Another backend of this machine, its processor above all: a build for it fits, or is for another system or Torch.
    at_hand = {
        each.backend
        for each in variants
        if each.backend in target.backends
        and each.backend != backend.name
        and not any(name_misfits(each, target, backends.get(each.backend)))
    }
    elsewhere = {each.backend for each in variants} - {backend.name, UNIVERSAL} - set(target.backends)
    tries = [f'the build for {name} with `backend="{name}"` (`--backend {name}`)' for name in sorted(at_hand)]
    if elsewhere:
        tries.append(f"a machine with {format_names(sorted(elsewhere), ' or ')}")
    return f"Try {', or '.join(tries)}." if tries else f"{_ASK} that suits."
