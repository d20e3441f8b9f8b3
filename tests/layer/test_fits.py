"""A kernel replaces only the forward that it was written for; every other layer keeps its own, with the reason."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from layer_models import Gives, KernelNorm, Model, Norm, norm_of, registered, scale
from torch import Tensor, nn
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
from kernels.layer.fits import check_layer, check_registered_mode, unsupported

INFERENCE = Mode.INFERENCE


def reason(module: nn.Module, **options: Any) -> str:
    """Why a layer keeps its own forward; empty if a kernel serves it."""
    [row] = kernelize(module, mode=INFERENCE, device="cpu", report=True, **options)
    return row.reason or ""


# Rules for a kernel's layer.


class Replaced(nn.Module):
    def forward(self, x: Tensor, flag: bool = False) -> Tensor:
        return x


class Plain(nn.Module):
    def forward(self, x: Tensor, flag: bool = False) -> Tensor:
        return x


class Marked(Plain):
    can_torch_compile = True
    has_backward = False


class Annotated(Plain):
    """With what a class statement creates, and what nn.Module has redefined."""

    weight: Tensor
    if True:
        eps: float

    def extra_repr(self) -> str:
        return "described"


class Constructed(Plain):
    def __init__(self) -> None:
        super().__init__()


class Created(Plain):
    def __new__(cls) -> Created:
        return super().__new__(cls)


class Helped(Plain):
    def scaled(self, x: Tensor) -> Tensor:
        return x


class Mixed(type("Mixin", (), {"scaled": Helped.scaled}), Plain):  # type: ignore[misc]
    pass


def with_forward(forward: Any) -> type[nn.Module]:
    return type("Layer", (nn.Module,), {"forward": forward})


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (Plain, None),
        (Marked, None),
        (Annotated, None),
        (type("Inherits", (Marked,), {}), None),
        (lambda x: x, "expected a subclass of torch.nn.Module"),
        (int, "expected a subclass of torch.nn.Module"),
        (Plain(), "expected a subclass of torch.nn.Module"),
        (Constructed, "must not override the constructor"),
        (Created, "must not override the constructor"),
        (type("Stateful", (Plain,), {"counter": 0}), "must not contain additional members, but has counter"),
        (Helped, "must not contain additional members, but has scaled"),
        (Mixed, "must not contain additional members, but has scaled"),
        (type("Sized", (Plain,), {"__len__": len}), "must not contain additional members, but has __len__"),
        (with_forward(lambda self, x: x), "different number of arguments: .* cannot replace Replaced.forward"),
        (with_forward(lambda self, x, flag, more: x), "different number of arguments"),
        (
            with_forward(lambda self, x, *, flag=False: x),
            "different kinds of arguments .flag: keyword-only, flag: positional or keyword",
        ),
        (with_forward(max), "cannot be compared"),
    ],
)
def test_a_kernel_s_layer_brings_a_forward_with_the_same_parameters_and_nothing_else(layer: Any, says: str) -> None:
    if says is None:
        check_layer(layer, Replaced, "org/repo, layer L")
        return
    with pytest.raises(LayerError, match=f"(?s)org/repo, layer L[: ].*{says}"):
        check_layer(layer, Replaced, "org/repo, layer L")


@pytest.mark.parametrize(
    ("layer", "mode", "lacks"),
    [
        (Plain, Mode.INFERENCE, None),
        (Plain, Mode.TRAINING, None),
        (Plain, Mode.INFERENCE | Mode.TORCH_COMPILE, "torch.compile"),
        (Marked, Mode.INFERENCE | Mode.TORCH_COMPILE, None),
        (Marked, Mode.TRAINING, "backward"),
        (Marked, Mode.FALLBACK, None),
    ],
)
def test_marks_say_which_modes_a_layer_supports(layer: type[nn.Module], mode: Mode, lacks: str | None) -> None:
    if lacks is None:
        assert unsupported(layer, mode) is None
        check_registered_mode(layer, "Norm", mode, "org/repo")
    else:
        with pytest.raises(MappingError, match=f"org/repo does not support {lacks}, but is registered for 'Norm'"):
            check_registered_mode(layer, "Norm", mode, "org/repo")


ONES, NAN = torch.ones(2), float("nan")


@pytest.mark.parametrize(
    ("kernel", "own", "says"),
    [
        (
            lambda self, k, q: q,
            lambda self, q, k: q - k,
            "the kernel's forward takes 'k' as argument 1, the layer's as 2",
        ),
        (lambda self, a, b: a, lambda self, q, k: q - k, ""),
        (
            lambda self, q, k, *, factor=1.0: q,
            lambda self, q, k, *, scale=1.0: q - k,
            "the kernel's forward has a keyword-only parameter 'factor', which the layer's has not",
        ),
        (
            lambda self, q, k, *, b=1, a=2: q - k,
            lambda self, q, k, *, a=2, b=1: q - k,
            "",
        ),
        (
            lambda self, q, k, *, b=2, a=1: q,
            lambda self, q, k, *, a=2, b=1: q - k,
            "the default of 'b' is 2 in the kernel's forward, 1 in the layer's",
        ),
        (
            lambda self, q, k=None: q,
            lambda self, q, k=2.0: q - k,
            "the default of 'k' is None in the kernel's forward, 2.0 in the layer's",
        ),
        (
            lambda self, q, k, dtype=torch.float32: q,
            lambda self, q, k, dtype=torch.float64: q - k,
            "the default of 'dtype' is torch.float32 in the kernel's forward, torch.float64 in the layer's",
        ),
        (lambda self, q, k, scale=ONES: q, lambda self, q, k, scale=2.0: q - k, "the default of 'scale' is tensor("),
        (lambda self, q, k, scale=float("nan"): q - k, lambda self, q, k, scale=NAN: q - k, ""),
        (lambda self, q, k, scale=2.0: q - k, lambda self, q, k, scale: q - k, ""),
        (lambda self, q, k, scale: q - k, lambda self, q, k, scale=2.0: q - k, ""),
    ],
)
def test_a_kernel_to_which_the_same_call_means_something_else_is_not_used(kernel: Any, own: Any, says: str) -> None:
    registered(Minus=Gives(with_forward(kernel)))
    module = use_kernel_forward_from_hub("Minus")(with_forward(own))()
    assert reason(module).startswith(says)
    assert bool(reason(module)) is bool(says)
    assert unkernelize(module).forward.__func__ is own
    if says:
        with pytest.raises(MappingError, match="'Minus'"):
            kernelize(module, mode=INFERENCE, device="cpu", use_fallback=False)


# The forward that a kernel is written for.


class Shifted(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 9


class Mixin:
    def forward(self, x: Tensor) -> Tensor:
        return x + 9


@use_kernel_forward_from_hub("Norm")
class MarkedItself(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


@pytest.fixture
def _norm_kernel() -> None:
    registered(Norm=Gives(KernelNorm))


@pytest.mark.usefixtures("_norm_kernel")
@pytest.mark.parametrize(
    ("cls", "says"),
    [
        (Shifted, "Shifted overrides forward, and the kernel is written for that of Norm, which carries the mark"),
        (type("Below", (Shifted,), {}), "Shifted overrides forward"),
        (type("Mixed", (Mixin, Norm), {}), "Mixin overrides forward"),
        (Norm, ""),
        (type("Named", (Norm,), {"extra_repr": lambda self: "named"}), ""),
        (MarkedItself, ""),
    ],
)
def test_a_subclass_that_overrides_forward_without_a_mark_of_its_own_keeps_it(cls: Any, says: str) -> None:
    norm = cls()
    assert reason(norm).startswith(says)
    assert norm_of(norm) == (9 if says else 100)
    if says:
        with pytest.raises(MappingError, match=r"Layer 'Norm' \(0\): .* overrides forward"):
            kernelize(nn.Sequential(cls()), mode=INFERENCE, use_fallback=False)
        assert reason(norm, by_class={cls: "Norm"}) == ""  # it is named for this call
        assert norm_of(norm) == 100


def test_the_kernel_of_a_layer_that_keeps_its_forward_is_not_even_loaded() -> None:
    repository = Gives(KernelNorm)
    registered(Norm=repository)
    kernelize(Shifted(), mode=INFERENCE)
    assert repository.loads == 0
    # Where the layers of a class differ, the others get it.
    model = kernelize(nn.Sequential(Shifted(), Norm()), mode=INFERENCE)
    assert [norm_of(each) for each in model] == [9, 100]


@use_kernel_forward_from_hub("Norm")
class WithParts(Norm):
    def forward(self, x: Tensor) -> Tensor:
        def scaled() -> Tensor:
            return self.scaled(x)

        return scaled() + self.offset + getattr(self, "shift")() + super().forward(x)  # noqa: B009

    def scaled(self, x: Tensor) -> Tensor:
        return x * self._factor()

    def _factor(self) -> Tensor:
        return self.weight

    @torch.no_grad()
    def shift(self) -> float:
        return self.nothing

    @functools.cached_property
    def nothing(self) -> float:
        return 0.0

    @property
    def offset(self) -> float:
        return 0.0


@pytest.mark.usefixtures("_norm_kernel")
@pytest.mark.parametrize(
    ("name", "member"),
    [
        ("_factor", lambda self: self.weight + 1),
        ("scaled", lambda self, x: x),
        ("shift", lambda self: 1.0),
        ("offset", property(lambda self: 5.0)),
        ("nothing", property(lambda self: 5.0)),
    ],
)
def test_a_subclass_that_overrides_what_forward_calls_keeps_it(name: str, member: Any) -> None:
    below = type("Other", (WithParts,), {name: member})
    assert f"Other overrides {name}, which forward calls" in reason(below())
    assert reason(type("Same", (WithParts,), {"unrelated": member})()) == ""
    if not isinstance(member, property):
        norm = WithParts()
        setattr(norm, name, MethodType(member, norm))
        assert reason(norm) == f"{name}, which forward calls, is set on this module"


@pytest.mark.usefixtures("_norm_kernel")
def test_a_forward_that_is_set_on_the_class_after_the_mark_stays() -> None:
    @use_kernel_forward_from_hub("Norm")
    class Patched(Norm):
        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight

    own = Patched.forward
    Patched.forward = functools.wraps(own)(lambda self, x: own(self, x) + 9)  # type: ignore[method-assign]
    norm = Patched()
    assert reason(norm) == f"forward of {Patched.__qualname__} was replaced after the class was marked"
    assert norm_of(norm) == 9
    replace_kernel_forward_from_hub(Patched, "Norm")
    assert reason(norm) == ""
    assert norm_of(norm) == 100


@pytest.mark.usefixtures("_norm_kernel")
def test_a_method_that_is_set_on_the_class_after_the_mark_stays() -> None:
    @use_kernel_forward_from_hub("Norm")
    class Patched(Norm):
        def forward(self, x: Tensor) -> Tensor:
            return self.scaled(x)

        def scaled(self, x: Tensor) -> Tensor:
            return x * self.weight

        def unrelated(self) -> Any:
            pass

    norm, below = Patched(), type("Below", (Patched,), {"unrelated": lambda self: 7})()
    assert reason(norm) == ""
    Patched.unrelated = lambda self: 9  # type: ignore[method-assign]
    assert reason(norm) == ""
    Patched.scaled = lambda self, x: x * self.weight + self.unrelated()  # type: ignore[method-assign]
    replaced = f"scaled of {Patched.__qualname__}, which forward calls, was replaced after the class was marked"
    assert reason(norm) == replaced
    assert norm_of(norm) == 9
    replace_kernel_forward_from_hub(Patched, "Norm")
    assert reason(norm) == ""
    # What forward calls is asked anew, though forward is the same.
    assert "Below overrides unrelated, which forward calls" in reason(below)
    assert norm_of(below) == 7


def test_a_class_that_is_marked_again_is_checked_by_its_new_forward() -> None:
    class Square(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x

        def power(self, x: Tensor) -> Tensor:
            return x * x

    tenfold = type("Tenfold", (Square,), {"power": lambda self, x: 10 * x})
    replace_kernel_forward_from_hub(Square, "Square")
    registered(Square=Gives(with_forward(lambda self, x: x * x)))
    assert reason(tenfold()) == ""

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.power(x)

    Square.forward = forward
    replace_kernel_forward_from_hub(Square, "Square")
    assert "Tenfold overrides power, which forward calls" in reason(tenfold())
    Square.forward = lambda self, x, scale=1.0: self.power(x) * scale
    replace_kernel_forward_from_hub(Square, "Square")
    with pytest.raises(LayerError, match="different number of arguments"):
        kernelize(Square(), mode=INFERENCE, device="cpu")


def around(forward: Any) -> Any:
    return functools.wraps(forward)(lambda *arguments: forward(*arguments) + 9)


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
    assert reason(first) == ""


# What a kernel's forward reads.


@pytest.mark.parametrize(
    ("body", "required"),
    [
        ("return x * self.weight + self.eps", "eps weight"),
        ("y = self.a(x)\ny += self.b\nassert self.c, self.d\nreturn self.e[y]", "a b c e"),
        ("def grid(meta):\n    return self.a\nreturn launch(grid, lambda: self.b, self.c)", "c"),
        ("return [self.a for _ in self.b], self.c", "c"),
        ("x = self.a and self.b\nreturn x * (self.c if self.d else self.e)", "a d"),
        # Nothing in or after a branch.
        ("if self.a:\n    return self.b\nelse:\n    x = self.b\nreturn self.c", "a"),
        ("for x in self.a:\n    x = self.b\nreturn self.c", "a"),
        ("while self.a:\n    x = self.b\nreturn self.c", "a"),
        ("with self.a, suppress(AttributeError):\n    return self.b", "a"),
        ("try:\n    x = self.a\nexcept AttributeError:\n    x = 1\nreturn self.b", ""),
        ("match self.a:\n    case 0:\n        return self.b\nreturn self.c", "a"),
        ("raise ValueError(self.a)\nreturn self.b", "a"),
        # Not what it asks for or sets itself.
        ('return (self.a if hasattr(self, "a") else self.b) * getattr(self, "c", self.d) + self.c', "d"),
        ('x = "a" in self.__dict__\nreturn self.a + self.b', ""),
        ("self.a = x\nreturn self.a + self.b", "b"),
        ('self.register_buffer("a", x)\nreturn self.a + self.b', "b"),
        ('setattr(self, "a", x)\nreturn self.a', ""),
        ("vars(self).update(a=x)\nreturn self.a", ""),
        # Nor after it gives itself to other code, or names something else so.
        ("x = self.a\nprepare(x, self)\nreturn self.b", "a"),
        ("self = x.owner\nreturn self.a", ""),
    ],
)
def test_what_a_kernel_reads_in_every_call_is_known_before_the_first(body: str, required: str, tmp_path: Path) -> None:
    made: dict[str, Any] = {}
    file = tmp_path / "kernel.py"
    file.write_text("def forward(self, x):\n    " + body.replace("\n", "\n    "))
    exec(compile(file.read_text(), file, "exec"), made)
    registered(Act=Gives(with_forward(made["forward"])))
    model = Model(1).blocks[0].act
    names = ", ".join(f"self.{name}" for name in required.split())
    assert reason(model) == (f"the kernel's forward reads {names}, which Act does not have" if names else "")
    decorated = torch.no_grad()(made["forward"])
    registered(Act=Gives(with_forward(decorated)))
    assert bool(reason(model)) is bool(names)
    file.write_text(file.read_text().replace("self.", "self.other_"))  # the code that runs has other names
    registered(Act=Gives(with_forward(type(decorated)(made["forward"].__code__, made))))
    assert reason(model) == ""


def without_source() -> Any:
    made: dict[str, Any] = {}
    exec("def forward(self, x):\n    return self.missing", made)
    return made["forward"]


def wraps_itself() -> Any:
    def forward(self: Any, x: Tensor) -> Any:
        return self.missing

    forward.__wrapped__ = forward  # type: ignore[attr-defined]
    forward.__signature__ = inspect.signature(lambda self, x: x)  # type: ignore[attr-defined]
    return forward


@pytest.mark.parametrize("forward", [without_source(), wraps_itself(), lambda self, x: self.missing])
def test_of_a_forward_without_a_source_nothing_is_known(forward: Any) -> None:
    registered(Act=Gives(with_forward(forward)))
    assert reason(Model(1).blocks[0].act) == ""


class Epsilon(nn.Module):
    can_torch_compile = True

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.variance_epsilon


def with_attribute(name: str, value: Any) -> Norm:
    norm = Norm()
    setattr(norm, name, value)
    return norm


class Dynamic(Norm):
    def __getattr__(self, name: str) -> Any:
        return 100.0 if name == "variance_epsilon" else super().__getattr__(name)


class Failing(Norm):
    def __getattr__(self, name: str) -> Any:
        if name == "variance_epsilon":
            raise RuntimeError(name)
        return super().__getattr__(name)


def test_a_layer_that_lacks_what_a_kernel_reads_keeps_its_forward() -> None:
    registered(Norm=Gives(Epsilon))
    lacks = "the kernel's forward reads self.variance_epsilon, which {} does not have"
    model = nn.Sequential(with_attribute("eps", 1.0), with_attribute("variance_epsilon", 100.0), Failing())
    rows = list(kernelize(model, mode=INFERENCE, report=True))
    assert [row.reason for row in rows] == [lacks.format("Norm"), None, lacks.format("Failing")]
    assert [norm_of(each) for each in model] == [0, 100, 0]
    with pytest.raises(MappingError, match=r"Layer 'Norm' \(0\): the kernel's forward reads self\.variance_epsilon"):
        kernelize(unkernelize(model), mode=INFERENCE, use_fallback=False)
    assert [norm_of(each) for each in model] == [0, 0, 0]


@pytest.mark.parametrize(
    "make",
    [
        Dynamic,
        type("Constant", (Norm,), {"variance_epsilon": 100.0}),
        lambda: with_attribute("variance_epsilon", nn.Parameter(torch.tensor(100.0))),
        lambda: with_attribute("variance_epsilon", nn.Parameter(torch.tensor(100.0)).detach()),
    ],
)
def test_an_attribute_may_come_from_anywhere(make: Any) -> None:
    registered(Norm=Gives(Epsilon))
    norm = make()
    assert reason(norm) == ""
    assert norm_of(norm) == 100


class KernelNormOfScale(nn.Module):
    def forward(self, x: Tensor, by: float = 3.0) -> Tensor:
        return x * by * self.factor


def test_a_layer_without_parameters_gets_no_kernel_that_needs_them() -> None:
    registered(Act=Gives(KernelNorm), scale=Gives(KernelNormOfScale))
    rows = {row.layer: row.reason for row in kernelize(Model(1), mode=INFERENCE, report=True)}
    assert rows["Act"] == "the kernel's forward reads self.weight, which Act does not have"
    assert rows["scale"] == "the kernel's forward reads self.factor, which scale does not have"
    assert float(scale(torch.ones(1))) == 3


# What other libraries do to layers.


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * 2


@use_kernel_forward_from_hub("Dense")
class Dense(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input)


class KernelDense(nn.Module):
    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.linear(input, self.weight, self.bias) + 100


class Quantized(Dense):
    """As bitsandbytes and torch.ao make them: another forward for other weights."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


class LoraDense(nn.Module):
    """As peft makes them: the layer is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.base_layer, self.lora = Dense(2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.lora(x)


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
    assert reason(linear) == ""
    assert torch.equal(linear(x), expected)


def test_adapters_keep_their_numbers_and_quantized_layers_their_forward() -> None:
    registered(Dense=Gives(KernelDense))
    model, x = nn.ModuleList([Quantized(2, 2), LoraDense()]), torch.ones(1, 2)
    before = [layer(x) for layer in model]
    rows = list(kernelize(model, mode=INFERENCE, report=True))
    assert [row.kernelized for row in rows] == [False, True]
    assert torch.equal(model[0](x), before[0])
    torch.testing.assert_close(model[1](x), before[1] + 100)
    assert kernelize_report(model).rows == tuple(rows)
