"""Which build suits a target, and why each other one is rejected.

Pure: names of builds, their metadata and a `Target` go in, decisions come out. No network, no disk and no Torch, so one
machine can decide for another. `rank` judges by names alone; metadata is needed of the builds that it leaves, in its
order, until one suits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from kernels import backends
from kernels.backends import Backend, Device, listed
from kernels.errors import InvalidVariant, KernelsError, RequestError
from kernels.models.metadata import Metadata
from kernels.resolver.decision import Decision, RejectionKind, VariantAccepted, VariantRejected
from kernels.resolver.name_checks import name_misfit
from kernels.resolver.target import Target, backend_of
from kernels.resolver.variant import UNIVERSAL, Accelerator, UnparsedVariant, Variant, parse_variant
from kernels.support.formatting import format_text, wrong_type

__all__ = ["Ranking", "Resolution", "choose_backend", "rank", "resolve"]

_DEVICE = r"([A-Za-z][A-Za-z0-9_]*)(?::([0-9]{1,4}))?"

#: Devices that are tried to name another one.
_TRIED_DEVICES = 16


class Resolution(msgspec.Struct, frozen=True):
    """The result of `resolve`.

    Attributes:
        target: The machine.
        backend: The backend's name.
        device: The device whose architecture was checked, or None.
        decisions: Every variant: the accepted ones, best first, then the rejected ones, nearest misses first.
        best: The variant to use, or None if none suits.
        uncovered_devices: Visible devices of the backend that `best` does not cover.
    """

    target: Target
    backend: str
    device: Device | None
    decisions: tuple[Decision, ...]
    best: Variant | None
    uncovered_devices: tuple[Device, ...] = ()

    @property
    def accepted(self) -> tuple[Variant, ...]:
        """The accepted variants, best first."""
        return tuple(each.variant for each in self.decisions if isinstance(each, VariantAccepted))

    @property
    def rejected(self) -> tuple[VariantRejected, ...]:
        """The rejected variants with their reasons."""
        return tuple(each for each in self.decisions if isinstance(each, VariantRejected))

    def rejects_for(self, kind: RejectionKind) -> bool:
        """Whether any variant was rejected for this.

        Args:
            kind: The reason.
        """
        return any(each.kind is kind for each in self.rejected)


def resolve(
    names: Iterable[str],
    target: Target,
    *,
    backend: str | None = None,
    metadata: Mapping[str, Metadata | KernelsError] | None = None,
    check_arch: bool = True,
    device: int | str | None = None,
) -> Resolution:
    """Decide for every variant whether it suits a target, and which suits best.

    Args:
        names: Names of the folders in `build/`.
        target: The machine.
        backend: A backend of the target, by any of its names; the default is the target's default.
        metadata: Metadata of variants by name; an error in its place rejects the variant, and what is missing nothing.
        check_arch: Whether a build must cover the device's architecture.
        device: The device's index, or its Torch name such as `"cuda:1"`; the default is the current one.

    Returns:
        The decisions, and the best variant.

    Raises:
        TypeError: `backend` or `device` is of the wrong type.
        RequestError: The target has no such backend or device.

    Example:
        >>> target = Target.parse("torch2.9-cu128-x86_64-linux")
        >>> resolution = resolve(["torch29-cxx11-cu126-x86_64-linux", "torch-cuda", "torch-cpu"], target)
        >>> resolution.best.name, resolution.decisions[-1].reason
        ('torch29-cxx11-cu126-x86_64-linux', 'for cpu, not cuda')
    """
    return rank(names, target, backend=backend, check_arch=check_arch, device=device).decide(metadata or {})


class Ranking(msgspec.Struct, frozen=True):
    """Variants judged by their names.

    Attributes:
        target: The machine.
        backend: The backend to choose for.
        device: The device whose architecture is checked, or None.
        check_arch: Whether architectures are checked.
        fitting: The variants that fit by name, the best first.
        rejected: The others, nearest misses first.
    """

    target: Target
    backend: Backend
    device: Device | None
    check_arch: bool
    fitting: Mapping[str, Variant]
    rejected: tuple[VariantRejected, ...]

    def rejection(self, name: str, facts: Metadata | KernelsError) -> VariantRejected | None:
        """Why a variant that fits by name is rejected for its metadata, or None.

        Args:
            name: The variant.
            facts: Its metadata, or the error of reading it.
        """
        variant = self.fitting[name]
        if isinstance(facts, KernelsError):
            return VariantRejected(variant, str(facts), RejectionKind.of(facts))
        declared = facts.backend
        if variant.accelerator != UNIVERSAL and declared.type != variant.backend:
            # Metadata and name that contradict each other are not believed.
            why = f"its metadata says it is for {declared.type}, its name for {variant.backend}"
            return VariantRejected(variant, why)
        if not self.check_arch or declared.type != self.backend.name:
            return None
        reason = self.backend.arch_reason(declared.archs, self.device)
        if reason is None:
            return None
        others = self.target.backend_devices(self.backend.name)[:_TRIED_DEVICES]
        covered = any(self.backend.arch_reason(declared.archs, each) is None for each in others)
        # The reason may quote the architectures that a repository declares.
        remedy = "another device with `device=`" if covered else ""
        return VariantRejected(variant, format_text(reason, 1000), RejectionKind.ARCH, remedy)

    def decide(self, metadata: Mapping[str, Metadata | KernelsError]) -> Resolution:
        """The decision about each variant.

        Args:
            metadata: Metadata of variants by name, as far as it was read; an error in its place rejects the variant.
        """
        refused = {name: self.rejection(name, facts) for name, facts in metadata.items() if name in self.fitting}
        accepted = [variant for name, variant in self.fitting.items() if refused.get(name) is None]
        rejected = [each for name in self.fitting if (each := refused.get(name)) is not None]
        best = accepted[0] if accepted else None
        uncovered = () if best is None else self._uncovered(metadata.get(best.name))
        return Resolution(
            target=self.target,
            backend=self.backend.name,
            device=self.device,
            decisions=(*_told(accepted, uncovered), *rejected, *self.rejected),
            best=best,
            uncovered_devices=uncovered,
        )

    def _uncovered(self, facts: Metadata | KernelsError | None) -> tuple[Device, ...]:
        if not isinstance(facts, Metadata) or facts.backend.type != self.backend.name:
            return ()
        visible, archs = self.target.backend_devices(self.backend.name), facts.backend.archs
        return tuple(each for each in visible if self.backend.arch_reason(archs, each) is not None)


def _told(accepted: Sequence[Variant], uncovered: Sequence[Device]) -> Iterator[VariantAccepted]:
    for best in accepted[:1]:
        reason = "the best that fits" if len(accepted) > 1 else "the only one that fits"
        names = [f"{device.index} ({device.arch})" for device in uncovered]
        yield VariantAccepted(best, "chosen", f"{reason}; does not cover device {listed(names)}" if names else reason)
        for other in accepted[1:]:
            yield VariantAccepted(other, "accepted", f"fits, but {best} is preferred")


def rank(
    names: Iterable[str],
    target: Target,
    *,
    backend: str | None = None,
    check_arch: bool = True,
    device: int | str | None = None,
) -> Ranking:
    """Judge variants by their names, and order those that fit.

    Args:
        names: The variants, `torch29-cxx11-cu126-x86_64-linux`.
        target: The machine.
        backend: The backend that builds must be for; the default is the target's.
        check_arch: Whether a build must cover the device's architecture.
        device: The device that it must run on, as for `resolve`, which has the same errors.

    Returns:
        Those that fit, the best one first, and those that do not.

    Example:
        >>> target = Target.parse("torch2.9-cu128-x86_64-linux")
        >>> ranking = rank(["torch-cuda", "torch29-cxx11-cu126-x86_64-linux", "torch-cpu"], target)
        >>> list(ranking.fitting), ranking.rejected[0].reason
        (['torch29-cxx11-cu126-x86_64-linux', 'torch-cuda'], 'for cpu, not cuda')
    """
    chosen, index = choose_backend(target, backend, device)
    used = _device(target, chosen, index)
    fitting: list[tuple[tuple[int, ...], str, Variant]] = []
    rejected: list[tuple[tuple[int, ...], str, VariantRejected]] = []
    accelerators: dict[str, Accelerator | None] = {}
    for name in dict.fromkeys(names):
        try:
            variant = parse_variant(name, accelerators)
        except InvalidVariant as error:
            unparsed = VariantRejected(UnparsedVariant(name), str(error), RejectionKind.NAME)
            rejected.append(((_NEARNESS[RejectionKind.NAME],), name, unparsed))
            continue
        misfit = name_misfit(variant, target, chosen)
        if misfit is None:
            fitting.append((_preference(variant), name, variant))
        else:
            rejected.append(((_NEARNESS[misfit.kind], *_preference(variant)), name, misfit))
    # Names are unique, so no two variants are compared.
    return Ranking(
        target,
        chosen,
        used,
        check_arch and chosen.checks_archs and used is not None,
        {name: variant for _, name, variant in sorted(fitting)},
        tuple([each for _, _, each in sorted(rejected)]),
    )


#: A variant that fails late is a nearer miss than one that fails early.
_NEARNESS = {kind: -step for step, kind in enumerate(RejectionKind)}

_KIND_ORDER = {"torch-stable-abi": 0, "torch": 1, "tvm-ffi": 2, "torch-noarch": 3}


def _preference(variant: Variant) -> tuple[int, ...]:
    """Lower is better: stable ABI (newest first), Torch (untagged first), tvm-ffi, noarch, universal."""
    framework, accelerator = variant.framework_version, variant.accelerator_version
    return (
        _KIND_ORDER[variant.kind],
        variant.accelerator == UNIVERSAL,
        *((0, 0) if framework is None else (-framework.major, -framework.minor)),
        variant.abi is not None,
        *((0, 0) if accelerator is None else (-accelerator.major, -accelerator.minor)),
    )


def choose_backend(target: Target, backend: str | None, device: Any) -> tuple[Backend, int | None]:
    """The backend that arguments name, and the index of the device if `device` names one.

    Args:
        target: The machine.
        backend: A backend of the target, by any of its names; the default is the target's default.
        device: The device's index, or its Torch name such as `"cuda:1"`; or None.

    Raises:
        TypeError: An argument is of the wrong type.
        RequestError: The target has no such backend, or the device is another backend's.

    Example:
        >>> backend, index = choose_backend(Target.parse("torch2.9-cu128-x86_64-linux"), None, "cuda:1")
        >>> backend.name, index
        ('cuda', 1)
    """
    if isinstance(getattr(device, "type", None), str) and hasattr(device, "index"):
        device = str(device)  # a `torch.device`
    kind: str | None = None
    index = device if isinstance(device, int) else None
    if isinstance(device, bool) or not isinstance(device, (int, str, type(None))):
        raise wrong_type("device", "an index or a name like 'cuda:1'", device)
    if isinstance(device, str):
        match = re.fullmatch(_DEVICE, device)
        if match is None:
            raise RequestError(f"`device`: expected an index or a name like 'cuda:1', got {device[:200]!r}.")
        kind, index = match[1], int(match[2]) if match[2] else None
    if backend is None and kind is None:
        return backends.get(target.default_backend), index
    chosen = backend_of(target, "backend", backend) if backend is not None else None
    named = backend_of(target, "device", kind, device) if kind is not None else None
    if chosen is not None and named is not None and named.device_type != chosen.device_type:
        raise RequestError(f"`device` is {device!r}, which is not a device of `backend` {backend!r}.")
    result = chosen or named
    assert result is not None
    return result, index


def _device(target: Target, backend: Backend, index: int | None) -> Device | None:
    visible = target.backend_devices(backend.name)
    if index is None:
        index = target.current_device if backend.name == target.default_backend else 0
        return next((device for device in visible if device.index == index), visible[0] if visible else None)
    for device in visible:
        if device.index == index:
            return device
    if index < 0 or visible:
        there = ", ".join(str(device.index) for device in visible) or "0 or more"
        raise RequestError(f"`device` is {index}; {backend.name} has {there}.")
    return None
