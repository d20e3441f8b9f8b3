"""A replaced forward comes back, and survives what happens to models meanwhile."""

from __future__ import annotations

import copy
import functools
import io
import pickle
from types import MethodType
from typing import Any

import torch
from layer_models import (
    Block,
    Gives,
    KernelAct,
    KernelNorm,
    KernelScale,
    Model,
    Norm,
    OtherScale,
    X,
    norm_of,
    registered,
    scale,
)
from torch import nn

from kernels.layer import (
    Mode,
    kernelize,
    kernelize_report,
    unkernelize,
)

INFERENCE, TRAINING, COMPILE = Mode.INFERENCE, Mode.TRAINING, Mode.TORCH_COMPILE


def test_unkernelize_restores_every_forward() -> None:
    registered(Norm=Gives(KernelNorm), Act=Gives(KernelAct), scale=Gives(KernelScale))
    model = Model()
    before = [set(module.__dict__) for module in (*model.modules(), scale)]
    original = model(X)
    kernelize(model, mode=INFERENCE)
    assert not torch.equal(model(X), original)
    assert unkernelize(model) is model
    assert torch.equal(model(X), original)
    assert [set(module.__dict__) for module in (*model.modules(), scale)] == before
    assert torch.equal(unkernelize(model)(X), original)


def test_a_forward_set_on_an_instance_before_comes_back() -> None:
    registered(Norm={INFERENCE: Gives(KernelNorm)})
    norm = Norm()

    def own(self: Norm, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + 9

    norm.forward = MethodType(own, norm)  # type: ignore[method-assign]
    kernelize(norm, mode=INFERENCE)
    kernelize(norm, mode=INFERENCE)
    copied = copy.deepcopy(norm)
    assert norm_of(norm) == norm_of(copied) == 100
    with torch.no_grad():
        copied.weight.fill_(5)
    unkernelize(norm), unkernelize(copied)
    assert (float(norm(X)), float(copied(X))) == (2 + 9, 5 + 9)


def test_a_forward_set_by_other_code_afterwards_stays() -> None:
    registered(Norm=Gives(KernelNorm))
    norm = kernelize(Norm(), mode=INFERENCE)
    norm.forward = lambda x: x - 1
    assert "other code has replaced" in str(kernelize_report(norm))
    unkernelize(norm)
    assert norm_of(norm) == -1


def test_code_that_removes_the_forward_itself_leaves_no_harm() -> None:
    # transformers' tests cancel a kernelization this way.
    registered(Norm=Gives(KernelNorm))
    norm = kernelize(Norm(), mode=INFERENCE)
    norm.__dict__.pop("forward")
    assert norm_of(norm) == norm_of(unkernelize(norm)) == 0
    assert norm_of(kernelize(norm, mode=INFERENCE)) == 100


class Hooked:
    """What accelerate's `add_hook_to_module` does to a module."""

    @staticmethod
    def add(module: Any) -> None:
        def through_hook(hooked: Any, *args: Any) -> Any:
            return hooked._old_forward(*args) + 0.5

        module._hf_hook, module._old_forward = object(), module.forward
        module.forward = functools.partial(through_hook, module)

    @staticmethod
    def remove(module: Any) -> None:
        module.forward = module._old_forward
        del module._old_forward, module._hf_hook


def test_hooks_of_accelerate_stay_around_the_kernel() -> None:
    registered(Norm=Gives(KernelNorm))
    before, after = Norm(), kernelize(Norm(), mode=INFERENCE)
    Hooked.add(before), Hooked.add(after)
    kernelize(before, mode=INFERENCE)
    assert norm_of(before) == norm_of(after) == 100.5
    assert norm_of(unkernelize(before)) == norm_of(unkernelize(after)) == 0.5
    Hooked.remove(before), Hooked.remove(after)
    assert norm_of(before) == norm_of(after) == 0


def test_a_hook_that_is_removed_leaves_the_kernel() -> None:
    registered(Norm=Gives(KernelNorm))
    norm = Norm()
    Hooked.add(norm)
    kernelize(norm, mode=INFERENCE)
    Hooked.remove(norm)
    assert norm_of(norm) == 100
    assert norm_of(unkernelize(norm)) == 0


def test_a_deep_copy_runs_through_the_kernel_with_its_own_weights() -> None:
    registered(Norm=Gives(KernelNorm), scale=Gives(KernelScale))
    model = kernelize(Model(), mode=INFERENCE)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.blocks[0].norm.weight.fill_(50)
    assert norm_of(copied.blocks[0].norm) == 100
    assert float(copied.blocks[0].norm(X)) == 150
    assert float(model.blocks[0].norm(X)) == 102
    assert copied.blocks[0]._kernel_funcs["scale"] is scale
    assert kernelize_report(copied).to_list() == kernelize_report(model).to_list()
    unkernelize(copied)
    assert (norm_of(copied.blocks[0].norm), norm_of(model.blocks[0].norm)) == (0, 100)


def test_a_kernelized_model_survives_what_models_go_through() -> None:
    registered(Norm=Gives(KernelNorm))
    model = kernelize(Model(), mode=INFERENCE)
    weights = pickle.loads(pickle.dumps(model.state_dict()))
    assert list(weights) == list(Model().state_dict())
    Model().load_state_dict(weights)
    model = model.to(torch.float64).train().eval().requires_grad_(False)
    out = model.blocks[0].norm(X.double())
    assert (out.dtype, float(out)) == (torch.float64, 102)


def test_a_pickled_model_comes_back_with_its_own_forwards_and_says_so() -> None:
    registered(Norm=Gives(KernelNorm))
    norm = kernelize(Norm(), mode=INFERENCE)
    buffer = io.BytesIO()
    torch.save(norm, buffer)
    buffer.seek(0)
    restored = torch.load(buffer, weights_only=False)
    assert norm_of(restored) == 0
    assert "kernelize it again" in str(kernelize_report(restored))
    assert norm_of(kernelize(restored, mode=INFERENCE)) == 100
    assert norm_of(unkernelize(restored)) == 0


def test_a_model_that_holds_a_wrapped_function_pickles() -> None:
    registered(scale=Gives(KernelScale))
    block = kernelize(Block(), mode=INFERENCE)
    assert pickle.loads(pickle.dumps(block))._kernel_funcs["scale"] is scale


def test_of_a_wrapped_function_the_last_kernelize_wins() -> None:
    registered(scale={INFERENCE: Gives(KernelScale), TRAINING: Gives(OtherScale)})
    first, second = kernelize(Model(), mode=INFERENCE), Model()
    assert float(scale(X)) == 10
    kernelize(second, mode=TRAINING)
    assert float(scale(X)) == 73
    unkernelize(first)
    assert float(scale(X)) == 3


def test_a_module_that_stands_twice_in_a_model_is_swapped_once() -> None:
    registered(Norm=Gives(KernelNorm))
    shared = Norm()
    model = nn.Sequential(shared, nn.Sequential(shared))
    assert [row.module for row in kernelize(model, mode=INFERENCE, report=True)] == ["0"]
    assert norm_of(unkernelize(model)[0]) == 0
