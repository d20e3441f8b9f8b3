"""transformers, unmodified: its models run through kernels after `set_use_kernels(True)`.

Each case runs in a process of its own, since marking `LlamaMLP` and registering mappings change the process.
"""

from __future__ import annotations

import importlib.util
import json
import textwrap
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from example_kernels import example_hub
from forked import Interpreter, started
from packaging.version import Version

__all__ = ["example_hub"]

pytestmark = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")

LAYERS = """
import torch
import torch.nn.functional as F
from torch import nn

calls = {"RMSNorm": 0, "GatedMLP": 0}


def count(name):
    # A compiled graph is guarded on what it reads: a count would have it compiled again for every call.
    if not torch.compiler.is_compiling():
        calls[name] += 1


class RMSNorm(nn.Module):
    can_torch_compile = True
    weight: torch.Tensor
    variance_epsilon: float

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        count("RMSNorm")
        return F.rms_norm(hidden_states, self.weight.shape, self.weight, self.variance_epsilon)


class GatedMLP(nn.Module):
    can_torch_compile = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count("GatedMLP")
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
"""

PREAMBLE = """
import json, sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config
from transformers.integrations.hub_kernels import _kernels_enabled
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP

from kernels import (
    LocalLayerRepository, Mode, kernelize_report, register_kernel_mapping, replace_kernel_forward_from_hub, unkernelize,
)

assert _kernels_enabled
SIZES = dict(
    hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=128, max_position_embeddings=64,
)
CONFIGS = {"llama": LlamaConfig(**SIZES), "qwen3": Qwen3Config(**SIZES, head_dim=16)}


def build(name):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIGS[name]).eval()


def logits(model):
    torch.manual_seed(1)
    with torch.no_grad():
        return model(torch.randint(0, 128, (2, 12))).logits


def calls():
    from kernels import get_loaded_kernels
    [loaded] = get_loaded_kernels()
    return dict(loaded.module.layers.calls)


def register():
    register_kernel_mapping({
        "RMSNorm": {"cpu": LocalLayerRepository(KERNEL, layer_name="RMSNorm")},
        "LlamaMLP": {"cpu": LocalLayerRepository(KERNEL, layer_name="GatedMLP")},
    })


def served(model):
    return sorted({row.layer for row in kernelize_report(model).kernelized})
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    variant = tmp_path / "llama-layers" / "build" / "torch-cpu"
    variant.mkdir(parents=True)
    metadata = {
        "name": "llama-layers",
        "id": "_llama_layers_cpu_0a1b2c3",
        "version": 1,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cpu"},
    }
    (variant / "metadata.json").write_text(json.dumps(metadata))
    (variant / "__init__.py").write_text("from . import layers\n")
    (variant / "layers.py").write_text(LAYERS)
    return variant.parent.parent


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    with started(PREAMBLE) as interpreter:
        yield interpreter


@pytest.fixture
def run(interpreter: Interpreter, tmp_path: Path, isolated_env: Path) -> Callable[..., Any]:
    def run(kernel: Path, code: str, **environment: str) -> Any:
        """What the code prints last, as JSON."""
        code = f"KERNEL = Path(sys.argv[1])\n{textwrap.dedent(code)}"
        done = interpreter.run(code, tmp_path, kernel, **environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.mark.parametrize(("model", "norms"), [("llama", 5), ("qwen3", 9)])
def test_a_model_runs_through_the_kernels_and_its_logits_match_the_eager_ones(
    run: Callable[..., Any], kernel: Path, model: str, norms: int
) -> None:
    result = run(
        kernel,
        f"""
        replace_kernel_forward_from_hub(LlamaMLP, "LlamaMLP")
        replace_kernel_forward_from_hub(Qwen3MLP, "LlamaMLP")
        model = build({model!r})
        eager = logits(model)
        register()
        model.set_use_kernels(True)
        kernelized = logits(model)
        unkernelize(model)
        print(json.dumps({{
            "difference": (kernelized - eager).abs().max().item(),
            "restored": torch.equal(logits(model), eager),
            "calls": calls(),
        }}))
        """,
    )
    assert result["difference"] < 1e-4
    assert result["restored"]
    assert result["calls"] == {"RMSNorm": norms, "GatedMLP": 2}


@pytest.mark.parametrize("model", ["llama", "qwen3"])
def test_the_example_kernels_serve_a_model_from_a_hub(
    run: Callable[..., Any], example_hub: Path, tmp_path: Path, model: str
) -> None:
    rows, difference = run(
        example_hub,
        f"""
        from kernels import LayerRepository

        def example(name, layer):
            return {{"cpu": LayerRepository(f"kernels-examples/{{name}}", layer_name=layer, version=1)}}

        replace_kernel_forward_from_hub(LlamaMLP, "LlamaMLP")
        replace_kernel_forward_from_hub(Qwen3MLP, "LlamaMLP")
        model = build({model!r})
        eager = logits(model)
        register_kernel_mapping({{
            "RMSNorm": example("rms-norm", "RMSNorm"),
            "LlamaMLP": example("silu-and-mul", "GatedMLP"),
            "rotary_pos_emb": example("rotary", "ApplyRotaryPosEmb"),
        }})
        model.set_use_kernels(True)
        difference = (logits(model) - eager).abs().max().item()
        print(json.dumps([kernelize_report(model).to_list(), difference]))
        """,
        KERNELS_HUB=str(example_hub),
        KERNELS_CACHE=str(tmp_path / "cache"),
        KERNELS_TRUSTED_PUBLISHERS="kernels-examples",
    )
    served = {row["layer"]: row["kernel"].removeprefix("kernels-examples/") for row in rows if row["kernel"]}
    expected = {"RMSNorm": "rms-norm", "LlamaMLP": "silu-and-mul", "rotary_pos_emb": "rotary"}
    if Version("5.6") <= Version(version("transformers")) < Version("5.13"):  # it takes kernelized functions out again
        del expected["rotary_pos_emb"]
    assert served == expected
    assert all(row["reason"] is None for row in rows if row["layer"] in served)
    assert {row["commit"] for row in rows if row["layer"] in served} == {"v1"}
    assert difference < 1e-4


def test_the_report_names_the_kernel_of_every_marked_layer(run: Callable[..., Any], kernel: Path) -> None:
    result = run(
        kernel,
        """
        replace_kernel_forward_from_hub(LlamaMLP, "LlamaMLP")
        register()
        model = build("llama")
        model.set_use_kernels(True)
        print(json.dumps(kernelize_report(model).to_list()))
        """,
    )
    rows = {row["module"]: row for row in result}
    assert rows["model.layers.1.mlp"]["kernel"] == str(kernel)
    assert rows["model.norm"] == {
        "module": "model.norm",
        "layer": "RMSNorm",
        "kernel": str(kernel),
        "commit": None,
        "variant": "torch-cpu",
        "mode": "INFERENCE",
        "registered": "FALLBACK",
        "reason": None,
    }
    if Version(version("transformers")) >= Version("5.13"):  # before, a function is no submodule until it is kernelized
        # transformers maps its rotary embedding for accelerators only.
        assert "'cpu'" in rows["model.layers.0.self_attn.rotary_pos_emb"]["reason"]


def test_training_and_back_keeps_the_model_on_kernels_that_serve_the_mode(
    run: Callable[..., Any], kernel: Path
) -> None:
    result = run(
        kernel,
        """
        norm = LocalLayerRepository(KERNEL, layer_name="RMSNorm")
        register_kernel_mapping({"RMSNorm": {"cpu": {Mode.INFERENCE: norm}}})
        model = build("llama")
        model.set_use_kernels(True)
        modes = [served(model)]
        for change in (model.train, model.eval):
            change()
            modes.append(served(model))
        print(json.dumps(modes))
        """,
    )
    assert result == [["RMSNorm"], [], ["RMSNorm"]]


def test_the_mapping_can_be_switched_off_from_outside(run: Callable[..., Any], kernel: Path) -> None:
    result = run(
        kernel,
        """
        register()
        model = build("llama")
        model.set_use_kernels(True)
        print(json.dumps(served(model)))
        """,
        DISABLE_KERNEL_MAPPING="1",
    )
    assert result == []


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is not None and Version(version("transformers")) < Version("5.13"),
    reason="`set_use_kernels` takes a mode since transformers 5.13",
)
def test_compiling_a_kernelized_model_breaks_no_graph_and_compiles_no_more_often(
    run: Callable[..., Any], kernel: Path
) -> None:
    result = run(
        kernel,
        """
        from torch._dynamo.utils import counters

        def graphs(model):
            torch._dynamo.reset()
            counters.clear()
            compiled = torch.compile(model, fullgraph=True, backend="eager")
            for _ in range(3):
                out = logits(compiled)
            return out, counters["stats"]["unique_graphs"]

        replace_kernel_forward_from_hub(LlamaMLP, "LlamaMLP")
        register()
        model = build("llama")
        eager, plain = graphs(model)
        model.set_use_kernels(True, mode=Mode.INFERENCE | Mode.TORCH_COMPILE)
        out, kernelized = graphs(model)
        print(json.dumps([served(model), plain, kernelized, (out - eager).abs().max().item()]))
        """,
    )
    layers, plain, kernelized, difference = result
    assert layers == ["LlamaMLP", "RMSNorm"]
    assert kernelized == plain
    assert difference < 1e-4


def test_a_kernel_config_of_transformers_is_served(run: Callable[..., Any], kernel: Path) -> None:
    # Its own format, which knows no CPU: what matters is that the mapping it makes is accepted.
    result = run(
        kernel,
        """
        from transformers import KernelConfig

        model = build("llama")
        config = KernelConfig({"RMSNorm": {"cuda": f"{KERNEL}:RMSNorm"}}, use_local_kernel=True)
        model.set_use_kernels(True, kernel_config=config)
        print(json.dumps([served(model), sorted({row.reason for row in kernelize_report(model)})]))
        """,
    )
    assert result[0] == []
    assert result[1]
