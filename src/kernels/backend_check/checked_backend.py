"""The registration that is checked, and the type of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kernels.backends.base import Backend, BackendProbe, Device
from kernels.backends.registration import BackendEntry
from kernels.support.checks import STEP_SECONDS, StepResults

__all__ = ["CheckedBackend", "Step"]


@dataclass
class CheckedBackend:
    """The registration that is checked, and the results of earlier steps.

    Attributes:
        entry: The registration.
        seconds: How long a step may take.
        probe: What its probe returned; one that found nothing before that.
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


Step = Callable[[CheckedBackend], StepResults]
