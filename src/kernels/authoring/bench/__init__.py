"""Measure a kernel with the benchmarks in its sources: run them in a separate process, compare results, draw times.

`runner.measure` is the entry point; `measure_process` is the other process; `messages` is what the two exchange.
"""

from __future__ import annotations

from kernels.authoring.bench.report import Machine, Report, Times, WorkloadOutcome
from kernels.authoring.bench.runner import measure

__all__ = ["Machine", "Report", "Times", "WorkloadOutcome", "measure"]
