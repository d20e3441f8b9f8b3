"""Scripts and what becomes of their workloads, in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernels.authoring.bench.report import WorkloadOutcome
from kernels.authoring.bench.scripts import Scripts, read_scripts
from kernels.authoring.bench.workload import run_workload, synchronizer

torch = pytest.importorskip("torch")

HEAD = """
    import torch
    from kernels.benchmark import Benchmark
"""


@pytest.fixture(autouse=True)
def no_trace() -> Iterator[None]:
    """Scripts are imported here, not in a process of their own."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith(("benchmark_", "shared_")):
            del sys.modules[name]


@pytest.fixture
def run(make_script: Callable[..., Path]) -> Callable[..., list[WorkloadOutcome]]:
    """The outcomes of a script's workloads, by a clock that ticks once each time it is read."""

    def run(text: str, kernel: Any = None) -> list[WorkloadOutcome]:
        scripts = read_scripts(make_script(benchmark_it=HEAD + text))
        assert scripts.failed == ()
        ticks = iter(range(10**6))
        return [
            run_workload(each, kernel, "cpu", iterations=3, warmup=1, clock=lambda: float(next(ticks)))
            for each in scripts.workloads
        ]

    return run


def names(scripts: Scripts) -> list[str]:
    return [".".join(workload.key) for workload in scripts.workloads]


def test_workloads_are_listed_by_script_then_as_they_stand_there(make_script: Callable[..., Path]) -> None:
    folder = make_script(
        shared_shapes="WIDTH = 4",
        benchmark_b=HEAD
        + """
    from shared_shapes import WIDTH
    class Second(Benchmark):
        def benchmark_small(self): ...
        def benchmark_large(self): ...
        benchmark_count = 3
        def helper(self): ...
    class First(Second):
        def benchmark_more(self): ...
    """,
        benchmark_a=HEAD
        + """
    from kernels.benchmarks import SiluAndMulBenchmark
    class Mine(SiluAndMulBenchmark): ...
    """,
        other="raise AssertionError('not a benchmark')",
    )
    assert names(read_scripts(folder)) == [
        "benchmark_a.py.Mine.small",
        "benchmark_a.py.Mine.medium",
        "benchmark_a.py.Mine.large",
        "benchmark_b.py.Second.small",
        "benchmark_b.py.Second.large",
        "benchmark_b.py.First.small",
        "benchmark_b.py.First.large",
        "benchmark_b.py.First.more",
    ]


def test_a_script_that_fails_or_holds_nothing_keeps_no_other_from_being_read(make_script: Callable[..., Path]) -> None:
    folder = make_script(
        benchmark_a="import no_such_package",
        benchmark_b="import sys\nsys.exit(3)",
        benchmark_c="def (",
        benchmark_d="from kernels.benchmark import Benchmark",
        benchmark_e=HEAD + "    class It(Benchmark):\n        def benchmark_x(self): ...",
    )
    scripts = read_scripts(folder)
    assert names(scripts) == ["benchmark_e.py.It.x"]
    assert [outcome.reason.partition(":")[0] for outcome in scripts.failed] == [
        "ModuleNotFoundError",
        "SystemExit",
        "SyntaxError",
    ]
    assert scripts.failed[0].reason == "ModuleNotFoundError: No module named 'no_such_package' (benchmark_a.py, line 1)"
    assert (scripts.failed[0].name, scripts.failed[0].verdict) == ("benchmark_a.py", "failed")
    assert scripts.notes == (
        "benchmark_d.py defines no subclass of kernels.benchmark.Benchmark with a method benchmark_…",
    )
    assert "benchmark_a" not in sys.modules


