"""The workloads in a folder of benchmark scripts."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from kernels.authoring.bench.report import FAILED, WorkloadOutcome
from kernels.benchmark import Benchmark
from kernels.support.formatting import did_you_mean, format_error

__all__ = ["FOLDER", "PATTERN", "Scripts", "Workload", "explain", "read_scripts"]

#: Where benchmarks lie in a kernel's sources and in its repository, and how their files are named.
FOLDER = "benchmarks"
PATTERN = "benchmark*.py"

_PREFIX = "benchmark_"


@dataclass(frozen=True)
class Workload:
    """One method `benchmark_<name>` of a benchmark class."""

    script: Path
    benchmark: type[Benchmark]
    name: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Its name in every process that reads the same scripts."""
        return self.script.name, self.benchmark.__name__, self.name


@dataclass(frozen=True)
class Scripts:
    """A folder's workloads, the scripts that failed, and remarks on the others."""

    workloads: tuple[Workload, ...]
    failed: tuple[WorkloadOutcome, ...] = ()
    notes: tuple[str, ...] = ()


def read_scripts(folder: Path) -> Scripts:
    """Run the scripts of a folder in the order of their names, and list their workloads in the order of definition.

    A class counts in the script that defines it, not where it is imported. A script that fails stops no other.
    """
    # Last, so that no file there shadows an installed package.
    sys.path.append(str(folder))
    workloads: list[Workload] = []
    failed: list[WorkloadOutcome] = []
    notes: list[str] = []
    for script in sorted(folder.glob(PATTERN)):
        try:
            module = _run(script)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - an error of third-party code is its verdict
            failed.append(WorkloadOutcome(script=script.name, verdict=FAILED, reason=explain(error, script)))
            continue
        found = [Workload(script, benchmark, name) for benchmark in _classes(module) for name in _names(benchmark)]
        workloads += found
        if not found:
            notes.append(f"{script.name} defines no subclass of kernels.benchmark.Benchmark with a method {_PREFIX}…")
        for benchmark in dict.fromkeys(workload.benchmark for workload in found):
            notes += [f"{script.name}: {benchmark.__name__}{unused}" for unused in _unused_methods(benchmark)]
    return Scripts(tuple(workloads), tuple(failed), tuple(notes))


def _run(script: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(script.stem)
    sys.modules[script.stem] = module  # dataclasses and pickle look for it there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if before is None:
            sys.modules.pop(script.stem, None)
        else:
            sys.modules[script.stem] = before
        raise
    return module


def _classes(module: ModuleType) -> list[type[Benchmark]]:
    return [
        each
        for each in dict.fromkeys(value for value in vars(module).values() if isinstance(value, type))
        if issubclass(each, Benchmark) and each.__module__ == module.__name__
    ]


def _names(benchmark: type[Benchmark]) -> list[str]:
    """The workloads of a class, those of its bases first."""
    names = dict.fromkeys(name for base in reversed(benchmark.__mro__) for name in vars(base))
    return [
        name.removeprefix(_PREFIX)
        for name in names
        if name.startswith(_PREFIX) and name != _PREFIX and callable(getattr(benchmark, name))
    ]


def _unused_methods(benchmark: type[Benchmark]) -> Iterator[str]:
    """The `setup_` and `verify_` methods of a class whose workload exists neither in it nor in a subclass."""
    names = [name for each in (benchmark, *benchmark.__subclasses__()) for name in _names(each)]
    for method in vars(benchmark):
        prefix, _, workload = method.partition("_")
        if prefix in ("setup", "verify") and workload and workload not in names:
            note = f".{method} is never called: there is no {_PREFIX}{workload}.{did_you_mean(workload, names)}"
            yield note.rstrip(".")


def explain(error: BaseException, script: Path) -> str:
    """An error in one line, with the script's line that it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).name == script.name]
    place = f" ({script.name}, line {lines[-1]})" if lines else ""
    return f"{format_error(error)}{place}"
