"""Which variant suits a target, and why each other one is rejected.

Pure: names of variants, their metadata and a `Target` go in, decisions come out. No network, no disk and no Torch, so
one machine can decide for another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kernels import backends
from kernels.backends import Backend, Device
from kernels.errors import InvalidVariant, KernelsError, RequestError
from kernels.models.metadata import Metadata
from kernels.resolver.name_checks import NAME_CHECKS
from kernels.resolver.rejection import RejectionKind, rejection_of
from kernels.resolver.target import Target, not_there
from kernels.resolver.variant import UNIVERSAL, Accelerator, UnparsedVariant, Variant, parse_variant
from kernels.support.formatting import format_text, wrong_type

__all__ = [
    "Decision",
    "Ranking",
    "RejectionKind",
    "Resolution",
    "VariantAccepted",
    "VariantRejected",
    "choose_backend",
    "name_misfits",
    "resolve",
]

_DEVICE = r"([A-Za-z][A-Za-z0-9_]*)(?::([0-9]{1,4}))?"

#: A variant that fails late is a nearer miss than one that fails early.
_STEPS = {kind: step for step, kind in enumerate(NAME_CHECKS)}

_KIND_ORDER = {"torch-stable-abi": 0, "torch": 1, "tvm-ffi": 2, "torch-noarch": 3}


@dataclass(frozen=True)
class VariantAccepted:
    """A variant that suits the target.

    Attributes:
        variant: The variant.
    """

    variant: Variant


@dataclass(frozen=True)
class VariantRejected:
    """A variant that does not suit the target, and why.

    Attributes:
        variant: The variant; an `UnparsedVariant` where the folder's name is not a variant's.
        reason: Why it was rejected.
        kind: The same, for programs.
    """

    variant: Variant | UnparsedVariant
    reason: str
    kind: RejectionKind = field(default=RejectionKind.METADATA, compare=False)


Decision = VariantAccepted | VariantRejected
"""What was decided about a variant."""


class Resolution(msgspec.Struct, frozen=True):
    """The result of `resolve`.

    Attributes:
        target: The machine.
        backend: The backend's name.
        device: The device whose architecture was checked, or None.
        decisions: Every variant: the accepted ones, best first, then the rejected ones, nearest misses first.
        best: The variant to use; None if none suits, or while `needs_metadata` names one.
        needs_metadata: The variant whose metadata must be read before `best` is final, or None.
        uncovered_devices: Visible devices of the backend that `best` does not cover.
    """

    target: Target
    backend: str
    device: Device | None
    decisions: tuple[Decision, ...]
    best: Variant | None
    needs_metadata: str | None
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

    Metadata may be added step by step: `needs_metadata` names the variant whose metadata is needed next, and is None
    when the choice is final.

    Args:
        names: Names of the folders in `build/`.
        target: The machine.
        backend: A backend of the target, by any of its names; the default is the target's default.
        metadata: Metadata of variants by name, as far as it was read; an error in its place rejects the variant.
        check_arch: Whether a build must cover the device's architecture.
        device: The device's index, or its Torch name such as `"cuda:1"`; the default is the current one.

    Returns:
        The decisions, the best variant, and what is still to be read.

    Raises:
        TypeError: `backend` or `device` is of the wrong type.
        RequestError: The target has no such backend or device.

    Example:
        >>> target = Target.parse("torch2.9-cu128-x86_64-linux")
        >>> resolution = resolve(["torch29-cxx11-cu126-x86_64-linux", "torch-cuda", "torch-cpu"], target)
        >>> resolution.best.name, resolution.decisions[-1].reason
        ('torch29-cxx11-cu126-x86_64-linux', 'for cpu, not cuda')
    """
    ranking = Ranking(names, target, backend=backend, check_arch=check_arch, device=device)
    for name, facts in (metadata or {}).items():
        ranking.learn(name, facts)
    return ranking.resolution()


