"""The registration that a check looks at, and what a step of it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kernels.backends.base import Backend, BackendProbe, Device
from kernels.backends.registration import BackendEntry
from kernels.support.checks import STEP_SECONDS, StepResults

__all__ = ["Step", "Subject"]


@dataclass
class Subject:
    """The registration that is checked, and what earlier steps learned.

    Attributes:
        entry: The registration.
        seconds: How long a step may take.
        probe: What its probe answered; nothing found while it has not.
    """

    entry: BackendEntry
    seconds: float = STEP_SECONDS
    probe: BackendProbe = field(default_factory=BackendProbe)

    @property
    def backend(self) -> Backend:
        """The registered object."""
        return self.entry.backend

    @property
    def device(self) -> Device | None:
        """The first visible device, if there is one."""
        return next(iter(self.probe.devices), None)


Step = Callable[[Subject], StepResults]
