"""A report in the form that the existing client saves, for programs that read it."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any, TypedDict

from kernels.authoring.bench.processor import processor_name
from kernels.authoring.bench.report import Report, Times
from kernels.backends.builtin.cpu import CPU

__all__ = ["payload", "save"]


class _MachineInfo(TypedDict):
    gpu: str
    backend: str
    pytorchVersion: str
    os: str
    cpu: str


def payload(report: Report) -> dict[str, Any]:
    """What `kernels benchmark --output` saves: times in milliseconds, of the workloads that have some.

    Args:
        report: The measurement.
    """
    machine = report.machine
    results = []
    for outcome in sorted(report.outcomes, key=lambda outcome: outcome.name):
        if outcome.times is not None:
            result: dict[str, Any] = {"workload": outcome.name, "timingResults": _milliseconds(outcome.times)}
            # Beside the keys of that form, which has no medians: a mean says little on a busy machine.
            measured = {"kernel_ms": outcome.times, "reference_ms": outcome.reference}
            result["medians"] = {
                name: round(1000 * times.median_seconds, 4) for name, times in measured.items() if times is not None
            }
            if outcome.verified is not None:
                result["verified"] = outcome.verified
            results.append(result)
    return {
        "results": results,
        "machineInfo": _MachineInfo(
            gpu="N/A" if machine.device.partition(":")[0] == CPU.device_type else machine.device_name,
            backend=machine.backend.upper(),
            pytorchVersion=machine.torch,
            os=f"{platform.system()} {platform.release()}",
            cpu=processor_name() or "Unknown",
        ),
        # The last part of the build's id, by convention the first digits of its commit.
        "kernelCommitSha": report.id.rpartition("_")[2],
        "benchmarkScriptPath": "benchmarks",
        "benchmarkScriptSha": report.scripts_sha256,
    }


def save(report: Report, path: Path) -> None:
    """Write the payload of a report to a file.

    Raises:
        OSError: It cannot be written.
    """
    path.write_text(json.dumps(payload(report), indent=2) + "\n", encoding="utf-8")


def _milliseconds(times: Times) -> dict[str, Any]:
    seconds = {
        "mean_ms": times.mean_seconds,
        "std_ms": times.std_seconds,
        "min_ms": times.min_seconds,
        "max_ms": times.max_seconds,
        "q1_ms": times.q1_seconds,
        "q3_ms": times.q3_seconds,
        "iqr_ms": times.q3_seconds - times.q1_seconds,
    }
    rounded = {name: round(1000 * value, 4) for name, value in seconds.items()}
    return {**rounded, "outliers": times.outliers, "iterations": times.calls}
