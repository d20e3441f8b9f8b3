"""The results and plots that `kernels benchmark` left in a kernel's folder: read for the card, never run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kernels.authoring.bench.report import Report
from kernels.support.files import read_bounded
from kernels.support.record_file import decode_json

__all__ = ["BenchmarkResult", "Plot", "read_plots", "read_results"]

#: Bounds on a file of results, on a plot, and on how many of each are read.
_MAX_RESULT_BYTES = 1024 * 1024
_MAX_PLOT_BYTES = 2 * 1024 * 1024
_MAX_FILES = 20
_MAX_ROWS = 200

#: Where results are: what `--output` was given, as authors keep it; and the images of `--visual`.
_RESULT_FOLDERS = ("benchmarks/results", "benchmarks", ".")
_MEDIA = "media"
_LIGHT, _DARK = "_light", "_dark"
#: First what has no fixed size.
_IMAGES = (".svg", ".png")


@dataclass(frozen=True)
class Timing:
    """One workload's times in milliseconds, and whether its result matched the reference.

    `typical` and `reference` are medians, or means if the file has no medians.
    """

    workload: str
    typical: float
    q1: float
    q3: float
    reference: float | None = None
    verified: bool | None = None

    @property
    def spread(self) -> float:
        """The upper quartile divided by the lower one."""
        return self.q3 / self.q1 if self.q1 > 0 else 1.0


@dataclass(frozen=True)
class BenchmarkResult:
    """What one file has: the machine, the commit of the build that was measured, and the times."""

    device: str
    backend: str
    torch: str
    commit: str
    timings: tuple[Timing, ...]
    has_medians: bool = True


@dataclass(frozen=True)
class Plot:
    """A plot: its name, and its image for light pages and the one for dark pages, by path in the repository."""

    name: str
    light: str
    dark: str
    files: tuple[tuple[str, Path], ...]


class _Times(msgspec.Struct):
    mean_ms: float
    q1_ms: float = 0.0
    q3_ms: float = 0.0
    ref_mean_ms: float | None = None


class _Medians(msgspec.Struct):
    kernel_ms: float
    reference_ms: float | None = None


class _Row(msgspec.Struct):
    workload: str
    timingResults: _Times
    medians: _Medians | None = None
    verified: bool | None = None


class _Machine(msgspec.Struct):
    gpu: str = "N/A"
    backend: str = ""
    pytorchVersion: str = ""
    cpu: str = ""


class _File(msgspec.Struct):
    results: list[_Row]
    machineInfo: _Machine
    kernelCommitSha: str = ""


def read_results(folders: Iterable[Path]) -> list[BenchmarkResult]:
    """The newest results of each machine that `kernels benchmark` saved (`--output`, `--json`) in a kernel's folders.

    Args:
        folders: The folders: `*.json` in them, in `benchmarks/` and in `benchmarks/results/` is read. Files of another
            form are left out.
    """
    newest: dict[tuple[str, str], tuple[float, BenchmarkResult]] = {}
    for path in _json_files(folders):
        result = _read(path)
        if result is not None and result.timings:
            key, when = (result.device, result.backend), path.stat().st_mtime
            if key not in newest or when > newest[key][0]:
                newest[key] = when, result
    return [newest[key][1] for key in sorted(newest)]


def read_plots(folders: Iterable[Path]) -> list[Plot]:
    """The pairs of images that `kernels benchmark --visual` drew in `media/` of a kernel's folders."""
    found: dict[str, Plot] = {}
    for folder in folders:
        media = folder / _MEDIA
        for suffix in _IMAGES:
            for light in sorted(media.glob(f"*{_LIGHT}{suffix}"))[:_MAX_FILES]:
                name = light.name.removesuffix(f"{_LIGHT}{suffix}")
                dark = media / f"{name}{_DARK}{suffix}"
                if _is_image(light, folder) and _is_image(dark, folder):
                    paths = tuple((f"{_MEDIA}/{each.name}", each) for each in (light, dark))
                    found.setdefault(name, Plot(name, paths[0][0], paths[1][0], paths))
    return [found[name] for name in sorted(found)]


def _json_files(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        for place in _RESULT_FOLDERS:
            yield from sorted((folder / place).glob("*.json"))[:_MAX_FILES]


def _read(path: Path) -> BenchmarkResult | None:
    try:
        data = read_bounded(path, _MAX_RESULT_BYTES)
    except OSError:
        return None
    for form, convert in _FORMS.items():
        try:
            return convert(decode_json(data, form))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return None


def _of_payload(file: _File) -> BenchmarkResult:
    rows = file.results[:_MAX_ROWS]
    has_medians = all(row.medians is not None for row in rows)
    timings = []
    for row in rows:
        times = row.timingResults
        typical, reference = times.mean_ms, times.ref_mean_ms
        if has_medians and row.medians is not None:
            typical, reference = row.medians.kernel_ms, row.medians.reference_ms
        timings.append(Timing(row.workload, typical, times.q1_ms, times.q3_ms, reference, row.verified))
    machine = file.machineInfo
    device = machine.cpu if machine.gpu == "N/A" else machine.gpu
    return BenchmarkResult(
        device, machine.backend, machine.pytorchVersion, file.kernelCommitSha, tuple(timings), has_medians
    )


def _of_report(report: Report) -> BenchmarkResult:
    timings = (
        Timing(
            outcome.name,
            1000 * outcome.times.median_seconds,
            1000 * outcome.times.q1_seconds,
            1000 * outcome.times.q3_seconds,
            None if outcome.reference is None else 1000 * outcome.reference.median_seconds,
            outcome.verified,
        )
        for outcome in report.outcomes[:_MAX_ROWS]
        if outcome.times is not None
    )
    machine = report.machine
    commit = report.id.rpartition("_")[2]
    return BenchmarkResult(machine.device_name, machine.backend, machine.torch, commit, tuple(timings))


#: What a file may hold: what `--output` saves, as the existing client does, and what `--json` prints.
_FORMS: dict[Any, Callable[[Any], BenchmarkResult]] = {_File: _of_payload, Report: _of_report}


def _is_image(path: Path, root: Path) -> bool:
    # No spaces or quotation marks: the name becomes part of HTML.
    plain = path.stem.replace("_", "").replace("-", "").replace(".", "").isalnum() and path.name.isascii()
    try:
        inside = path.resolve().is_relative_to(root.resolve())
        return plain and inside and path.is_file() and path.stat().st_size <= _MAX_PLOT_BYTES
    except OSError:
        return False
