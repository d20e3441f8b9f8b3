"""What `kernelize` decided for a layer, and where a module keeps it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernels.layer.mode import Mode

if TYPE_CHECKING:
    from torch import nn

__all__ = ["DECISION", "LayerDecision", "forwards_of", "noted_decision"]

#: The attribute in which a module keeps its decision. An unpickled module has the layer's name in it.
DECISION = "_kernelized"


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
    """

    layer: str
    mode: Mode | None = None
    function: Callable[..., Any] | None = None
    reason: str | None = None
    kernel: str | None = None
    commit: str | None = None
    variant: str | None = None
    registered: Mode | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> LayerDecision:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle must load without this package, and cannot contain a kernel's code.
        return str, (self.layer,)


def noted_decision(module: nn.Module) -> LayerDecision | None:
    """The decision that a module keeps, whatever became of its forward since; None without one."""
    noted = module.__dict__.get(DECISION)
    return noted if isinstance(noted, LayerDecision) else None


def forwards_of(decision: LayerDecision) -> tuple[Callable[..., Any], ...]:
    """The forwards of kernels that a decision has."""
    return () if decision.function is None else (decision.function,)
