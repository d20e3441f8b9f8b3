"""The example kernels on CPU: the compiled builds and the noarch ones give the same, right results."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from example_kernels import check_fused_add_rms_norm, check_rms_norm, check_rotary, check_silu_mul, load_example

COMPILED = pytest.param("compiled-cpu", marks=pytest.mark.compiler)
KINDS = pytest.mark.parametrize("kind", [COMPILED, "cpu"])
FLOATS = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture
def load(example_hub: Path) -> Callable[[str, str], ModuleType]:
    return lambda name, kind: load_example(example_hub, name, kind)


@KINDS
def test_rms_norm_matches_its_float64_reference(load: Callable[..., ModuleType], kind: str) -> None:
    check_rms_norm(load("rms-norm", kind).rms_norm, "cpu", FLOATS)


@KINDS
def test_fused_add_rms_norm_matches_its_float64_reference(load: Callable[..., ModuleType], kind: str) -> None:
    check_fused_add_rms_norm(load("rms-norm", kind).fused_add_rms_norm, "cpu", FLOATS)


@KINDS
def test_the_layer_of_a_residual_gives_the_norm_and_the_sum(load: Callable[..., ModuleType], kind: str) -> None:
    layer = load("rms-norm", kind).layers.FusedAddRMSNorm()
    layer.weight, layer.variance_epsilon = torch.nn.Parameter(torch.randn(34)), 1e-5
    x, residual = torch.randn(3, 5, 34), torch.randn(3, 5, 34)
    normed, summed = layer(x, residual)
    torch.testing.assert_close(summed, x + residual)
    torch.testing.assert_close(normed, torch.nn.functional.rms_norm(x + residual, (34,), layer.weight, 1e-5))


@KINDS
def test_silu_mul_matches_its_float64_reference(load: Callable[..., ModuleType], kind: str) -> None:
    check_silu_mul(load("silu-and-mul", kind).silu_mul, "cpu", FLOATS)


@KINDS
def test_rotary_matches_its_float64_reference(load: Callable[..., ModuleType], kind: str) -> None:
    check_rotary(load("rotary", kind).apply_rotary_pos_emb, "cpu", FLOATS)


@KINDS
def test_silu_and_mul_splits_its_last_dimension(load: Callable[..., ModuleType], kind: str) -> None:
    kernel = load("silu-and-mul", kind)
    x = torch.randn(3, 5, 34)
    expected = torch.nn.functional.silu(x[..., :17]) * x[..., 17:]
    torch.testing.assert_close(kernel.silu_and_mul(x), expected)
    torch.testing.assert_close(kernel.layers.SiluAndMul()(x), expected)


@KINDS
def test_extreme_values_come_out_as_torch_has_them(load: Callable[..., ModuleType], kind: str) -> None:
    inf, nan = float("inf"), float("nan")
    gate = torch.tensor([-inf, -200.0, -88.5, -87.0, -0.0, 0.0, 1e-30, 87.0, 89.0, 1e30, inf, nan])
    result = load("silu-and-mul", kind).silu_mul(gate, torch.ones_like(gate))
    torch.testing.assert_close(result, torch.nn.functional.silu(gate), equal_nan=True, atol=1e-30, rtol=1e-5)
    rows = torch.tensor([[0.0, 0.0], [nan, 1.0], [1e-20, -1e-20]], dtype=torch.bfloat16)
    normed = load("rms-norm", kind).rms_norm(rows, torch.ones(2, dtype=torch.bfloat16))
    assert normed[0].tolist() == [0.0, 0.0]
    assert normed[1].isnan().all()
    assert normed[2].abs().max() < 1e-15


@pytest.mark.compiler
def test_every_half_is_read_and_rounded_as_torch_does(load: Callable[..., ModuleType]) -> None:
    values = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.float16)
    values = values[values.isfinite()].reshape(1, 1, 1, -1)
    rotate = load("rotary", "compiled-cpu").apply_rotary_pos_emb
    for factor in (1.0, 0.333, 1.7, 3e-5, 60_000.0):
        cos = torch.full_like(values[0], factor)
        turned, _ = rotate(values, values, cos, torch.zeros_like(cos))
        assert torch.equal(turned, (values.float() * cos.float()).half())
    gate = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0], dtype=torch.float16)
    found = load("silu-and-mul", "compiled-cpu").silu_mul(gate, torch.ones_like(gate))
    torch.testing.assert_close(found, torch.nn.functional.silu(gate), equal_nan=True)


@KINDS
@pytest.mark.parametrize("weight", FLOATS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_norm_of_two_types_is_of_the_type_that_they_promote_to(
    load: Callable[..., ModuleType], kind: str, dtype: torch.dtype, weight: torch.dtype
) -> None:
    x, scale = torch.randn(3, 40, dtype=dtype), torch.randn(40, dtype=weight)
    found = load("rms-norm", kind).rms_norm(x, scale)
    assert found.dtype == torch.promote_types(dtype, weight)
    expected = torch.nn.functional.rms_norm(x.float(), (40,), eps=1e-6).to(dtype) * scale
    torch.testing.assert_close(found, expected, rtol=4 * torch.finfo(dtype).eps, atol=0)


@KINDS
def test_all_builds_offer_the_same_names(load: Callable[..., ModuleType], kind: str) -> None:
    for name in ("rms-norm", "rotary", "silu-and-mul"):
        assert load(name, kind).__all__ == load(name, "cpu").__all__


@KINDS
def test_learned_angles_get_their_gradients(load: Callable[..., ModuleType], kind: str) -> None:
    q, k = torch.randn(1, 2, 3, 8), torch.randn(1, 1, 3, 8)
    cos, sin = torch.randn(1, 3, 8, requires_grad=True), torch.randn(1, 3, 8, requires_grad=True)
    turned_q, turned_k = load("rotary", kind).apply_rotary_pos_emb(q, k, cos, sin)
    (turned_q.sum() + turned_k.sum()).backward()
    torch.testing.assert_close(cos.grad, q.sum(1) + k.sum(1))


def _rms_norm(kernel: ModuleType, **wrong: Any) -> None:
    kernel.rms_norm(**{"input": torch.ones(2, 8), "weight": torch.ones(8), **wrong})


def _silu_mul(kernel: ModuleType, **wrong: Any) -> None:
    kernel.silu_mul(**{"gate": torch.ones(2, 8), "up": torch.ones(2, 8), **wrong})


def _rotary(kernel: ModuleType, **wrong: Any) -> None:
    right = {"q": torch.ones(1, 2, 3, 8), "k": torch.ones(1, 1, 3, 8), "cos": torch.ones(1, 3, 8)}
    kernel.apply_rotary_pos_emb(**{**right, "sin": torch.ones(1, 3, 8), **wrong})


@KINDS
@pytest.mark.parametrize(
    ("name", "call", "wrong", "error", "says"),
    [
        ("rms-norm", _rms_norm, {"weight": torch.ones(7)}, ValueError, "`weight` has the shape .*7.* `input`"),
        ("rms-norm", _rms_norm, {"input": torch.tensor(1.0)}, ValueError, "`(input|weight)`"),
        (
            "rms-norm",
            _rms_norm,
            {"input": torch.ones(2, 8, dtype=torch.int32)},
            TypeError,
            "`input` is .*[Ii]nt.*float32",
        ),
        ("rms-norm", _rms_norm, {"weight": torch.ones(8, dtype=torch.float64)}, TypeError, "`weight` is .*float32"),
        ("silu-and-mul", _silu_mul, {"up": torch.ones(2, 7)}, ValueError, r"`up` has the shape .2, 7.; allowed .*2, 8"),
        (
            "silu-and-mul",
            _silu_mul,
            {"up": torch.ones(2, 8, dtype=torch.bfloat16)},
            TypeError,
            "`up` is .*[Bb][Ff]loat16",
        ),
        ("silu-and-mul", _silu_mul, {"gate": torch.ones(2, 8, dtype=torch.int64)}, TypeError, "`gate` is .*float32"),
        ("rotary", _rotary, {"q": torch.ones(2, 3, 8)}, ValueError, "`q` has the shape .2, 3, 8."),
        ("rotary", _rotary, {"k": torch.ones(1, 1, 4, 8)}, ValueError, "`k` has the shape .1, 1, 4, 8."),
        ("rotary", _rotary, {"cos": torch.ones(1, 3, 6), "sin": torch.ones(1, 3, 6)}, ValueError, "`q` has the shape"),
        ("rotary", _rotary, {"sin": torch.ones(1, 3, 6)}, ValueError, "`sin`"),
        ("rotary", _rotary, {"cos": torch.ones(3, 8), "sin": torch.ones(3, 8)}, ValueError, "`cos`"),
        ("rotary", _rotary, {"q": torch.ones(1, 2, 3, 8, dtype=torch.int32)}, TypeError, "`q` is .*float32"),
        ("rotary", _rotary, {"cos": torch.ones(1, 3, 8, dtype=torch.int32)}, TypeError, "`cos` is .*float32"),
    ],
)
def test_wrong_arguments_are_named(
    load: Callable[..., ModuleType],
    kind: str,
    name: str,
    call: Callable[..., None],
    wrong: dict[str, torch.Tensor],
    error: type[Exception],
    says: str,
) -> None:
    kernel = load(name, kind)
    with pytest.raises(error, match=says):
        call(kernel, **wrong)


@KINDS
def test_an_odd_last_dimension_cannot_be_halved(load: Callable[..., ModuleType], kind: str) -> None:
    with pytest.raises(ValueError, match="even last dimension"):
        load("silu-and-mul", kind).silu_and_mul(torch.ones(2, 7))


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("name", "operator", "arguments"),
    [
        ("rms-norm", "rms_norm", lambda: (torch.randn(3, 8, requires_grad=True), torch.ones(8), 1e-6)),
        ("rms-norm", "rms_norm", lambda: (torch.randn(8, 3, dtype=torch.bfloat16).T, torch.ones(8), 1e-6)),
        (
            "rms-norm",
            "fused_add_rms_norm",
            lambda: (torch.randn(3, 8, requires_grad=True), torch.randn(3, 8), torch.ones(8), 1e-6),
        ),
        ("rms-norm", "rms_norm_inference", lambda: (torch.randn(3, 8), torch.ones(8), 1e-6)),
        ("silu-and-mul", "silu_mul", lambda: (torch.randn(3, 8, requires_grad=True), torch.randn(3, 8))),
        ("silu-and-mul", "silu_mul_backward", lambda: tuple(torch.randn(3, 8) for _ in range(3))),
        (
            "rotary",
            "rotary",
            lambda: (
                *(torch.randn(1, 3, heads, 8, requires_grad=True).transpose(1, 2) for heads in (4, 2)),
                *(torch.randn(1, 3, 8, dtype=torch.bfloat16) for _ in range(2)),
                1,
                False,
            ),
        ),
    ],
)
def test_compiled_operators_keep_torchs_contract(
    load: Callable[..., ModuleType], name: str, operator: str, arguments: Callable[[], tuple[Any, ...]]
) -> None:
    """Schema, fake result and derivative agree with what the operator does, as Torch itself checks it."""
    ops = load(name, "compiled-cpu")._ops.ops
    torch.library.opcheck(getattr(ops, operator).default, arguments())


class _Norm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(16))
        self.variance_epsilon = 1e-6


class _MLP(torch.nn.Module):
    def __init__(self, activation: torch.nn.Module) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = torch.nn.Linear(16, 24), torch.nn.Linear(16, 24)
        self.down_proj, self.act_fn = torch.nn.Linear(24, 16), activation


@KINDS
@pytest.mark.parametrize(
    ("name", "layer", "module", "arguments"),
    [
        ("rms-norm", "RMSNorm", _Norm, lambda: (torch.randn(2, 3, 16),)),
        ("silu-and-mul", "GatedMLP", lambda: _MLP(torch.nn.SiLU()), lambda: (torch.randn(2, 3, 16),)),
        ("silu-and-mul", "SiluAndMul", torch.nn.Module, lambda: (torch.randn(2, 3, 16),)),
        (
            "rotary",
            "ApplyRotaryPosEmb",
            torch.nn.Module,
            lambda: (torch.randn(1, 2, 3, 8), torch.randn(1, 1, 3, 8), torch.randn(1, 3, 8), torch.randn(1, 3, 8)),
        ),
    ],
)
def test_layers_compile_without_a_graph_break(
    load: Callable[..., ModuleType],
    kind: str,
    name: str,
    layer: str,
    module: Callable[[], torch.nn.Module],
    arguments: Callable[[], tuple[torch.Tensor, ...]],
) -> None:
    layer_class = getattr(load(name, kind).layers, layer)
    assert layer_class.can_torch_compile
    instance = module()
    inputs = arguments()

    def forward(*tensors: torch.Tensor) -> Any:
        return layer_class.forward(instance, *tensors)

    torch.compiler.reset()
    compiled = torch.compile(forward, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), forward(*inputs))


@KINDS
def test_a_gated_mlp_keeps_an_activation_that_is_not_silu(load: Callable[..., ModuleType], kind: str) -> None:
    mlp, x = _MLP(torch.nn.GELU()), torch.randn(2, 16)
    expected = mlp.down_proj(torch.nn.functional.gelu(mlp.gate_proj(x)) * mlp.up_proj(x))
    torch.testing.assert_close(load("silu-and-mul", kind).layers.GatedMLP.forward(mlp, x), expected)


def _transformers_layers() -> list[tuple[str, str, Any, tuple[torch.Tensor, ...]]]:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    qwen3 = pytest.importorskip("transformers.models.qwen3.modeling_qwen3")
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 48}
    x = torch.randn(2, 3, 32)
    angles = torch.randn(2, 3, 4).repeat(1, 1, 2)
    rotary = (torch.randn(2, 4, 3, 8), torch.randn(2, 2, 3, 8), angles.cos(), angles.sin())
    return [
        ("rms-norm", "RMSNorm", llama.LlamaRMSNorm(32), (x,)),
        ("rms-norm", "RMSNorm", qwen3.Qwen3RMSNorm(32), (x,)),
        ("silu-and-mul", "GatedMLP", llama.LlamaMLP(transformers.LlamaConfig(**sizes)), (x,)),
        ("silu-and-mul", "GatedMLP", qwen3.Qwen3MLP(transformers.Qwen3Config(**sizes)), (x,)),
        ("rotary", "ApplyRotaryPosEmb", llama.apply_rotary_pos_emb, rotary),
    ]


@KINDS
@pytest.mark.parametrize("dtype", FLOATS)
def test_layers_stand_in_for_those_of_transformers(
    load: Callable[..., ModuleType], kind: str, dtype: torch.dtype
) -> None:
    for name, layer, original, inputs in _transformers_layers():
        forward = getattr(load(name, kind).layers, layer).forward
        inputs = tuple(tensor.to(dtype) for tensor in inputs)
        if isinstance(original, torch.nn.Module):
            original = original.to(dtype)
        own = getattr(original, "forward", original)
        parameters = list(inspect.signature(forward).parameters.values())[1:]
        theirs = list(inspect.signature(own).parameters.values())
        assert [each.kind for each in parameters] == [each.kind for each in theirs]
        with torch.no_grad():
            expected, result = own(*inputs), forward(original, *inputs)
        torch.testing.assert_close(result, expected, rtol=2 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)
        if name == "rms-norm" and dtype != torch.float32:
            # Rounded in the same places: nearly every value is the same to the bit.
            assert (result == expected).float().mean() > 0.99
