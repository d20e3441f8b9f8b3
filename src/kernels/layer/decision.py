"""What `kernelize` decided for a layer, and where a module keeps it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kernels.layer.device import ModuleDevice
from kernels.layer.function import is_function
from kernels.layer.mapping import MappingView, NoKernel, SelectedKernel
from kernels.layer.mode import Mode

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["DECISION", "NOTES", "Chosen", "LayerDecision", "LayerState", "noted_decision"]

#: The attribute in which a module keeps its decision. An unpickled module has the layer's name in it.
DECISION = "_kernelized"

#: The attribute in which a model keeps the notes of its last `kernelize`: strings. No pickle has it.
NOTES = "_kernels_notes"


@dataclass(frozen=True, eq=False)
class Chosen:
    """What a decision was made from: the mapping, what it gave, and the device."""

    view: MappingView
    choice: SelectedKernel | NoKernel
    device: ModuleDevice


class LayerState(NamedTuple):
    """How a module was when `kernelize` decided for it.

    Attributes:
        training: Its `training`; for a function, the model's.
        device: The device of its tensors.
        dtype: The type of its first parameter, if it has one of floating-point numbers.
    """

    training: bool
    device: torch.device | None
    dtype: torch.dtype | None

    @classmethod
    def of(cls, module: nn.Module, device: torch.device | None, training: bool) -> LayerState:
        """The state of a module now.

        Args:
            module: A layer, or a function.
            device: The device of its tensors.
            training: The `training` of the model.
        """
        return cls(training if is_function(module) else module.training, device, _dtype(module))


@dataclass(frozen=True, eq=False)
class LayerDecision:
    """What `kernelize` decided for a layer; shared by modules with the same decision, and by their copies.

    Attributes:
        layer: The layer's name in mappings.
        mode: The mode that the model was kernelized for.
        function: The kernel's forward, not bound to a module; None if the layer keeps its own.
        reason: Why it keeps its own.
        kernel: The kernel's repository or folder.
        commit: The commit it was loaded at.
        variant: The build.
        registered: The mode that the kernel is registered for.
        chosen: What the decision was made from; None if the mapping was not asked.
        state: How the module was then.
        each: With `auto`, the decision for inference and that for training.
    """

    layer: str
    mode: Mode | None = None
    function: Callable[..., Any] | None = None
    reason: str | None = None
    kernel: str | None = None
    commit: str | None = None
    variant: str | None = None
    registered: Mode | None = None
    chosen: Chosen | None = None
    state: LayerState | None = None
    each: tuple[LayerDecision, ...] = ()

    @property
    def by_mode(self) -> tuple[LayerDecision, ...]:
        """The decision for each mode."""
        return self.each or (self,)

    def __deepcopy__(self, memo: dict[int, Any]) -> LayerDecision:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle must load without this package, and cannot contain a kernel's code.
        return str, (self.layer,)


def noted_decision(module: nn.Module) -> LayerDecision | None:
    """The decision that a module keeps, whatever became of its forward since; None without one."""
    noted = module.__dict__.get(DECISION)
    return noted if isinstance(noted, LayerDecision) else None


def _dtype(module: nn.Module) -> torch.dtype | None:
    for parameter in module._parameters.values():
        if parameter is not None:
            dtype: torch.dtype | None = getattr(parameter, "dtype", None)
            return dtype if dtype is not None and dtype.is_floating_point else None
    for child in module._modules.values():
        found = None if child is None else _dtype(child)
        if found is not None:
            return found
    return None
