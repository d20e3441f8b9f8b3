"""What `autotune` measures of a kind of layer: each kernel at each size of input, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from kernels.layer.autotune_report import TunedRow
from kernels.layer.decision import LayerDecision
from kernels.layer.marked import ModelModules
from kernels.layer.measure import Measured
from kernels.layer.plan import NO_CANDIDATE, LayerRequest, plan_layers
from kernels.layer.report import folded_path
from kernels.layer.timing import Seconds
from kernels.layer.tuned import (
    NOT_FASTER,
    Segment,
    TunedLayer,
    facts_of,
    identity_of,
    tuned_decision,
)

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["Kind", "KindAtSize", "Measure", "find_kinds", "label_of"]

#: Which share of a layer's time counts.
Measure = Literal["device", "whole"]


class Kind:
    """Layers of a model for which the same is measured: of one class, with the same kernels, sizes and type."""

    def __init__(self, facts: dict[str, str], decisions: Sequence[LayerDecision]) -> None:
        self.facts = facts
        self.decisions = decisions
        self.modules: list[nn.Module] = []
        self.paths: list[str] = []
        self.sizes: dict[int, KindAtSize] = {}
        #: The tensor by whose size a kernel is taken: the place of the argument, and its name.
        self.argument: tuple[int, str] | None = None

    @property
    def path(self) -> str:
        """The path of one layer, or that of all with a star for each number."""
        if len(self.paths) == 1:
            return self.paths[0] or "(the model)"
        return f"{folded_path(self.paths[0])} ({len(self.paths)})"

    def fault(self, candidate: int) -> str | None:
        """Why a kernel is out; wrong for one size is wrong."""
        return next((fault for size in self.sizes.values() if (fault := size.measured.kernels[candidate].fault)), None)

    def backward_fault(self, candidate: int) -> str | None:
        """Why a kernel serves only where no gradient is needed."""
        faults = (size.measured.kernels[candidate].backward_fault for size in self.sizes.values())
        return next(filter(None, faults), None)

    def decision(self, chosen: Mapping[int, int | None]) -> LayerDecision:
        """The decision, by the kernel that is chosen for each size."""
        reason = self.fault(0) or NOT_FASTER
        forward_only = {place for place in range(len(self.decisions)) if self.backward_fault(place)}
        cls = type(self.modules[0])
        return tuned_decision(cls, self.decisions, self._segments(chosen), forward_only, self.argument, reason)

    def record(self, chosen: Mapping[int, int | None]) -> TunedLayer:
        """The decision, to be kept."""
        known = [identity_of(each) for each in self.decisions]
        segments = [
            Segment(elements, None if candidate is None else known[candidate])
            for elements, candidate in self._segments(chosen)
        ]
        out = {known[place].text: fault for place in range(len(known)) if (fault := self.fault(place))}
        forward_only = {each.text: fault for place, each in enumerate(known) if (fault := self.backward_fault(place))}
        return TunedLayer(
            facts=self.facts,
            segments=tuple(segments),
            measured=tuple(known),
            out=out,
            forward_only=forward_only,
            argument=self.argument,
        )

    def _segments(self, chosen: Mapping[int, int | None]) -> list[tuple[int, int | None]]:
        """From how many elements on it takes which kernel, or its own forward."""
        found: list[tuple[int, int | None]] = [(0, None)]
        for place, (elements, size) in enumerate(sorted(self.sizes.items())):
            candidate = chosen.get(elements)
            if candidate is not None and self.fault(candidate):
                candidate = None
            # Nothing is smaller than one row.
            begin = 0 if place == 0 and size.rows <= 1 else elements
            if candidate != found[-1][1]:
                found.append((begin, candidate))
        return [each for place, each in enumerate(found) if place + 1 == len(found) or found[place + 1][0] > each[0]]

    def rows(self, chosen: Mapping[int, int | None], measure: Measure) -> Iterator[TunedRow]:
        """What was measured, as rows of the report."""
        for place, decision in enumerate(self.decisions):
            if decision.function is None:
                if decision.reason != NO_CANDIDATE:
                    yield self._row(decision, reason=decision.reason or "")
                continue
            if not self.sizes:
                yield self._row(decision, reason="no call reaches it")
            for elements, size in sorted(self.sizes.items()):
                yield self._measured_row(place, size, chosen.get(elements), measure)

    def _measured_row(self, place: int, size: KindAtSize, chosen: int | None, measure: Measure) -> TunedRow:
        decision, fault = self.decisions[place], self.fault(place)
        reason: str | None = fault or size.dropped or (NOT_FASTER if chosen is None else "another kernel is faster")
        taken = chosen == place and fault is None
        if taken:
            fault = self.backward_fault(place)
            reason = None if fault is None else f"its own forward where a gradient is needed: {fault}"
        own, kernel = size.seconds(None, measure), size.seconds(place, measure)
        return self._row(
            decision,
            inputs=size.label,
            own_seconds=None if own is None else own.median,
            kernel_seconds=None if kernel is None else kernel.median,
            difference=size.measured.kernels[place].difference,
            chosen=taken,
            reason=reason,
        )

    def _row(self, decision: LayerDecision, *, inputs: str = "-", **rest: Any) -> TunedRow:
        return TunedRow(module=self.path, layer=decision.layer, inputs=inputs, kernel=decision.kernel or "-", **rest)


class KindAtSize:
    """What was measured of a kind for inputs of one size.

    Args:
        tensor: The first tensor of the inputs.
        measured: The measurements.

    Attributes:
        layers: How many layers a call runs with inputs of this size.
        dropped: Why a faster kernel does not serve; None without such a reason.
    """

    def __init__(self, tensor: torch.Tensor, measured: Measured) -> None:
        self.label = label_of(tensor)
        self.rows = tensor.numel() // max(1, tensor.shape[-1] if tensor.ndim else 1)
        self.measured = measured
        self.layers = 1
        self.dropped: str | None = None

    def seconds(self, candidate: int | None, measure: Measure) -> Seconds | None:
        """The time of a kernel, or of the own forward: the device's share alone, or the whole where it was measured."""
        contender = self.measured.own if candidate is None else self.measured.kernels[candidate]
        device, whole = contender.device, contender.whole
        first, second = (device, whole) if measure == "device" else (whole, device)
        return first if first is not None else second

    def gain(self, candidate: int | None, measure: Measure) -> float:
        """The seconds that a kernel saves in one call of the layer, beyond the noise."""
        own, kernel = self.seconds(None, measure), self.seconds(candidate, measure)
        return 0.0 if own is None or kernel is None else own.median - kernel.median - own.noise - kernel.noise

    def right(self) -> list[int]:
        """The kernels that give right results."""
        return [place for place, each in enumerate(self.measured.kernels) if each.fault is None]

    def is_sure(self, candidate: int | None) -> bool:
        """Whether neither the whole nor the device's share is longer: no change of the host's speed makes it slower."""
        if candidate is None:
            return True
        times = [(self.seconds(None, each), self.seconds(candidate, each)) for each in ("device", "whole")]
        return all(own is not None and kernel is not None and not own.is_faster_than(kernel) for own, kernel in times)

    def fastest(self, measure: Measure, *, sure: bool = False) -> int | None:
        """The fastest kernel that is right and faster than the own forward."""
        own = self.seconds(None, measure)
        best, found = own, None
        for place in self.right():
            seconds = self.seconds(place, measure)
            if seconds is None or own is None or best is None or not seconds.is_faster_than(own):
                continue
            if seconds.median < best.median and (self.is_sure(place) or not sure):
                best, found = seconds, place
        return found


