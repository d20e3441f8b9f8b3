"""A kernelized transformers model on an NVIDIA GPU: the same logits, eager and compiled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

LAYERS = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _rms_norm(x, weight, out, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    inside = offsets < columns
    values = tl.load(x + row * columns + offsets, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values) / columns + eps)
    scaled = (values * scale).to(out.dtype.element_ty)
    tl.store(out + row * columns + offsets, scaled * tl.load(weight + offsets, mask=inside), mask=inside)


def rms_norm(x, weight, eps):
    x = x.contiguous()
    out = torch.empty_like(x)
    columns = x.shape[-1]
    _rms_norm[(x.numel() // columns,)](x, weight, out, columns, eps, BLOCK=1 << (columns - 1).bit_length())
    return out


class RMSNorm(nn.Module):
    can_torch_compile = True
    has_backward = False
    weight: torch.Tensor
    variance_epsilon: float

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden_states, self.weight, self.variance_epsilon)


class GatedMLP(nn.Module):
    can_torch_compile = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
"""


def write_kernel(root: Path, name: str, archs: list[str]) -> Path:
    variant = root / name / "build" / "torch-cuda"
    variant.mkdir(parents=True)
    metadata = {
        "name": name,
        "id": f"_{name.replace('-', '_')}_cuda_0a1b2c3",
        "version": 1,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cuda", "archs": archs},
    }
    (variant / "metadata.json").write_text(json.dumps(metadata))
    (variant / "__init__.py").write_text("from . import layers\n")
    (variant / "layers.py").write_text(LAYERS)
    return root / name


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A small Llama on the GPU, its norms and gated layers mapped to kernels."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    if not torch.cuda.is_available() or torch.version.cuda is None:
        pytest.skip("needs an NVIDIA GPU")
    from transformers.models.llama.modeling_llama import LlamaMLP

    from kernels import LocalLayerRepository, register_kernel_mapping, replace_kernel_forward_from_hub

    kernel = write_kernel(tmp_path_factory.mktemp("kernels"), "llama-layers", ["7.0+PTX"])
    replace_kernel_forward_from_hub(LlamaMLP, "LlamaMLP")
    register_kernel_mapping(
        {
            "RMSNorm": {"cuda": LocalLayerRepository(kernel, layer_name="RMSNorm")},
            "LlamaMLP": {"cuda": LocalLayerRepository(kernel, layer_name="GatedMLP")},
        },
        inherit_mapping=False,
    )
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=512,
        max_position_embeddings=128,
    )
    yield transformers.AutoModelForCausalLM.from_config(config).eval().cuda()
    del LlamaMLP.kernel_layer_name, LlamaMLP.kernel_condition
    register_kernel_mapping({}, inherit_mapping=False)


def logits(model: Any) -> Any:
    import torch

    torch.manual_seed(1)
    with torch.no_grad():
        return model(torch.randint(0, 512, (2, 64), device="cuda")).logits


def test_a_kernelized_llama_gives_the_eager_logits(model: Any) -> None:
    from kernels import Mode, kernelize, unkernelize

    eager = logits(unkernelize(model))
    report = kernelize(model, mode=Mode.INFERENCE, report=True)
    assert {row.layer for row in report.kernelized} == {"RMSNorm", "LlamaMLP"}
    assert {row.variant for row in report.kernelized} == {"torch-cuda"}
    assert (logits(model) - eager).abs().max() < 1e-3
    assert (logits(unkernelize(model)) == eager).all()


def test_each_kernel_agrees_with_the_layer_s_own_forward_and_nothing_remains(model: Any) -> None:
    import torch

    from kernels import Mode, compare_layers, kernelize, unkernelize

    kernelize(model, mode=Mode.INFERENCE)
    tokens = torch.randint(0, 512, (2, 64), device="cuda")
    random = torch.cuda.get_rng_state()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    comparison = compare_layers(model, tokens)
    assert comparison.agrees(1e-4), str(comparison)
    assert {row.layer for row in comparison if row.calls} == {"RMSNorm", "LlamaMLP"}
    assert all((value == state[name]).all() for name, value in model.state_dict().items())
    assert torch.equal(torch.cuda.get_rng_state(), random)
    unkernelize(model)


def test_compiling_it_breaks_no_graph_and_compiles_once(model: Any) -> None:
    import torch
    from torch._dynamo.utils import counters

    from kernels import Mode, kernelize, unkernelize

    eager = logits(unkernelize(model))
    kernelize(model, mode=Mode.INFERENCE | Mode.TORCH_COMPILE)
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(model, fullgraph=True)
    for _ in range(3):
        out = logits(compiled)
    assert counters["stats"]["unique_graphs"] == 1
    assert (out - eager).abs().max() < 1e-3
    unkernelize(model)


def test_training_keeps_the_norm_that_has_no_backward(model: Any) -> None:
    import torch

    from kernels import Mode, kernelize, unkernelize

    rows = kernelize(model, mode=Mode.TRAINING, report=True)
    assert {row.layer for row in rows.kernelized} == {"LlamaMLP"}
    assert "does not support backward" in {row.layer: row.reason or "" for row in rows}["RMSNorm"]
    tokens = torch.randint(0, 512, (1, 8), device="cuda")
    model(tokens, labels=tokens).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.zero_grad(set_to_none=True)
    unkernelize(model)


def test_a_kernel_for_other_cards_is_passed_over(model: Any, tmp_path: Path) -> None:
    from kernels import KernelizeFallback, LocalLayerRepository, Mode, kernelize, unkernelize, use_kernel_mapping

    other = write_kernel(tmp_path, "other-cards", ["1.0a"])
    with use_kernel_mapping({"RMSNorm": {"cuda": LocalLayerRepository(other, layer_name="RMSNorm")}}):
        with pytest.raises(FileNotFoundError):
            kernelize(model, mode=Mode.INFERENCE)
        rows = kernelize(model, mode=Mode.INFERENCE, use_fallback=KernelizeFallback.ALL, report=True)
    assert {row.layer for row in rows.kernelized} == {"LlamaMLP"}
    unkernelize(model)


def test_the_capability_range_of_the_card_decides(model: Any) -> None:
    import torch

    from kernels import CUDAProperties, Device, Mode, kernelize, unkernelize, use_kernel_mapping

    class Mine(torch.nn.Module):
        def forward(self, hidden_states: Any) -> Any:
            return hidden_states

    class Other(torch.nn.Module):
        def forward(self, hidden_states: Any) -> Any:
            return hidden_states + 1

    class Gives:
        def __init__(self, layer: type) -> None:
            self.load = lambda: layer

    major, minor = torch.cuda.get_device_capability()
    capability = major * 10 + minor
    mapping = {
        "RMSNorm": {
            Device("cuda", CUDAProperties(capability, capability)): Gives(Mine),
            Device("cuda", CUDAProperties(0, capability - 1)): Gives(Other),
            "cuda": Gives(Other),
        }
    }
    with use_kernel_mapping(mapping, inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE)
    assert model.model.norm.forward.__func__ is Mine.forward
    unkernelize(model)
