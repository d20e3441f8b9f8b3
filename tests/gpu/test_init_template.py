"""A kernel made by `kernels init`, built here with nvcc, on an NVIDIA GPU: it is a start that one can trust."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from kernels import get_local_kernel
from kernels.authoring.compile import build_variants
from kernels.authoring.scaffold import new_kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.compiler,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
# Around the sizes of a vector, of a block's part, and of several blocks.
COUNTS = [0, 1, 3, 7, 8, 9, 255, 256, 257, 4095, 4096, 4097, 8191, 8192, 8193, 100_003, 2**20, 2**20 + 5]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new kernel's folder, with its builds for the visible device and for the CPU."""
    folder = new_kernel("my-relu", tmp_path_factory.mktemp("template") / "my-relu", backends=["cpu", "cuda"])
    outcomes = {each.backend: each for each in build_variants(folder, folder, this_gpu=True)}
    if outcomes["cuda"].reason.startswith("No compiler"):
        pytest.skip(outcomes["cuda"].reason)
    for each in outcomes.values():
        assert each.path is not None, f"{each.reason}\n{each.detail}"
    return folder


@pytest.fixture(scope="module")
def kernel(folder: Path) -> ModuleType:
    [path] = folder.glob("build/torch*-cu*")
    return get_local_kernel(path)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_size_and_alignment_matches_torch(kernel: ModuleType, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for count in COUNTS:
        for offset in (0, 1, 2, 3, 4, 8):
            guarded = torch.randn(count + offset + 8, device="cuda", dtype=dtype)
            before = guarded.clone()
            x = guarded[offset : offset + count]
            found = kernel.relu(x)
            assert torch.equal(found, torch.relu(x)), (count, offset)
            assert torch.equal(guarded, before), "the input was changed"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_layout_matches_torch(kernel: ModuleType, dtype: torch.dtype) -> None:
    x = torch.randn(6, 10, 14, device="cuda", dtype=dtype)
    views = [x.transpose(0, 2), x[:, ::3], x[1:, 2:-1, 5:], x[0, 0, 0], x[:1].expand(4, 10, 14), x[:, :0], x.flip(0)]
    for view in [*views, torch.randn(2, 3, 5, 7, device="cuda", dtype=dtype).to(memory_format=torch.channels_last)]:
        found = kernel.relu(view)
        assert found.is_contiguous()
        assert found.device == view.device
        assert found.dtype == dtype
        assert torch.equal(found, torch.relu(view))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_special_values_match_torch(kernel: ModuleType, dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    values = [float("inf"), -float("inf"), 0.0, -0.0, info.max, info.min, info.tiny, -info.tiny, info.smallest_normal]
    x = torch.tensor(values * 5, device="cuda", dtype=dtype)
    assert torch.equal(kernel.relu(x), torch.relu(x))
    assert kernel.relu(torch.full((33,), float("nan"), device="cuda", dtype=dtype)).isnan().all()


def test_more_values_than_32_bits_count(kernel: ModuleType) -> None:
    count = 2**32 + 9
    if torch.cuda.mem_get_info()[0] < 7 * count:
        pytest.skip(f"needs {7 * count / 2**30:.0f} GiB of free GPU memory")
    x = torch.zeros(count, device="cuda", dtype=torch.float16)
    ends = [0, 1, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1, 2**32, count - 1]
    x[ends] = torch.tensor([1.0, -1.0] * (len(ends) // 2), device="cuda", dtype=torch.float16)
    found = kernel.relu(x)
    assert found[ends].tolist() == [1.0, 0.0] * (len(ends) // 2)
    assert found.count_nonzero().item() == len(ends) // 2
    # And from an address that is not aligned.
    found = kernel.relu(x[1:])
    assert found[2**32 - 1].item() == x[2**32].clamp_min(0).item()
    assert found.count_nonzero().item() == len(ends) // 2 - 1


def test_it_runs_on_the_current_stream(kernel: ModuleType) -> None:
    x = torch.zeros(2**24, device="cuda")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.add_(1)  # on another stream, the kernel would read the zeros before
        found = kernel.relu(x)
    stream.synchronize()
    assert found.sum().item() == 2**24
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = kernel.relu(x)
    x.fill_(3)
    graph.replay()
    torch.cuda.synchronize()
    assert captured.min().item() == 3


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_it_runs_on_the_tensors_device(kernel: ModuleType) -> None:
    x = torch.randn(1000, device="cuda:1")
    assert torch.cuda.current_device() == 0
    found = kernel.relu(x)
    assert found.device == x.device
    assert torch.equal(found, torch.relu(x))
    assert torch.cuda.current_device() == 0


def test_the_operator_keeps_torchs_contract(kernel: ModuleType) -> None:
    operator = kernel._ops.ops.relu.default
    for shape, step in (((7,), 1), ((5, 8), 2), ((0, 3), 1)):
        x = torch.randn(shape, device="cuda", dtype=torch.float64)[::step].requires_grad_()
        torch.library.opcheck(operator, (x,))
        if x.numel():
            assert torch.autograd.gradcheck(kernel.relu, (x,))
            assert torch.autograd.gradgradcheck(kernel.relu, (x,))
    compiled = torch.compile(lambda x: kernel.relu(x).sin().sum(), fullgraph=True)
    x = torch.randn(33, device="cuda", requires_grad=True)
    expected = torch.autograd.grad(torch.relu(x).sin().sum(), x)
    torch.testing.assert_close(torch.autograd.grad(compiled(x), x), expected)


def test_what_it_cannot_do_is_refused(kernel: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="expected a floating point `input`, got Int"):
        kernel.relu(torch.ones(3, device="cuda", dtype=torch.int32))
    with pytest.raises(RuntimeError, match="CPU"):
        kernel.relu(torch.ones(3))


def test_its_own_tests_pass_and_its_benchmark_runs(folder: Path, tmp_path: Path) -> None:
    tests = subprocess.run(
        [sys.executable, "-m", "kernels", "test", folder, "--", "-q", "-rs"], capture_output=True, text=True
    )
    assert tests.returncode == 0, tests.stdout + tests.stderr
    assert "cuda" not in "".join(line for line in tests.stdout.splitlines() if "SKIPPED" in line)
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-m", "kernels", "benchmark", folder, "--backend", "cuda", "--iterations", "5"]
    command += ["--output", figures]
    benchmark = subprocess.run(command, capture_output=True, text=True)
    assert benchmark.returncode == 0, benchmark.stdout + benchmark.stderr
    assert json.loads(figures.read_text())
