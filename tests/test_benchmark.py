"""The base class of the benchmarks in a kernel's sources, under the name those sources import it by."""

from __future__ import annotations

import kernels
from kernels.benchmark import Benchmark


def test_a_benchmark_has_what_its_workloads_use_before_a_runner_sets_it() -> None:
    benchmark = Benchmark()
    assert (benchmark.seed, benchmark.device, benchmark.kernel, benchmark.out) == (None, "cpu", None, None)
    benchmark.setup()
    assert kernels.Benchmark is Benchmark


def test_a_benchmark_with_a_constructor_of_its_own_need_not_call_the_base() -> None:
    class Own(Benchmark):
        seed = 3

        def __init__(self) -> None:
            self.rows = 2

    one, other = Own(), Own()
    one.out = "result"
    assert (one.seed, one.rows, one.kernel, other.out) == (3, 2, None, None)
