"""Operators, under FlagGems' names."""

from .add import add
from .softmax import softmax

__all__ = ["add", "hadamard_transform", "softmax"]


def hadamard_transform(x: object) -> object:
    return x


__all__ += ["add", "softmax"]
