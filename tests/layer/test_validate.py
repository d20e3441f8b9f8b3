"""A kernel's layer brings a forward with the same parameters, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from kernels.errors import LayerError, MappingError
from kernels.layer import Mode
from kernels.layer.validate import check_layer, check_registered_mode, unsupported


class Replaced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 2

    def forward(self, x: torch.Tensor, flag: bool = False) -> torch.Tensor:
        return x * self.scale


class Plain(nn.Module):
    def forward(self, x: torch.Tensor, flag: bool = False) -> torch.Tensor:
        return x


class Marked(Plain):
    can_torch_compile = True
    has_backward = False


class Annotated(nn.Module):
    weight: torch.Tensor
    eps: float

    def forward(self, x: torch.Tensor, scale: bool) -> torch.Tensor:
        return x


class Described(Plain):
    """With a docstring, and what nn.Module has redefined."""

    def extra_repr(self) -> str:
        return "described"

    def train(self, mode: bool = True) -> Described:
        return self


class Constructed(Plain):
    def __init__(self) -> None:
        super().__init__()


class Created(Plain):
    def __new__(cls) -> Created:
        return super().__new__(cls)


class Stateful(Plain):
    counter = 0


class Helped(Plain):
    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Mixin:
    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Mixed(Mixin, Plain):
    pass


class Sized(Plain):
    def __len__(self) -> int:
        return 0


class Shorter(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Longer(nn.Module):
    def forward(self, x: torch.Tensor, flag: bool, more: int) -> torch.Tensor:
        return x


class OtherKind(nn.Module):
    def forward(self, x: torch.Tensor, *, flag: bool = False) -> torch.Tensor:
        return x


class Opaque(nn.Module):
    forward = max


def test_functions_are_not_layers() -> None:
    with pytest.raises(LayerError, match="expected a subclass of"):
        check_layer(lambda x: x, Replaced, "org/repo")


@pytest.mark.parametrize("layer", [Plain, Marked, Annotated, Described, type("Inherits", (Marked,), {})])
def test_a_layer_with_a_forward_and_known_marks_may_stand_in(layer: type[nn.Module]) -> None:
    assert check_layer(layer, Replaced, "org/repo") is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (int, "subclass of torch.nn.Module"),
        (Plain(), "subclass of torch.nn.Module"),
        (Constructed, "must not override the constructor"),
        (Created, "must not override the constructor"),
        (Stateful, "must not contain additional members, but has counter"),
        (Helped, "must not contain additional members, but has scaled"),
        (Mixed, "must not contain additional members, but has scaled"),
        (Sized, "must not contain additional members, but has __len__"),
        (Shorter, "different number of arguments"),
        (Longer, "different number of arguments"),
        (OtherKind, "different kinds of arguments .flag: keyword-only, flag: positional or keyword"),
        (Opaque, "cannot be compared"),
    ],
)
def test_a_layer_that_breaks_a_rule_is_a_type_error_that_names_it(layer: Any, says: str) -> None:
    with pytest.raises(TypeError, match=f"(?s)org/repo, layer L[: ].*{says}"):
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