class Ranking:
    """Variants ranked by their names once, and decided one by one as their metadata is read.

    Names are parsed and sorted once, however many variants' metadata is read; `resolve` does it all at once.

    Args:
        names: As for `resolve`.
        target: As for `resolve`.
        backend: As for `resolve`.
        check_arch: As for `resolve`.
        device: As for `resolve`.

    Raises:
        TypeError: `backend` or `device` is of the wrong type.
        RequestError: The target has no such backend or device.

    Example:
        >>> target = Target.parse("torch2.9-cu128-x86_64-linux")
        >>> from kernels.errors import InvalidMetadata
        >>> ranking = Ranking(["torch-cuda", "torch29-cxx11-cu126-x86_64-linux", "torch-cpu"], target)
        >>> for name in ranking.unread():
        ...     ranking.learn(name, InvalidMetadata("it is broken"))
        >>> [each.reason for each in ranking.resolution().rejected]
        ['it is broken', 'it is broken', 'for cpu, not cuda']
    """

    def __init__(
        self,
        names: Iterable[str],
        target: Target,
        *,
        backend: str | None = None,
        check_arch: bool = True,
        device: int | str | None = None,
    ) -> None:
        self._target = target
        self._backend, index = choose_backend(target, backend, device)
        self._visible = target.backend_devices(self._backend.name)
        self._device = _device(target, self._backend, self._visible, index)
        self._check_arch = check_arch and self._backend.checks_archs and self._device is not None
        #: The metadata of those that fit by name, and the rejection that follows from it, if any.
        self._facts: dict[str, Metadata | KernelsError] = {}
        self._judged: dict[str, VariantRejected | None] = {}

        fitting: list[tuple[tuple[int, ...], str, Variant]] = []
        rejected: list[tuple[tuple[int, ...], str, VariantRejected]] = []
        accelerators: dict[str, Accelerator | None] = {}
        for name in dict.fromkeys(names):
            try:
                variant = parse_variant(name, accelerators)
            except InvalidVariant as error:
                unparsed = VariantRejected(UnparsedVariant(name), str(error), RejectionKind.NAME)
                rejected.append(((len(NAME_CHECKS) + 1,), name, unparsed))
                continue
            misfit = next(name_misfits(variant, target, self._backend), None)
            if misfit is None:
                fitting.append((_preference(variant), name, variant))
            else:
                rank = (len(NAME_CHECKS) - _STEPS[misfit.kind], *_preference(variant))
                rejected.append((rank, name, misfit))
        # Names are unique, so no two variants are compared.
        self._fitting = {name: variant for _, name, variant in sorted(fitting)}
        self._rejected = [each for _, _, each in sorted(rejected)]

    def unread(self, *, every: bool = False) -> Iterator[str]:
        """The names of the variants whose metadata is needed; pass it to `learn` before taking the next name.

        Args:
            every: Every variant that fits by name, not only those needed to find the best.
        """
        for name in self._fitting:
            if name not in self._judged:
                yield name
            if not every and name in self._judged and self._judged[name] is None:
                return

    def learn(self, name: str, facts: Metadata | KernelsError) -> None:
        """Add the metadata of a variant; an error in its place rejects the variant.

        Args:
            name: The variant.
            facts: Its metadata, or the error of reading it.
        """
        variant = self._fitting.get(name)
        if variant is None:
            return
        self._facts[name] = facts
        self._judged[name] = self._judge(variant, facts)

    def _judge(self, variant: Variant, facts: Metadata | KernelsError) -> VariantRejected | None:
        if isinstance(facts, KernelsError):
            return VariantRejected(variant, str(facts), rejection_of(facts))
        if variant.accelerator != UNIVERSAL and facts.backend.type != variant.backend:
            # Metadata and name that contradict each other are not believed.
            why = f"its metadata says it is for {facts.backend.type}, its name for {variant.backend}"
            return VariantRejected(variant, why, RejectionKind.METADATA)
        chosen = self._backend
        if self._check_arch and facts.backend.type == chosen.name:
            reason = chosen.arch_reason(facts.backend.archs, self._device)
            if reason is not None:
                # It may quote the architectures that a repository declares.
                return VariantRejected(variant, format_text(reason, 1000), RejectionKind.ARCH)
        return None

    def resolution(self) -> Resolution:
        """The decisions so far, as `resolve` returns them."""
        accepted: list[Variant] = []
        refused: list[VariantRejected] = []
        needed: str | None = None
        for name, variant in self._fitting.items():
            rejected = self._judged.get(name)
            if rejected is not None:
                refused.append(rejected)
                continue
            if self._check_arch and not accepted and name not in self._judged:
                needed = name
            accepted.append(variant)
        best = accepted[0] if accepted and needed is None else None
        return Resolution(
            target=self._target,
            backend=self._backend.name,
            device=self._device,
            decisions=(*map(VariantAccepted, accepted), *refused, *self._rejected),
            best=best,
            needs_metadata=needed,
            uncovered_devices=_uncovered(best, self._facts, self._backend, self._visible),
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
    chosen = _of_target(target, "backend", backend) if backend is not None else None
    named = _of_target(target, "device", kind, device) if kind is not None else None
    if chosen is not None and named is not None and named.device_type != chosen.device_type:
        raise RequestError(f"`device` is {device!r}, which is not a device of `backend` {backend!r}.")
    result = chosen or named
    assert result is not None
    return result, index


def _of_target(target: Target, argument: str, name: str, given: object = None) -> Backend:
    try:
        return backends.find(name, among=target.backends)
    except RequestError:
        raise not_there(target, argument, name, given) from None


def _device(target: Target, backend: Backend, visible: tuple[Device, ...], index: int | None) -> Device | None:
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


def _preference(variant: Variant) -> tuple[int, ...]:
    """Lower is better: stable ABI (newest first), Torch (untagged first), tvm-ffi, noarch, universal."""
    newest = variant.framework_version if variant.kind == "torch-stable-abi" else None
    accelerator = variant.accelerator_version
    return (
        _KIND_ORDER[variant.kind],
        variant.accelerator == UNIVERSAL,
        *((0, 0) if newest is None else (-newest.major, -newest.minor)),
        variant.abi is not None,
        *((0, 0) if accelerator is None else (-accelerator.major, -accelerator.minor)),
    )


def name_misfits(variant: Variant, target: Target, backend: Backend) -> Iterator[VariantRejected]:
    """Which checks a variant's name fails, in the order of `RejectionKind`.

    Args:
        variant: The variant.
        target: The machine it would run on.
        backend: The backend to choose for.
    """
    for kind, check in NAME_CHECKS.items():
        reason = check(variant, target, backend)
        if reason is not None:
            yield VariantRejected(variant, reason, kind)


def _uncovered(
    best: Variant | None,
    known: Mapping[str, Metadata | KernelsError],
    backend: Backend,
    visible: tuple[Device, ...],
) -> tuple[Device, ...]:
    facts = None if best is None else known.get(best.name)
    if not isinstance(facts, Metadata) or facts.backend.type != backend.name:
        return ()
    archs = facts.backend.archs
    return tuple(each for each in visible if backend.arch_reason(archs, each) is not None)
