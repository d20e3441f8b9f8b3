"""A kernel replaces only the forward that it was written for; every other layer keeps its own, with the reason."""

from __future__ import annotations

import functools
from types import MethodType
from typing import Any

import pytest
import torch
from layer_models import Gives, KernelNorm, Model, Norm, norm_of, registered, scale
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from kernels.errors import LayerError, MappingError
from kernels.layer import (
    Mode,
    kernelize,
    kernelize_report,
    replace_kernel_forward_from_hub,
    unkernelize,
    use_kernel_forward_from_hub,
)

INFERENCE = Mode.INFERENCE


class Shifted(Norm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 9


class Named(Norm):
    """It adds nothing to its forward."""

    def extra_repr(self) -> str:
        return "named"


class Mixin:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 9


class Mixed(Mixin, Norm):
    pass


@use_kernel_forward_from_hub("Norm")
class Again(Norm):
    """Marked itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


def reason(module: nn.Module) -> str | None:
    [row] = kernelize(module, mode=INFERENCE, report=True)
    return row.reason


@pytest.fixture
def _norm_kernel() -> None:
    registered(Norm=Gives(KernelNorm))


@pytest.mark.usefixtures("_norm_kernel")
@pytest.mark.parametrize(
    ("cls", "says"),
    [
        (Shifted, "Shifted overrides forward, and the kernel is written for that of Norm, which carries the mark"),
        (type("Below", (Shifted,), {}), "Shifted overrides forward"),
        (Mixed, "Mixin overrides forward"),
    ],
)
def test_a_subclass_that_overrides_forward_keeps_it(cls: Any, says: str) -> None:
    norm = cls()
    before = norm_of(norm)
    assert reason(norm).startswith(says)  # type: ignore[union-attr]
    assert norm_of(norm) == before == 9
    with pytest.raises(MappingError, match=r"Layer 'Norm' \(0\): .* overrides forward"):
        kernelize(nn.Sequential(cls()), mode=INFERENCE, use_fallback=False)


@pytest.mark.usefixtures("_norm_kernel")
@pytest.mark.parametrize("cls", [Norm, Named, Again])
def test_a_subclass_with_the_marked_forward_or_its_own_mark_is_replaced(cls: Any) -> None:
    norm = cls()
    assert reason(norm) is None
    assert norm_of(norm) == 100


def test_the_kernel_of_a_layer_that_keeps_its_forward_is_not_even_loaded() -> None:
    repository = Gives(KernelNorm)
    registered(Norm=repository)
    kernelize(Shifted(), mode=INFERENCE)
    assert repository.loads == 0
    # Where the layers of a class differ, the others get it.
    model = kernelize(nn.Sequential(Shifted(), Norm()), mode=INFERENCE)
    assert [norm_of(each) for each in model] == [9, 100]


def test_a_class_named_for_a_call_is_replaced_though_it_overrides() -> None:
    registered(Norm=Gives(KernelNorm))
    norm = Shifted()
    [row] = kernelize(norm, mode=INFERENCE, by_class={Shifted: "Norm"}, report=True)
    assert (row.reason, norm_of(norm)) == (None, 100)


@use_kernel_forward_from_hub("Norm")
class WithParts(Norm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scaled(x) + self.offset

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self._factor()

    def _factor(self) -> torch.Tensor:
        return self.weight

    @property
    def offset(self) -> float:
        return 0.0


@pytest.mark.usefixtures("_norm_kernel")
@pytest.mark.parametrize(
    ("name", "member"),
    [
        ("_factor", lambda self: self.weight + 1),
        ("scaled", lambda self, x: x),
        ("offset", property(lambda self: 5.0)),
    ],
)
def test_a_subclass_that_overrides_what_forward_calls_keeps_it(name: str, member: Any) -> None:
    below = type("Other", (WithParts,), {name: member})
    assert f"Other overrides {name}, which forward calls" in str(reason(below()))
    assert reason(type("Same", (WithParts,), {"unrelated": member})()) is None
    if not isinstance(member, property):
        norm = WithParts()
        setattr(norm, name, MethodType(member, norm))
        assert reason(norm) == f"{name}, which forward calls, is set on this module"


@pytest.mark.usefixtures("_norm_kernel")
def test_a_forward_that_is_set_on_the_class_after_the_mark_stays() -> None:
    @use_kernel_forward_from_hub("Norm")
    class Patched(Norm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

    own = Patched.forward
    Patched.forward = functools.wraps(own)(lambda self, x: own(self, x) + 9)  # type: ignore[method-assign]
    norm = Patched()
    assert reason(norm) == (
        "the forward of test_a_forward_that_is_set_on_the_class_after_the_mark_stays.<locals>.Patched was replaced "
        "after the class was marked"
    )
    assert norm_of(norm) == 9
    replace_kernel_forward_from_hub(Patched, "Norm")
    assert reason(norm) is None
    assert norm_of(norm) == 100


@pytest.mark.usefixtures("_norm_kernel")
def test_a_method_that_is_set_on_the_class_after_the_mark_stays() -> None:
    @use_kernel_forward_from_hub("Norm")
    class Patched(Norm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scaled(x)

        def scaled(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

        def unrelated(self) -> None:
            pass

    norm = Patched()
    assert reason(norm) is None
    Patched.unrelated = lambda self: None  # type: ignore[method-assign]
    assert reason(norm) is None
    Patched.scaled = lambda self, x: x * self.weight + 9  # type: ignore[method-assign]
    assert str(reason(norm)).startswith("scaled of test_a_method_that_is_set_on_the_class_after_the_mark_stays")
    assert str(reason(norm)).endswith("Patched, which forward calls, was replaced after the class was marked")
    assert norm_of(norm) == 9
    replace_kernel_forward_from_hub(Patched, "Norm")
    assert reason(norm) is None


def around(forward: Any) -> Any:
    @functools.wraps(forward)
    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        return forward(*arguments, **keywords) + 9

    return wrapper


@pytest.mark.usefixtures("_norm_kernel")
def test_a_forward_that_is_set_on_the_module_or_wrapped_stays() -> None:
    first, second, third = Norm(), Norm(), Norm()
    first.forward = around(first.forward)  # type: ignore[method-assign]
    second.forward = torch.compile(second.forward, backend="eager")  # type: ignore[method-assign]
    third.forward = third.forward  # type: ignore[method-assign]
    rows = list(kernelize(nn.Sequential(first, second, third), mode=INFERENCE, report=True))
    assert [row.reason for row in rows] == ["a forward of its own is set on this module"] * 2 + [None]
    assert [norm_of(each) for each in (first, second, third)] == [9, 0, 100]
    unkernelize(third)
    assert [norm_of(each) for each in (first, second, third)] == [9, 0, 0]
    with pytest.raises(MappingError, match=r"Layer 'Norm' \(the model\): a forward of its own is set"):
        kernelize(first, mode=INFERENCE, use_fallback=False)
    del first.forward
    assert reason(first) is None


class Epsilon(nn.Module):
    can_torch_compile = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + self.variance_epsilon


class Tolerant(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + getattr(self, "variance_epsilon", 100)


def with_attribute(name: str, value: Any) -> Norm:
    norm = Norm()
    setattr(norm, name, value)
    return norm


class Dynamic(Norm):
    def __getattr__(self, name: str) -> Any:
        return 100.0 if name == "variance_epsilon" else super().__getattr__(name)


class Constant(Norm):
    variance_epsilon = 100.0


def test_what_a_kernel_reads_and_a_layer_lacks_is_told_before_the_first_call() -> None:
    registered(Norm=Gives(Epsilon))
    lacks = "the kernel's forward reads self.variance_epsilon, which Norm does not have"
    model = nn.Sequential(with_attribute("eps", 1.0), with_attribute("variance_epsilon", 100.0))
    rows = list(kernelize(model, mode=INFERENCE, report=True))
    assert [row.reason for row in rows] == [lacks, None]
    assert [norm_of(each) for each in model] == [0, 100]
    with pytest.raises(MappingError, match=r"Layer 'Norm' \(0\): the kernel's forward reads self\.variance_epsilon"):
        kernelize(unkernelize(model), mode=INFERENCE, use_fallback=False)
    assert [norm_of(each) for each in model] == [0, 0]


@pytest.mark.parametrize(
    "make",
    [
        Dynamic,
        Constant,
        lambda: with_attribute("variance_epsilon", nn.Parameter(torch.tensor(100.0))),
        lambda: with_attribute("variance_epsilon", nn.Parameter(torch.tensor(100.0)).detach()),
    ],
)
def test_an_attribute_may_come_from_anywhere(make: Any) -> None:
    registered(Norm=Gives(Epsilon))
    norm = make()
    assert reason(norm) is None
    assert norm_of(norm) == 100


def test_an_attribute_that_the_kernel_asks_for_may_lack() -> None:
    registered(Norm=Gives(Tolerant))
    assert norm_of(kernelize(Norm(), mode=INFERENCE)) == 100


def test_a_layer_without_parameters_gets_no_kernel_that_needs_them() -> None:
    registered(Act=Gives(KernelNorm), scale=Gives(KernelNormOfScale))
    rows = {row.layer: row.reason for row in kernelize(Model(1), mode=INFERENCE, report=True)}
    assert rows["Act"] == "the kernel's forward reads self.weight, which Act does not have"
    assert rows["scale"] == "the kernel's forward reads self.factor, which scale does not have"
    assert float(scale(torch.ones(1))) == 3


class KernelNormOfScale(nn.Module):
    def forward(self, x: torch.Tensor, by: float = 3.0) -> torch.Tensor:
        return x * by * self.factor


def test_layers_that_torch_changes_are_replaced_and_keep_their_numbers() -> None:
    registered(Norm=Gives(KernelNorm))
    norm = Norm()
    parametrize.register_parametrization(norm, "weight", Doubled())
    hooked = Norm()
    hooked.register_forward_hook(lambda module, args, output: output + 0.5)
    hooked.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    model = nn.Sequential(norm, hooked)
    assert [row.reason for row in kernelize(model, mode=INFERENCE, report=True)] == [None, None]
    with torch.no_grad():
        assert float(norm(torch.ones(1))) == 104
        assert float(hooked(torch.ones(1))) == 104.5
    linear = parametrizations.weight_norm(Dense(2, 2))
    registered(Dense=Gives(KernelDense))
    x = torch.ones(1, 2)
    expected = linear(x) + 100
    assert reason(linear) is None
    assert torch.equal(linear(x), expected)


class Doubled(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * 2


@use_kernel_forward_from_hub("Dense")
class Dense(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input)


class KernelDense(nn.Module):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(input, self.weight, self.bias) + 100


class Quantized(Dense):
    """As bitsandbytes and torch.ao make them: another forward for other weights."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 2


class LoraDense(nn.Module):
    """As peft makes them: the layer is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.base_layer, self.lora = Dense(2, 2), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + self.lora(x)


def test_adapters_keep_their_numbers_and_quantized_layers_their_forward() -> None:
    registered(Dense=Gives(KernelDense))
    model, x = nn.ModuleList([Quantized(2, 2), LoraDense()]), torch.ones(1, 2)
    before = [layer(x) for layer in model]
    rows = list(kernelize(model, mode=INFERENCE, report=True))
    assert [row.kernelized for row in rows] == [False, True]
    assert torch.equal(model[0](x), before[0])
    torch.testing.assert_close(model[1](x), before[1] + 100)
    assert kernelize_report(model).rows == tuple(rows)


class Order(nn.Module):
    def forward(self, k: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return q - k


class Default(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, *, scale: float = 2.0) -> torch.Tensor:
        return x - y * scale


class Keyword(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, *, factor: float = 1.0) -> torch.Tensor:
        return x - y * factor


@use_kernel_forward_from_hub("Minus")
class Minus(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return q - k


@use_kernel_forward_from_hub("Minus")
class Scaled(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return q - k * scale


@use_kernel_forward_from_hub("Minus")
class Twofold(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, scale: Any = 2.0, dtype: Any = torch.float64) -> torch.Tensor:
        return q - k


class NoneDefault(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, scale: Any = None, dtype: Any = torch.float64) -> torch.Tensor:
        return q


class OtherType(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, scale: Any = 2.0, dtype: Any = torch.float32) -> torch.Tensor:
        return q


_ONES = torch.ones(2)


class TensorDefault(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, scale: Any = _ONES, dtype: Any = torch.float64) -> torch.Tensor:
        return q


@pytest.mark.parametrize(
    ("layer", "cls", "says"),
    [
        (NoneDefault, Twofold, "the default of 'scale' is None in the kernel's forward, 2.0 in the layer's"),
        (OtherType, Twofold, "the default of 'dtype' is torch.float32 in the kernel's forward, torch.float64 in the"),
        (TensorDefault, Twofold, "the default of 'scale' is tensor("),
        (Order, Minus, "the kernel's forward takes 'k' as argument 1, the layer's as 2"),
        (Default, Scaled, "the default of 'scale' is 2.0 in the kernel's forward, 1.0 in the layer's"),
        (Keyword, Scaled, "the kernel's forward has a keyword-only parameter 'factor', which the layer's has not"),
    ],
)
def test_a_kernel_to_which_the_same_call_means_something_else_is_not_used(layer: Any, cls: Any, says: str) -> None:
    registered(Minus=Gives(layer))
    module = cls()
    [row] = kernelize(module, mode=INFERENCE, device="cpu", report=True)
    assert row.reason is not None
    assert row.reason.startswith(says)
    assert float(module(torch.tensor(3.0), torch.tensor(1.0))) == 2
    with pytest.raises(MappingError, match="'Minus'"):
        kernelize(module, mode=INFERENCE, device="cpu", use_fallback=False)


class KernelSquare(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x


def test_a_class_that_is_marked_again_is_checked_by_its_new_forward() -> None:
    class Square(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * x

        def power(self, x: torch.Tensor) -> torch.Tensor:
            return x * x

    class Tenfold(Square):
        def power(self, x: torch.Tensor) -> torch.Tensor:
            return 10 * x

    replace_kernel_forward_from_hub(Square, "Square")
    registered(Square=Gives(KernelSquare))
    assert kernelize(Tenfold(), mode=INFERENCE, device="cpu", report=True).kernelized

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.power(x)

    Square.forward = forward
    replace_kernel_forward_from_hub(Square, "Square")
    [row] = kernelize(Tenfold(), mode=INFERENCE, device="cpu", report=True)
    assert row.reason is not None
    assert "overrides power, which forward calls" in row.reason
    Square.forward = lambda self, x, scale=1.0: self.power(x) * scale
    replace_kernel_forward_from_hub(Square, "Square")
    with pytest.raises(LayerError, match="different number of arguments"):
        kernelize(Square(), mode=INFERENCE, device="cpu")
