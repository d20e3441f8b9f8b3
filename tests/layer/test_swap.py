"""A replaced forward comes back, and survives what happens to models meanwhile."""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any

import pytest
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


def through_hook(hooked: Any, *args: Any) -> Any:
    return hooked._old_forward(*args) + 0.5


class Hooked:
    """What accelerate's `add_hook_to_module` does to a module."""

    @staticmethod
    def add(module: Any) -> None:
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


def with_weight(norm: Any, weight: float) -> Any:
    """Give a copy a weight of its own, as a shallow copy shares even the dictionary of weights."""
    norm._parameters = {"weight": nn.Parameter(torch.tensor([weight]), requires_grad=False)}
    return norm


def test_a_shallow_copy_runs_through_the_kernel_with_its_own_weights() -> None:
    registered(Norm=Gives(KernelNorm))
    norm = kernelize(Norm(), mode=INFERENCE)
    copied = with_weight(copy.copy(norm), 7.0)
    again = with_weight(copy.copy(copied), 8.0)
    deep = with_weight(copy.deepcopy(copied), 9.0)
    assert [float(each(X)) for each in (norm, copied, again, deep)] == [102, 107, 108, 109]
    assert {row.reason for each in (copied, again, deep) for row in kernelize_report(each)} == {None}
    unkernelize(copied)
    assert [float(each(X)) for each in (norm, copied, again, deep)] == [102, 7, 108, 109]
    assert set(copied.__dict__) == set(Norm().__dict__)


def test_a_replica_for_data_parallel_runs_with_the_weights_of_its_gpu() -> None:
    # `nn.DataParallel` makes replicas so and sets their weights as attributes; replicating needs a second GPU.
    registered(Norm=Gives(KernelNorm))
    norm: Any = kernelize(Norm(), mode=INFERENCE)
    replica = norm._replicate_for_data_parallel()
    replica.weight = torch.tensor([7.0])
    second = replica._replicate_for_data_parallel()
    second.weight = torch.tensor([8.0])
    assert [float(each(X)) for each in (norm, replica, second)] == [102, 107, 108]
    unkernelize(norm)
    assert [float(each(X)) for each in (norm, replica)] == [2, 107]


def test_a_copy_beneath_a_hook_gets_the_kernel_too() -> None:
    registered(Norm=Gives(KernelNorm))
    norm = Norm()
    Hooked.add(norm)
    kernelize(norm, mode=INFERENCE)
    copied = with_weight(copy.copy(norm), 7.0)
    Hooked.remove(copied)
    assert float(copied(X)) == 107
    assert float(unkernelize(norm)(X)) == 2.5


def test_a_pickle_of_a_hooked_module_comes_back_with_its_own_forward_beneath_the_hook() -> None:
    registered(Norm=Gives(KernelNorm))
    norm: Any = Norm()
    Hooked.add(norm)
    norm._hf_hook = "picklable"
    kernelize(norm, mode=INFERENCE)
    restored = pickle.loads(pickle.dumps(norm))
    assert (norm_of(norm), norm_of(restored)) == (100.5, 0.5)
    assert norm_of(kernelize(restored, mode=INFERENCE)) == 100.5


def test_a_copy_after_other_code_replaced_the_forward_has_that_forward() -> None:
    registered(Norm=Gives(KernelNorm))
    norm = kernelize(Norm(), mode=INFERENCE)
    norm.forward = lambda x: x - 1
    copied = copy.copy(norm)
    assert norm_of(copied) == -1
    assert "other code has replaced" in str(kernelize_report(copied))


class Handmade(Norm):
    """Copies itself, and takes all it has along."""

    def __copy__(self) -> Handmade:
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied


def test_a_copy_that_a_class_makes_itself_is_reported_until_it_is_kernelized_again() -> None:
    registered(Norm=Gives(KernelNorm))
    norm = kernelize(Handmade(), mode=INFERENCE)
    copied = with_weight(copy.copy(norm), 7.0)
    assert "copied since" in str(kernelize_report(copied))
    assert "copied since" not in str(kernelize_report(norm))
    assert float(kernelize(copied, mode=INFERENCE)(X)) == 107
    assert float(copy.deepcopy(copied)(X)) == 107
    unkernelize(copied)
    assert (float(copied(X)), float(norm(X))) == (7, 102)


class Stateful(Norm):
    """Decides itself what a copy takes along."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = [1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cache": []}


class Wrapped(Norm):
    """Its state is no dictionary of attributes."""

    def __getstate__(self) -> tuple[Any, ...]:
        return (self.__dict__,)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        super().__setstate__(state[0])


@pytest.mark.parametrize("cls", [Norm, Stateful, Wrapped])
def test_a_class_with_a_state_of_its_own_is_copied_and_pickled(cls: Any) -> None:
    registered(Norm=Gives(KernelNorm))
    norm = kernelize(cls(), mode=INFERENCE)
    assert float(with_weight(copy.deepcopy(norm), 7.0)(X)) == 107
    assert getattr(copy.copy(norm), "cache", []) == []
    restored = pickle.loads(pickle.dumps(norm))
    assert norm_of(restored) == 0
    assert "kernelize it again" in str(kernelize_report(restored))
    assert norm_of(kernelize(restored, mode=INFERENCE)) == 100


def test_a_kernelized_model_survives_what_models_go_through() -> None:
    registered(Norm=Gives(KernelNorm))
    model = kernelize(Model(), mode=INFERENCE)
    weights = pickle.loads(pickle.dumps(model.state_dict()))
    assert list(weights) == list(Model().state_dict())
    Model().load_state_dict(weights)
    model = model.to(torch.float64).train().eval().requires_grad_(False)
    out = model.blocks[0].norm(X.double())
    assert (out.dtype, float(out)) == (torch.float64, 102)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda norm: torch.jit.script(norm)(X), 102),
        (lambda norm: torch.jit.trace(norm, X)(X), 102),
        (lambda norm: torch.export.export(norm, (X,)).module()(X), 102),
        (lambda norm: torch.func.functional_call(norm, {"weight": torch.tensor([7.0])}, X), 107),
    ],
)
def test_what_torch_makes_of_a_layer_runs_through_the_kernel(run: Any, expected: float) -> None:
    registered(Norm=Gives(KernelNorm))
    assert float(run(kernelize(Norm(), mode=INFERENCE))) == expected


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


def test_two_threads_may_restore_a_model_at_once() -> None:
    registered(Norm=Gives(KernelNorm))
    norm = Norm()
    kernelize(norm, mode=INFERENCE)

    class RestoresMeanwhile(dict[str, Any]):
        """Another thread restores the module between the look at an attribute and its removal."""

        def pop(self, *arguments: Any) -> Any:
            dict.pop(self, *arguments[:1], None)
            return dict.pop(self, *arguments)

        def __delitem__(self, name: str) -> None:
            dict.pop(self, name, None)
            dict.__delitem__(self, name)

    norm.__dict__ = RestoresMeanwhile(norm.__dict__)
    assert norm_of(unkernelize(norm)) == 0