def test_each_workload_has_an_instance_a_seed_and_a_setup_of_its_own(run: Callable[..., list[WorkloadOutcome]]) -> None:
    log: list[Any] = []
    outcomes = run(
        """
    class It(Benchmark):
        seed = 7
        def __init__(self): self.made = []
        def setup(self): self.made.append("setup"); self.x = torch.rand(1).item()
        def setup_own(self): self.made.append("own"); self.x = torch.rand(1).item()
        def benchmark_plain(self): self.kernel.log(self.made, self.device, self.x)
        def benchmark_own(self): self.kernel.log(self.made, self.device, self.x)
    """,
        SimpleNamespace(log=lambda *what: log.append(what)),
    )
    assert [outcome.verdict for outcome in outcomes] == ["ok", "ok"]
    torch.manual_seed(7)
    value = torch.rand(1).item()
    # Once before the times, once to warm up, three times for the clock.
    assert log == [(["setup"], "cpu", value)] * 5 + [(["own"], "cpu", value)] * 5


def test_a_right_result_is_timed_beside_its_reference(run: Callable[..., list[WorkloadOutcome]]) -> None:
    [outcome] = run(
        """
    class It(Benchmark):
        def setup(self): self.x = torch.arange(4.0); self.out = torch.empty(4)
        def benchmark_sum(self): torch.add(self.x, self.x, out=self.out)
        def verify_sum(self): return 2 * self.x
    """
    )
    assert (outcome.verdict, outcome.verified, outcome.max_difference, outcome.speedup) == ("ok", True, 0.0, 1.0)
    assert outcome.times is not None
    assert outcome.reference is not None
    assert (outcome.times.median_seconds, outcome.times.calls, outcome.reference.calls) == (1.0, 3, 3)


def test_a_result_is_compared_before_further_calls_change_the_input(run: Callable[..., list[WorkloadOutcome]]) -> None:
    [outcome] = run(
        """
    class It(Benchmark):
        def setup(self): self.x = torch.ones(4); self.before = self.x.clone()
        def benchmark_in_place(self): self.out = self.x.mul_(2)
        def verify_in_place(self): return 2 * self.before
    """
    )
    assert outcome.verdict == "ok"


@pytest.mark.parametrize(
    ("body", "verdict", "reason"),
    [
        ("def verify_x(self): return torch.ones(3)", "wrong", "Greatest absolute difference: 1.0"),
        ("def verify_x(self): return torch.zeros(2, 3)", "wrong", "torch.Size([3]) != torch.Size([2, 3])"),
        ("def setup(self): raise ValueError('no weight')", "failed", "setup raised ValueError: no weight (bench"),
        ("def setup_x(self): 1 / 0", "failed", "setup_x raised ZeroDivisionError: division by zero (benchmark_it.py"),
        ("def verify_x(self): raise SystemExit(1)", "failed", "verify_x raised SystemExit: 1"),
        ("def __init__(self): raise OSError('a' * 900)", "failed", "its constructor raised OSError: aaa"),
        ("def setup(self): self.kernel.no_such_function()", "failed", "AttributeError: 'NoneType' object has no"),
        ("def setup(self): self.seed, self.out = 1, None", "ok", ""),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_that_workloads_outcome(
    run: Callable[..., list[WorkloadOutcome]], body: str, verdict: str, reason: str
) -> None:
    [outcome, other] = run(
        f"""
    class It(Benchmark):
        out = torch.zeros(3)
        def benchmark_x(self): ...
        {body}
    class Other(Benchmark):
        def benchmark_y(self): ...
    """
    )
    assert outcome.verdict == verdict
    assert reason in outcome.reason
    assert (outcome.times is None) == (verdict != "ok")
    assert other.verdict == "ok"
    assert other.verified is None


def test_a_device_that_torch_does_not_have_is_an_error_of_its_own() -> None:
    synchronizer("cpu")()
    with pytest.raises(RuntimeError, match="no_such_device"):
        synchronizer("no_such_device")


def test_the_device_asked_for_is_made_the_current_one_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    module = SimpleNamespace(
        set_device=lambda device: log.append(f"set {device}"), synchronize=lambda: log.append("wait")
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    synchronizer("cpu:0")()
    assert log == ["set cpu:0", "wait"]
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace())
    synchronizer("cpu")()
