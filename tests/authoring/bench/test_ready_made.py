"""The ready-made benchmarks, and those of the example kernels: each agrees with a kernel that is right."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from example_kernels import SOURCES, load_example

from kernels import benchmarks
from kernels.authoring.bench.scripts import Workload, read_scripts
from kernels.authoring.bench.workload import run_workload

torch = pytest.importorskip("torch")

EXAMPLES = sorted(path.parents[1].name for path in SOURCES.glob("*/noarch/build.toml"))


class RightKernel:
    """What the ready-made benchmarks call of a kernel, in plain Torch."""

    @staticmethod
    def silu_and_mul(out: Any, x: Any) -> None:
        gate, up = x.chunk(2, -1)
        out.copy_(torch.nn.functional.silu(gate) * up)

    @staticmethod
    def gelu_and_mul(out: Any, x: Any) -> None:
        gate, up = x.chunk(2, -1)
        out.copy_(torch.nn.functional.gelu(gate) * up)

    @staticmethod
    def dropout_add_ln_fwd(*, input: Any, gamma: Any, epsilon: float, is_rms_norm: bool, **rest: Any) -> Any:
        assert (rest["dropout_p"], rest["rowscale_const"]) == (0.0, 1.0)
        wide = input.float()
        if not is_rms_norm:
            wide = wide - wide.mean(-1, keepdim=True)
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
        return (normed * gamma).to(input.dtype), None

    @staticmethod
    def flash_attn_func(q: Any, k: Any, v: Any, *, causal: bool) -> Any:
        scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()) / q.shape[-1] ** 0.5
        if causal:
            scores += torch.full(scores.shape[-2:], float("-inf")).triu(1)
        return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v.float()).to(q.dtype)

    @staticmethod
    def flash_attn_varlen_func(q: Any, k: Any, v: Any, ends_q: Any, ends_k: Any, most_q: int, most_k: int) -> Any:
        assert (ends_q.dtype, ends_q[0], most_q) == (torch.int32, 0, int(ends_q.diff().max()))
        parts = [
            RightKernel.flash_attn_func(q[None, a:b], k[None, a:b], v[None, a:b], causal=False)[0]
            for a, b in pairwise(ends_q.tolist())
        ]
        return torch.cat(parts), None


@pytest.mark.parametrize("name", benchmarks.__all__)
def test_a_ready_made_benchmark_agrees_with_a_kernel_that_is_right_and_with_no_other(name: str) -> None:
    workload = Workload(Path("benchmark_it.py"), getattr(benchmarks, name), "small")
    outcome = run_workload(workload, RightKernel, "cpu", iterations=1, warmup=0)
    assert (outcome.verdict, outcome.reason) == ("ok", "")

    def wrong(function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            if function.__name__.endswith("_and_mul"):
                args[0].fill_(0.5)
                return None
            result = function(*args, **options)
            return (result[0] * 1.1, None) if isinstance(result, tuple) else result * 1.1

        return call

    names = [each for each in vars(RightKernel) if not each.startswith("_")]
    kernel = SimpleNamespace(**{each: wrong(getattr(RightKernel, each)) for each in names})
    assert run_workload(workload, kernel, "cpu", iterations=1, warmup=0).verdict == "wrong"


@pytest.mark.parametrize("name", benchmarks.__all__)
def test_every_ready_made_benchmark_has_three_sizes(name: str) -> None:
    benchmark = getattr(benchmarks, name)
    for size in ("small", "medium", "large"):
        for step in ("setup", "benchmark", "verify"):
            assert callable(getattr(benchmark, f"{step}_{size}"))
    assert benchmark.seed == 42


@pytest.mark.parametrize("name", ["FlashAttentionVarlenBenchmark", "RMSNormBenchmark"])
def test_larger_sizes_are_set_up_in_their_own_way(name: str) -> None:
    sizes = []
    for size in ("small", "medium"):
        benchmark = getattr(benchmarks, name)()
        getattr(benchmark, f"setup_{size}")()
        sizes.append(benchmark.out.numel())
    assert sizes[0] < sizes[1]


@pytest.fixture
def scripts_apart() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("benchmark_"):
            del sys.modules[name]


@pytest.mark.usefixtures("scripts_apart")
@pytest.mark.parametrize("kind", ["cpu", "compiled-cpu"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_kernels_benchmarks_agree_with_it(name: str, kind: str, example_hub: Path) -> None:
    kernel = load_example(example_hub, name, kind)
    scripts = read_scripts(SOURCES / name / ("compiled" if kind.startswith("compiled") else "noarch") / "benchmarks")
    due = [workload for workload in scripts.workloads if workload.name != "large"]
    assert len(due) == 2
    for workload in due:
        assert run_workload(workload, kernel, "cpu", iterations=1, warmup=0).reason == ""


@pytest.mark.parametrize("name", EXAMPLES)
def test_both_source_folders_of_an_example_bring_the_same_benchmarks(name: str) -> None:
    """Their builds become one repository, which has one folder of benchmarks."""
    folders = [SOURCES / name / framework / "benchmarks" for framework in ("noarch", "compiled")]
    first, second = ({path.name: path.read_bytes() for path in folder.glob("*.py")} for folder in folders)
    assert first == second != {}
