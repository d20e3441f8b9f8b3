"""Each kernel of a model is compared with the layer's own forward, and nothing of it remains."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from html_cells import HOSTILE, ReadHtml
from layer_models import Gives
from torch import nn

from kernels.layer import ComparedLayer, LayerComparison, Mode, compare_layers, kernelize, kernelize_report


class Norm(nn.Module):
    """A norm that scales by one plus its weight, as Gemma's does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((8,), 0.5))
        self.variance_epsilon = 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon) * (1 + self.weight)


class SameNorm(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(x, (8,), self.weight + 1, self.variance_epsilon)


class UsualNorm(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(x, (8,), self.weight, self.variance_epsilon)


class Counts(nn.Module):
    """A layer with buffers and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("last", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        self.last = x.sum()
        return x + torch.rand_like(x) + self.seen


def kernelized(model: nn.Module, kernel: type[nn.Module]) -> nn.Module:
    """The model with a kernel for its first layer."""
    return kernelize(
        model, {"First": {"cpu": Gives(kernel)}}, device="cpu", mode=Mode.INFERENCE, by_class={type(model[0]): "First"}
    )


def only(comparison: LayerComparison) -> ComparedLayer:
    [row] = comparison
    return row


X = torch.linspace(-2, 3, 24).reshape(3, 8)


def test_a_kernel_that_computes_the_same_agrees() -> None:
    comparison = compare_layers(kernelized(nn.Sequential(Norm(), nn.Linear(8, 8)), SameNorm), X)
    assert comparison.agrees(1e-5)
    row = only(comparison)
    assert (row.module, row.layer, row.kernel, row.calls) == ("0", "First", "Gives", 1)
    assert row.largest == pytest.approx(float(Norm()(X).detach().abs().max()))


def test_a_kernel_for_another_norm_does_not() -> None:
    comparison = compare_layers(kernelized(nn.Sequential(Norm()), UsualNorm), X)
    assert not comparison.agrees(1e-2)
    assert only(comparison).relative == pytest.approx(1 / 1.5)
    assert str(comparison).splitlines()[0] == "Results of kernels compared with those of the layers' own forwards"
    assert str(comparison).splitlines()[2].split()[:4] == ["0", "First", "Gives", "1"]


def test_layers_after_a_wrong_one_get_what_the_model_itself_computes() -> None:
    model = nn.Sequential(Norm(), nn.Linear(8, 8))
    expected = model(X)
    results = []
    model[1].register_forward_hook(lambda module, inputs, output: results.append(output))
    compare_layers(kernelized(model, UsualNorm), X)
    assert torch.equal(results[0], expected)
    assert not results[0].requires_grad


def test_nothing_remains() -> None:
    class Kernel(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += 1
            self.last = x
            return x + torch.rand_like(x) + self.seen

    model = kernelized(nn.Sequential(Counts(), nn.BatchNorm1d(8)), Kernel).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    attributes, random = dict(model[0].__dict__), torch.random.get_rng_state()
    assert only(compare_layers(model, X)).difference == 0
    assert {name: value.tolist() for name, value in model.state_dict().items()} == {
        name: value.tolist() for name, value in before.items()
    }
    assert model[0].last is None
    assert model[0].__dict__ == attributes
    assert torch.equal(torch.random.get_rng_state(), random)


@pytest.mark.parametrize("changed", ["kernel", "own", "both"])
def test_arguments_that_are_changed_in_place_count(changed: str) -> None:
    class Own(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1) if changed != "kernel" else x + 1

    class Kernel(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1) if changed != "own" else x + 1

    given = X.clone()
    row = only(compare_layers(kernelized(nn.Sequential(Own()), Kernel), given))
    assert row.difference == pytest.approx(0 if changed == "both" else 1)


def test_a_kernel_that_fails_is_a_fault_not_an_error() -> None:
    class Kernel(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ x

    comparison = compare_layers(kernelized(nn.Sequential(Norm()), Kernel), X)
    fault = str(only(comparison).fault)
    assert not comparison.agrees(1e9)
    assert fault.startswith("the kernel failed: RuntimeError: ")
    assert fault.endswith("mat1 and mat2 shapes cannot be multiplied (3x8 and 3x8)")
    assert fault in str(comparison)


def test_equal_values_that_are_no_numbers_agree_and_others_do_not() -> None:
    class Own(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tensor([float("nan"), float("inf"), 1.0])

    class Kernel(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tensor([float("nan"), float("inf"), x.sum()])

    model = kernelized(nn.Sequential(Own()), Kernel)
    assert only(compare_layers(model, torch.tensor([1.0]))).difference == 0
    assert only(compare_layers(model, torch.tensor([float("nan")]))).difference == float("inf")


@dataclass
class Output:
    values: torch.Tensor


class Cache:
    pass


@pytest.mark.parametrize(
    ("own", "kernel", "difference", "fault"),
    [
        (lambda x, cache: {"a": x, "b": -x}, lambda x, cache: {"b": -x, "a": x}, 0.0, None),
        (lambda x, cache: {"a": x}, lambda x, cache: {"b": x}, None, "the kernel returns the keys b in place of a"),
        (lambda x, cache: (x, x), lambda x, cache: [x, x + 3], 3.0, None),
        (lambda x, cache: (x,), lambda x, cache: (x, x), None, "the kernel returns 2 values in place of 1"),
        (lambda x, cache: x, lambda x, cache: (x, x), None, "the kernel returns a tuple in place of a Tensor"),
        (
            lambda x, cache: x,
            lambda x, cache: x[:1],
            None,
            "the kernel returns float32 of shape (1,) in place of float32 of shape (2,)",
        ),
        (
            lambda x, cache: x,
            lambda x, cache: x.half(),
            None,
            "the kernel returns float16 of shape (2,) in place of float32 of shape (2,)",
        ),
        (
            lambda x, cache: Output(x),
            lambda x, cache: Output(x + 3),
            None,
            "its results cannot be compared: they contain a Output",
        ),
        (lambda x, cache: 5, lambda x, cache: 8, 3.0, None),
        (
            lambda x, cache: (x, None, "a"),
            lambda x, cache: (x, None, "b"),
            None,
            "the kernel returns 'b' in place of 'a'",
        ),
        (lambda x, cache: (x, None), lambda x, cache: (x, x), None, "the kernel returns a Tensor in place of None"),
        (lambda x, cache: {x}, lambda x, cache: {x}, None, "its results cannot be compared: they contain a set"),
        (lambda x, cache: (x, cache), lambda x, cache: (x, cache), 0.0, None),
        (lambda x, cache: x / 0, lambda x, cache: -x / 0, float("inf"), None),
        (lambda x, cache: x.to_sparse(), lambda x, cache: (x + 3).to_sparse(), 3.0, None),
        (
            lambda x, cache: x.to("meta"),
            lambda x, cache: x.to("meta"),
            None,
            "its results cannot be compared: ",
        ),
    ],
)
def test_results_are_compared_by_their_structure(own: Any, kernel: Any, difference: Any, fault: Any) -> None:
    class Own(nn.Module):
        def forward(self, x: Any, cache: Any) -> Any:
            return own(x, cache)

    class Kernel(nn.Module):
        def forward(self, x: Any, cache: Any) -> Any:
            return kernel(x, cache)

    class Calls(nn.Sequential):
        def forward(self, x: torch.Tensor) -> Any:
            return self[0](x, Cache())

    comparison = compare_layers(kernelized(Calls(Own()), Kernel), torch.tensor([1.0, 1.0]))
    assert only(comparison).difference == difference
    assert comparison.agrees(1e-5) is (difference == 0)
    assert (only(comparison).fault or "").startswith(fault or "")
    assert (only(comparison).fault is None) is (fault is None)


def test_inputs_that_were_computed_with_gradients_are_copied() -> None:
    comparison = compare_layers(kernelized(nn.Sequential(Norm()), SameNorm), X.clone().requires_grad_() * 2)
    assert comparison.agrees(1e-5)


def test_a_layer_that_cannot_be_compared_or_is_not_called_says_so() -> None:
    class Locked(nn.Module):
        def forward(self, x: torch.Tensor, lock: Any) -> torch.Tensor:
            return x

    class Calls(nn.Sequential):
        def forward(self, x: torch.Tensor, called: bool) -> torch.Tensor:
            return self[0](x, threading.Lock()) if called else x

    model = kernelized(Calls(Locked()), Locked)
    assert str(only(compare_layers(model, X, called=True)).fault).startswith(
        "its arguments cannot be copied: TypeError"
    )
    comparison = compare_layers(model, X, called=False)
    assert str(comparison).startswith("No layer was compared: the model called none of those that run through a kernel")
    assert "not called with these inputs" in str(comparison)
    assert not comparison.agrees(1.0)


def test_a_model_that_fails_is_as_before() -> None:
    model = kernelized(nn.Sequential(Norm(), nn.Linear(3, 3)), SameNorm)
    attributes = dict(model[0].__dict__)
    with pytest.raises(RuntimeError, match="shapes"):
        compare_layers(model, X)
    assert model[0].__dict__ == attributes
    assert len(kernelize_report(model).kernelized) == 1


def test_without_kernels_there_is_nothing_to_compare() -> None:
    comparison = compare_layers(nn.Linear(8, 8), X)
    assert str(comparison) == "No layer was compared: none of this model runs through a kernel."
    assert len(comparison) == 0
    assert not comparison.agrees(1.0)
    with pytest.raises(TypeError, match="expected a torch"):
        compare_layers("model")


@pytest.mark.parametrize("text", HOSTILE)
def test_a_notebook_shows_a_table_in_which_nothing_is_markup(text: str) -> None:
    rows = (ComparedLayer("a.1", text, text, 2, 0.5, 2.0), ComparedLayer("b", text, text, 1, None, fault=text))
    read = ReadHtml(LayerComparison(rows)._repr_html_())
    assert read.tags == {"table", "div", "thead", "tbody", "tr", "th", "td"}
    assert read.cells[10:13] == ["2", "0.5", "2"]
