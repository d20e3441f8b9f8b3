"""What `kernelize` decided for a layer, and where a module keeps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from kernels.layer.device import ModuleDevice
from kernels.layer.mapping import NoKernel, SelectedKernel
from kernels.layer.mode import Mode

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["DECISION", "Chosen", "LayerDecision", "LayerState", "dtype_of", "noted_decision"]

#: The attribute in which a module keeps its decision. An unpickled module has the layer's name in it.
DECISION = "_kernelized"


class Chosen(Struct, frozen=True, eq=False):
    """What a decision was made from: what the mapping gave, and the device."""

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


class LayerDecision(Struct, frozen=True, eq=False):
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
        from_size: From which size of the input on the kernel serves, as text; None if it serves all.
        measured: Whether `autotune` measured it.
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
    from_size: str | None = None
    measured: bool = False
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


def dtype_of(tensor: Any) -> torch.dtype | None:
    """The type of a parameter of floating-point numbers; None of another one."""
    dtype: torch.dtype | None = getattr(tensor, "dtype", None)
    return dtype if dtype is not None and dtype.is_floating_point else None
