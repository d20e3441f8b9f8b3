"""Measuring a kernel with the benchmarks in its sources: found, run in a process of their own, compared and drawn.

`runner.measure` is the story; `child` is what the other process does, `messages` what the two say to each other.
"""

from __future__ import annotations

from kernels.authoring.bench.report import Machine, Outcome, Report, Times
from kernels.authoring.bench.runner import measure

__all__ = ["Machine", "Outcome", "Report", "Times", "measure"]
