"""On an NVIDIA GPU: vendors join beside CUDA, whose own path stays as it was; operators and tunings run on the card."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub import TestHub

import kernels
from kernels import (
    Device,
    FuncSpec,
    LayerRepository,
    Mode,
    Target,
    get_kernel,
    get_kernel_variants,
    kernelize,
    list_backends,
    load_backends,
    register_vendor,
    unregister_backend,
    use_kernel_mapping,
    use_kernel_ops,
    use_vendor_ops,
)
from kernels.errors import RequestError

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

BUILDS = ["torch-cuda", "torch-cpu", "torch-acme", "torch-zeta"]

OPS = """
import torch
import triton
import triton.language as tl

__all__ = ["silu"]

launches = []


@triton.jit
def _silu(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n).to(tl.float32)
    tl.store(y + at, value * tl.sigmoid(value), mask=at < n)


def silu(input):
    launches.append(tuple(input.shape))
    output = torch.empty_like(input)
    _silu[(triton.cdiv(input.numel(), 1024),)](input, output, input.numel(), BLOCK=1024)
    return output
"""

TUNED = """
import torch
import triton
import triton.language as tl
from kernels.tuning import get_configs, get_heuristics

configs = get_configs("double")


@triton.autotune(configs=configs, key=["n"])
@triton.heuristics(get_heuristics("double"))
@triton.jit
def _double(x, y, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(y + at, tl.load(x + at) * 2)
    else:
        tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


def double(x):
    y = torch.empty_like(x)
    _double[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    return y, _double.best_config
"""

CONFIGS = """
double:
- META: {BLOCK: 64}
archs:
  "9.0":
    double:
    - gen: true
      param_map: {META: {BLOCK: block}, num_warps: warps}
      block: [256, 512]
      warps: [2, 4]
"""

HEURISTICS = 'HEURISTICS_CONFIGS = {"double": {"EVEN": lambda args: args["n"] % args["BLOCK"] == 0}}\n'


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of a vendor that adds operators and tunings to CUDA."""
    path = tmp_path / "vendor"
    (path / "ops").mkdir(parents=True)
    (path / "__init__.py").write_text(
        "from kernels import VendorInfo\n"
        "vendor_info = VendorInfo(vendor_name='Acme', device_name='cuda', backend='cuda')\n"
    )
    (path / "ops" / "__init__.py").write_text(OPS)
    (path / "tune_configs.yaml").write_text(CONFIGS)
    (path / "heuristics_config_utils.py").write_text(HEURISTICS)
    built_in = [(entry.name, entry.origin) for entry in list_backends()]
    register_vendor(path)
    yield path
    unregister_backend("cuda")
    assert [(entry.name, entry.origin) for entry in list_backends()] == built_in


def decisions(repo_id: str) -> list[tuple[str, str]]:
    found = get_kernel_variants(repo_id, version=1)
    return [(str(each.variant), getattr(each, "reason", "accepted")) for each in found]


def test_vendors_that_join_leave_cudas_own_path_as_it_was(hub: TestHub, tmp_path: Path) -> None:
    hub.make_repo("acme/relu", variants=BUILDS)
    before = Target.current()
    own = [each for each in decisions("acme/relu") if each[0] in ("torch-cuda", "torch-cpu")]
    path = tmp_path / "vendors.json"
    path.write_text(json.dumps({
        "acme": {"device_string": "acme", "version": "1.2", "archs": ["a100x"]},
        "zeta": {"device_string": "cpu"},
    }))  # fmt: skip
    load_backends(path)
    try:
        during = Target.current()
        assert (during.default_backend, during.current_device) == ("cuda", before.current_device)
        assert during.backend_devices("cuda") == before.backend_devices("cuda")
        assert during.backends["cuda"] == before.backends["cuda"]
        assert {"acme", "zeta"} <= set(during.backends)
        assert [each for each in decisions("acme/relu") if each[0] in ("torch-cuda", "torch-cpu")] == own
        assert get_kernel("acme/relu", version=1).variant == "torch-cuda"
        assert get_kernel("acme/relu", version=1, backend="zeta").variant == "torch-zeta"
        layer = LayerRepository("acme/relu", layer_name="SiluAndMul", version=1)
        act = kernels.use_kernel_forward_from_hub("SiluAndMul")(
            type("SiluAndMul", (torch.nn.Module,), {"forward": lambda self, input: input})
        )
        with use_kernel_mapping({"SiluAndMul": {Device("cuda"): layer}}):
            report = kernelize(act(), mode=Mode.INFERENCE, device="cuda", report=True)
        assert [row.variant for row in report.kernelized] == ["torch-cuda"]
    finally:
        unregister_backend("acme")
        unregister_backend("zeta")
    assert Target.current() == before


def test_a_vendors_triton_function_stands_in_for_an_operator_on_the_card_alone(folder: Path) -> None:
    x = torch.randn(1000, device="cuda", requires_grad=True)
    expected = torch.nn.functional.silu(x)
    (slope,) = torch.autograd.grad(expected.sum(), x)
    with use_vendor_ops("cuda") as enabled:
        assert enabled.operators == ("aten::silu",)
        launches = ops().launches
        y = torch.nn.functional.silu(x)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], slope)
        assert launches == [(1000,)]
        torch.nn.functional.silu(x.detach().cpu())
        assert launches == [(1000,)]
    torch.nn.functional.silu(x)
    assert launches == [(1000,)]


