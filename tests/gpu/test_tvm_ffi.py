"""A kernel for tvm-ffi, compiled here with nvcc, on an NVIDIA GPU."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch
from tvm_ffi_kernel import needs_tvm_ffi, write_tvm_ffi_source

from kernels import get_local_kernel
from kernels.authoring.compile import build_variants
from kernels.models.metadata import Metadata

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.compiler,
    needs_tvm_ffi,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The variants of one source, by backend; CUDA's for the visible devices."""
    folder = tmp_path_factory.mktemp("tvm-ffi")
    source = write_tvm_ffi_source(folder / "source")
    outcomes = {each.backend: each for each in build_variants(source, folder / "out", this_gpu=True)}
    if outcomes["cuda"].reason.startswith("nvcc was not found"):
        pytest.skip(outcomes["cuda"].reason)
    for each in outcomes.values():
        assert each.path is not None, f"{each.reason}\n{each.detail}"
    return {name: each.path for name, each in outcomes.items() if each.path is not None}


@pytest.fixture
def kernel(built: dict[str, Path]) -> ModuleType:
    return get_local_kernel(built["cuda"])


def test_its_build_says_what_it_was_compiled_with_and_for(built: dict[str, Path]) -> None:
    assert built["cuda"].name.startswith("tvm-ffi0")
    assert "-cu" in built["cuda"].name
    major, minor = torch.cuda.get_device_capability()
    metadata = Metadata.read_from_file(built["cuda"] / "metadata.json")
    assert f"{major}.{minor}" in {arch.removesuffix("+PTX") for arch in metadata.backend.archs or ()}


@pytest.mark.parametrize("count", [0, 1, 255, 100_003])
def test_it_takes_tensors_of_torch(kernel: ModuleType, count: int) -> None:
    x = torch.arange(count, dtype=torch.float32, device="cuda")
    torch.testing.assert_close(kernel.add_one(x, torch.empty_like(x)), x + 1)


def test_it_runs_on_torchs_current_stream(kernel: ModuleType) -> None:
    x, out, stream = torch.zeros(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda"), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)  # on another stream it would read `x` before this ends
        x += 1
        kernel.add_one(x, out)
    stream.synchronize()
    assert out.unique().tolist() == [2.0]


def test_an_error_in_it_is_one_of_pythons(kernel: ModuleType) -> None:
    x = torch.zeros(3, device="cuda")
    with pytest.raises(ValueError, match="`out` has 4 elements"):
        kernel.add_one(x, torch.empty(4, device="cuda"))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_tensor_of_another_than_the_current_device_stays_there(kernel: ModuleType) -> None:
    x = torch.zeros(5, device="cuda:1")
    assert kernel.add_one(x, torch.empty_like(x)).tolist() == [1.0] * 5


def test_the_build_for_the_processor_is_there_beside_it(kernel: ModuleType, built: dict[str, Path]) -> None:
    on_the_processor = get_local_kernel(built["cpu"], backend="cpu")
    assert on_the_processor.ops.id() != kernel.ops.id()
    assert on_the_processor.add_one(torch.zeros(3), torch.empty(3)).tolist() == [1.0] * 3
