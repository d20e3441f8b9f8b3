"""What has changed since a layer was kernelized, so that it should be kernelized again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kernels.layer.decision import Chosen, LayerDecision, LayerState
from kernels.layer.device import ModuleDevice, of_tensor
from kernels.layer.mapping import MappingView, NoKernel, SelectedKernel, refreshed, select
from kernels.layer.mode import Mode
from kernels.layer.repos import described, same_layer

if TYPE_CHECKING:
    import torch

__all__ = ["ChangesSince"]


class ChangesSince:
    """Compares decisions with now; the mapping of each is read once."""

    def __init__(self) -> None:
        self._views: dict[int, MappingView] = {}
        self._selected: dict[tuple[int, str, ModuleDevice, Mode], SelectedKernel | NoKernel] = {}

    def of(self, now: LayerState, decision: LayerDecision, mode: LayerDecision) -> str:
        """What has changed for a layer, as a sentence part; empty if nothing.

        Args:
            now: Its state.
            decision: Its decision.
            mode: That of its decisions by mode which is asked for.
        """
        if decision.state is None:
            return ""
        return "; ".join(self._changes(decision, mode, decision.state, now))

    def _changes(self, whole: LayerDecision, mode: LayerDecision, then: LayerState, now: LayerState) -> Iterator[str]:
        chosen, asked = mode.chosen, mode.mode
        if chosen is None or asked is None:
            return
        wanted = asked
        if not whole.each and now.training != then.training:
            wanted = (Mode.TRAINING if now.training else Mode.INFERENCE) | (asked & Mode.TORCH_COMPILE)
        device = chosen.device
        if now.device is not None and then.device is not None and now.device != then.device:
            moved = of_tensor(now.device)
            if moved.type != device.type or moved.arch() != device.arch():
                device = moved
        choice = self._select(chosen, mode.layer, device, wanted)
        if isinstance(chosen.choice, NoKernel) and isinstance(choice, NoKernel):
            return  # it would keep its own forward again
        if wanted != asked:
            yield f"kernelized for {asked}, now in {'training' if now.training else 'evaluation'}"
        if device != chosen.device:
            yield f"kernelized for {chosen.device}, now on {device}"
        if then.dtype is not None and now.dtype is not None and now.dtype != then.dtype:
            yield f"kernelized in {_name(then.dtype)}, now in {_name(now.dtype)}"
        mapped = _mapped(chosen.choice, self._select(chosen, mode.layer, chosen.device, asked))
        if mapped is not None:
            yield mapped

    def _select(self, chosen: Chosen, layer: str, device: ModuleDevice, mode: Mode) -> SelectedKernel | NoKernel:
        key = id(chosen.view), layer, device, mode
        if key not in self._selected:
            view = self._views.setdefault(id(chosen.view), refreshed(chosen.view))
            self._selected[key] = select(view, layer, device, mode)
        return self._selected[key]


def _mapped(then: SelectedKernel | NoKernel, now: SelectedKernel | NoKernel) -> str | None:
    """How the mapping has changed for a layer."""
    if isinstance(then, NoKernel):
        if isinstance(now, NoKernel):
            return None
        return f"kernelized without a kernel, now {described(now.repository)} is mapped to it"
    if isinstance(now, NoKernel):
        return f"kernelized with {described(then.repository)}, now {now.reason}"
    if same_layer(then.repository, now.repository) and then.mode == now.mode:
        return None
    return f"kernelized with {described(then.repository)}, now {described(now.repository)} is mapped to it"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
