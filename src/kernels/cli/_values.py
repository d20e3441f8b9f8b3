"""How the value of an option is read: an error says what is expected and what was given, whatever typer itself says."""

from __future__ import annotations

import enum
import inspect
import math
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.models import ArgumentInfo, ParameterInfo

from kernels.support.formatting import did_you_mean, format_value

__all__ = ["Choice", "actions_of", "read_values"]

_T = TypeVar("_T")


class Choice(str, enum.Enum):
    """One of the few names that a command takes in a place, what it means, and the arguments that follow it.

    Example:
        >>> class Action(Choice):
        ...     list = "list", "List the backends."
        ...     show = "show", "Show one backend.", "NAME"
        >>> str(Action.list), Action.list.meaning, Action.show.arguments
        ('list', 'List the backends.', 'NAME')
    """

    meaning: str
    arguments: str

    def __new__(cls, name: str, meaning: str = "", arguments: str = "") -> Choice:
        choice = str.__new__(cls, name)
        choice._value_, choice.meaning, choice.arguments = name, meaning, arguments
        return choice

    def __str__(self) -> str:  # some versions of typer compare this with the values
        return str(self.value)


def read_values(command: Callable[..., _T]) -> Callable[..., _T]:
    """Let the numbers and choices among a command's parameters be read here.

    Args:
        command: A function with annotations for typer.

    Returns:
        The same function.
    """
    signature = inspect.signature(command, eval_str=True)
    annotations = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    for annotation in annotations.values():
        for info in getattr(annotation, "__metadata__", ()):
            if isinstance(info, ParameterInfo) and info.parser is None:
                _set_parser(info, _kind(annotation.__origin__))
    command.__annotations__ = annotations
    return command


def actions_of(command: Callable[..., object]) -> list[Choice]:
    """The choices of a command's first argument, if it has some.

    Args:
        command: A function that `read_values` has seen.
    """
    arguments = [
        each
        for each in command.__annotations__.values()
        if any(isinstance(info, ArgumentInfo) for info in getattr(each, "__metadata__", ()))
    ]
    kinds = [_kind(each.__origin__) for each in arguments]
    return next((list(kind) for kind in kinds if isinstance(kind, type) and issubclass(kind, Choice)), [])


def _set_parser(info: ParameterInfo, kind: Any) -> None:
    if kind in (int, float):
        info.parser = _number_reader(kind, info.min, info.max)
    elif isinstance(kind, type) and issubclass(kind, Choice):
        info.parser = _choice_reader(kind)
        info.autocompletion = info.autocompletion or (lambda: list(map(str, kind)))


def _kind(annotation: Any) -> Any:
    """The type of one value: `int` of `int | None` and of `list[int]`."""
    while typing.get_origin(annotation) in (list, typing.Union, types.UnionType):
        annotation = typing.get_args(annotation)[0]
    return annotation


def _number_reader(kind: type[Any], least: float | None, most: float | None) -> Callable[[Any], Any]:
    expected = "an integer" if kind is int else "a number"
    if least is not None and most is not None:
        expected += f" from {least} to {most}"
    elif least is not None:
        expected += f" of at least {least}"
    elif most is not None:
        expected += f" of at most {most}"

    def read(value: Any) -> Any:
        try:
            number = kind(value)
            below = least is not None and number < least
            above = most is not None and number > most
        except (ValueError, OverflowError):
            number, below, above = math.nan, False, False
        if below or above or not math.isfinite(number):
            raise typer.BadParameter(f"expected {expected}, got {format_value(value)}")
        return number

    return read


def _choice_reader(kind: type[Choice]) -> Callable[[Any], Choice]:
    names = list(map(str, kind))

    def read(value: Any) -> Choice:
        try:
            return kind(value)
        except ValueError:
            listed = ", ".join(map(repr, names))
            raise typer.BadParameter(
                f"{format_value(value)} is not one of {listed}.{did_you_mean(str(value), names)}"
            ) from None

    return read
