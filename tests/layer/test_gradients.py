"""A kernel without backward never computes where a gradient is needed, whatever the model was kernelized for."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from layer_models import Gives, KernelNorm, Norm, norm_of, registered
from torch import nn
from torch.utils.checkpoint import checkpoint

from kernels.errors import MappingError
from kernels.layer import Mode, kernelize, use_kernel_forward_from_hub, use_kernelized_func


class _Detached(torch.autograd.Function):
    """A kernel that computes the right result and no gradient, without an error, as a compiled op without backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return torch.zeros_like(gradients[0]), None


class ForwardOnly(nn.Module):
    has_backward = False
    can_torch_compile = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Detached.apply(x, self.weight)


@use_kernel_forward_from_hub("gradient_scale")
def gradient_scale(x: torch.Tensor, by: float = 3.0) -> torch.Tensor:
    return x * by


class ForwardOnlyScale(nn.Module):
    has_backward = False

    def forward(self, x: torch.Tensor, by: float = 3.0) -> torch.Tensor:
        return x.detach() * by


@use_kernelized_func(gradient_scale)
class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(1, 1), Norm()
        self.norm.weight.requires_grad_(True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(x)
        return hidden + gradient_scale(self.norm(hidden))


X = torch.tensor([[2.0]])


def gradients(model: nn.Module, call: Any = None) -> list[torch.Tensor | None]:
    model.zero_grad()
    (call or model)(X).sum().backward()
    return [parameter.grad for parameter in model.parameters()]


def prepared(**how: Any) -> tuple[nn.Module, nn.Module]:
    registered(Norm=Gives(ForwardOnly), gradient_scale=Gives(ForwardOnlyScale))
    plain = Residual().eval()
    return plain, kernelize(copy.deepcopy(plain), device="cpu", **how)


def test_a_model_kernelized_in_eval_has_right_gradients_in_training_and_in_eval() -> None:
    plain, model = prepared()
    wanted = gradients(plain)
    assert gradients(model) == wanted  # in eval, as for a saliency map
    model.train()
    assert gradients(model) == wanted
    assert gradients(model, lambda x: checkpoint(model, x, use_reentrant=False)) == wanted
    assert gradients(kernelize(model.train(), device="cpu", mode=Mode.INFERENCE)) == wanted


def test_a_frozen_layer_passes_the_gradient_of_its_input() -> None:
    plain, model = prepared()
    for each in (plain, model):
        each.norm.weight.requires_grad_(False)
    assert gradients(model) == gradients(plain)


def test_where_no_gradient_is_needed_the_kernel_runs() -> None:
    class Adds(nn.Module):
        has_backward = False
        can_torch_compile = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight + 300

    registered(Norm=Gives(Adds))
    norm: Any = kernelize(Norm().eval())
    assert norm_of(norm) == 300
    assert float(norm(torch.zeros(1))) == 300  # nothing here requires a gradient
    norm.weight.requires_grad_(True)
    assert float(norm(torch.zeros(1)).detach()) == 0
    assert norm_of(norm) == 300
    with torch.inference_mode():
        assert float(norm(torch.zeros(1))) == 300
    assert norm_of(norm.train()) == 0
    auto: Any = kernelize(Norm(), auto=True)
    assert (norm_of(auto.eval()), norm_of(auto.train())) == (300, 0)
    auto.weight.requires_grad_(True)
    assert float(auto.eval()(torch.zeros(1)).detach()) == 0


@pytest.mark.parametrize("given", [[X], {"x": [X]}])
def test_tensors_in_lists_and_dictionaries_are_asked_too(given: Any) -> None:
    @use_kernel_forward_from_hub("Nested")
    class Nested(nn.Module):
        def forward(self, given: Any) -> torch.Tensor:
            return (given[0] if isinstance(given, list) else given["x"][0]) * 2

    class Kernel(nn.Module):
        has_backward = False

        def forward(self, given: Any) -> torch.Tensor:
            return torch.zeros(1)

    registered(Nested=Gives(Kernel))
    model = kernelize(Nested().eval(), device="cpu")
    assert float(model(given)) == 0
    x = X.clone().requires_grad_()
    given = [x] if isinstance(given, list) else {"x": [x]}
    model(given).sum().backward()
    assert float(x.grad) == 2


def test_where_no_fallback_is_allowed_a_needed_gradient_is_an_error() -> None:
    registered(Norm=Gives(ForwardOnly))
    norm = kernelize(Norm().eval(), use_fallback=False)
    with torch.no_grad():
        norm(X)
    with pytest.raises(MappingError, match=r"'Norm': .* does not support backward, and a gradient is needed"):
        norm(X.clone().requires_grad_())


def test_a_kernel_with_backward_is_bound_as_it_is() -> None:
    registered(Norm=Gives(KernelNorm))
    assert kernelize(Norm().eval()).forward.__func__ is KernelNorm.forward


def test_a_teachers_function_leaves_the_gradients_of_a_student_as_they_are() -> None:
    student = Residual().train()
    wanted = gradients(student)
    teacher, _ = prepared()
    kernelize(teacher.eval(), device="cpu")
    assert gradients(student) == wanted


def test_a_function_that_changes_for_another_model_is_said(caplog: pytest.LogCaptureFixture) -> None:
    prepared()
    first = kernelize(Residual().eval(), device="cpu")
    registered(gradient_scale=Gives(type("Other", (ForwardOnlyScale,), {})))
    caplog.clear()

    class Other(nn.Module):
        def forward(self, x: torch.Tensor, by: float = 3.0) -> torch.Tensor:
            return x * by

    registered(gradient_scale=Gives(Other))
    kernelize(Residual().eval(), device="cpu")
    assert "Function 'gradient_scale' now runs Gives, also in Residual, kernelized before" in caplog.text
    assert first is not None


def test_torch_compile_takes_the_question_as_a_guard() -> None:
    registered(Norm=Gives(ForwardOnly))
    norm = kernelize(Norm().eval(), mode=Mode.INFERENCE | Mode.TORCH_COMPILE)
    compiled = torch.compile(norm, fullgraph=True, backend="eager")
    with torch.no_grad():
        assert float(compiled(X)) == 4
    x = X.clone().requires_grad_()
    compiled(x).sum().backward()
    assert float(x.grad) == 2