def ops() -> Any:
    """The vendor's module of operators."""
    return next(
        module for module in list(sys.modules.values()) if "_silu" in vars(module) and "launches" in vars(module)
    )


def test_a_kernels_function_stands_in_for_an_operator_on_the_card(hub: TestHub) -> None:
    hub.make_repo("acme/act", variants={"torch-cuda": {"__init__.py": OPS}})
    x = torch.randn(513, device="cuda")
    expected = torch.nn.functional.silu(x)
    with use_kernel_ops({"aten::silu": FuncSpec("acme/act", "silu", version=1)}):
        torch.testing.assert_close(torch.nn.functional.silu(x), expected)
        launches = get_kernel("acme/act", version=1).launches
        assert launches == [(513,)]
    torch.nn.functional.silu(x)
    assert launches == [(513,)]


def test_a_kernel_is_tuned_with_the_configurations_for_its_card(folder: Path, hub: TestHub) -> None:
    hub.make_repo("acme/double", variants={"torch-cuda": {"__init__.py": TUNED}})
    kernel = get_kernel("acme/double", version=1)
    for size in (4096, 1001):
        x = torch.randn(size, device="cuda")
        y, best = kernel.double(x)
        torch.testing.assert_close(y, x * 2)
    arch = Target.current().backend_devices("cuda")[0].arch
    assert (kernel.configs.origin.kind, kernel.configs.origin.path) == ("vendor", folder / "tune_configs.yaml")
    tuned = {(config.kwargs["BLOCK"], config.num_warps) for config in kernel.configs}
    assert (best.kwargs["BLOCK"], best.num_warps) in tuned
    assert tuned == ({(256, 2), (256, 4), (512, 2), (512, 4)} if arch == "9.0" else {(64, 4)})


def test_a_dispatch_key_that_torch_does_not_have_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vendor"
    (path / "ops").mkdir(parents=True)
    (path / "__init__.py").write_text(
        "from kernels import VendorInfo\n"
        "vendor_info = VendorInfo(vendor_name='acme', device_name='acme', dispatch_key='Acme')\n"
    )
    (path / "ops" / "__init__.py").write_text("__all__ = ['silu']\ndef silu(input): return input\n")
    register_vendor(path)
    try:
        with pytest.raises(RequestError, match="Acme"):
            use_vendor_ops("acme").__enter__()
    finally:
        unregister_backend("acme")