def find_kinds(model: nn.Module, found: ModelModules, request: LayerRequest) -> list[Kind]:
    """Load every kernel that is mapped to a model's layers, and group the layers that some of them may serve.

    Args:
        model: The model.
        found: Its layers.
        request: What `autotune` was asked for.
    """
    plans: list[dict[int, tuple[nn.Module, LayerDecision]]] = []
    while True:
        plan = plan_layers(found, replace(request, candidate=len(plans)))
        decided = {id(module): (module, each) for modules, each in plan if each is not None for module in modules}
        if plans and all(each.function is None and each.reason == NO_CANDIDATE for _, each in decided.values()):
            break
        plans.append(decided)
        if not any(each.function is not None for _, each in decided.values()) and len(plans) > 1:
            break
    kinds: dict[Any, Kind] = {}
    paths = {id(module): path for module, path in zip(found.modules, found.paths, strict=True)}
    paths |= {id(function): path for _, path, function in reversed(list(found.functions()))}
    for identity, (module, first) in plans[0].items():
        decisions = [plan[identity][1] for plan in plans if identity in plan]
        if all(each.function is None for each in decisions):
            continue
        facts = facts_of(model, module, first, request.modes[0])
        key = type(module), tuple(facts.items()), tuple(each.function for each in decisions)
        kind = kinds.setdefault(key, Kind(facts, decisions))
        kind.modules.append(module)
        kind.paths.append(paths.get(identity, first.layer))
    return list(kinds.values())


def label_of(tensor: torch.Tensor) -> str:
    """The type and the shape of a tensor, such as `bf16[4, 512, 2048]`."""
    short = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}
    name = str(tensor.dtype).removeprefix("torch.")
    return f"{short.get(name, name)}{list(tensor.shape)}"
