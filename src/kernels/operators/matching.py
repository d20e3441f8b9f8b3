"""Which ATen operators a vendor's function replaces: those that its name means and whose arguments it takes."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from textwrap import dedent
from typing import Any

from kernels.errors import RequestError
from kernels.operators.aten import Meaning, Operator, find_operator, meanings
from kernels.operators.schema import check_arguments, is_with_backward, takes_call

__all__ = ["in_order", "operators_of"]

#: Operators whose functions, under a name that says neither, take numbers and tensors alike (FlagGems' convention).
#: For those that compare or calculate, a number comes with the overload for tensors (`x * 2`), or there is another
#: function for it (`eq_scalar`).
_ANY_OPERAND = frozenset({"masked_fill", "remainder", "floor_divide", "div", "isin"})


def operators_of(name: str, function: Any, names: dict[str, list[str]]) -> tuple[Operator, ...]:
    """The operators that a function replaces, the one that its name means first.

    A name with its overload, as Torch spells both, means that one. Where a name may mean several operators, the
    function's parameters decide: they must take the operator's arguments, and the more of them have the arguments'
    names, the better. A function whose parameters have the names of two overloads is for both (`scatter(inp, dim,
    index, src, reduce=None)`).

    Args:
        name: The function's name.
        function: The function.
        names: What `operator_names` gave.

    Raises:
        RequestError: No operator has this name; the message lists overloads, or similar names.

    Example:
        >>> from kernels.operators.aten import operator_names
        >>> def masked_fill(inp, mask, value): ...
        >>> [str(each) for each in operators_of("masked_fill", masked_fill, operator_names())]
        ['aten::masked_fill.Tensor', 'aten::masked_fill.Scalar']
    """
    if "." in name or "::" in name or is_with_backward(function):
        return (find_operator(name, names),)
    possible = meanings(name, names)
    exact = next((each for each in possible if each.exact and each.operator.overload), None)
    # `scatter_reduce_out` may also be an overload of `scatter_reduce`, as `true_divide_out` is of `div`.
    longer_base = exact is not None and any(len(each.operator.base) > len(exact.operator.base) for each in possible)
    if exact is not None and not longer_base and not any(each.beneath for each in possible):
        longer = [each for each in names[exact.operator.base] if each.startswith(f"{exact.operator.overload}_")]
        return exact.operator, *_further(
            exact.operator, [Operator(exact.operator.base, each) for each in longer], function
        )
    fitting = [each for each in possible if _fits(each.operator, function, [other.operator for other in possible])]
    if not fitting:
        return (find_operator(name, names),)
    best = max(fitting, key=partial(_rank, name, function)).operator
    return best, *_further(best, [each.operator for each in fitting], function)


def _rank(name: str, function: Any, meaning: Meaning) -> tuple[bool | int, ...]:
    base = meaning.operator.base
    same = len(base) if name.startswith(base) else 0
    # Of overloads that differ in nothing else, the one for tensors: `where.self`, not `where.Scalar`.
    tensors = sum(str(each.real_type) == "Tensor" for each in _arguments(meaning.operator))
    return *_similarity(meaning.operator, function), meaning.beneath, same, meaning.clear, tensors


def _further(best: Operator, possible: Sequence[Operator], function: Any) -> list[Operator]:
    """Other overloads that a function is for."""
    others = [each for each in possible if each.base == best.base and each != best and _fits(each, function)]
    if best.base.rstrip("_") in _ANY_OPERAND:
        return [each for each in others if _kind(each) == _kind(best)]
    return [each for each in others if _adds(each, best, function)]


def _kind(operator: Operator) -> str:
    """An overload's name without the words for numbers and tensors: `mode` of `Tensor_mode`."""
    return "_".join(word for word in operator.overload.split("_") if word not in ("Tensor", "Scalar"))


def _adds(other: Operator, best: Operator, function: Any) -> bool:
    """Whether all arguments of another overload have a parameter of their name, and one of these is new."""
    wanted = {each.name for each in _arguments(other)[1:]}
    return wanted <= set(_parameters(function)) and not wanted <= {each.name for each in _arguments(best)}


def _fits(operator: Operator, function: Any, others: Sequence[Operator] = ()) -> bool:
    """Whether a function takes an operator's arguments, each under its own name or one that means no other."""
    try:
        check_arguments(operator, function, "", partial=True)
    except RequestError:
        return False
    return in_order(operator, function, others)


def in_order(operator: Operator, function: Any, others: Sequence[Operator] = ()) -> bool:
    """Whether no parameter has the name of another argument than the one that Torch passes there.

    Args:
        operator: The operator.
        function: The function.
        others: Further operators that the function may be for: what they have in the same place is another argument.

    Example:
        >>> in_order(Operator("mm"), lambda self, mat2: self), in_order(Operator("mm"), lambda mat2, self: self)
        (True, False)
    """
    arguments = [each.name for each in _arguments(operator) if not each.kwarg_only]
    elsewhere = [[each.name for each in _arguments(other)] for other in others]
    by_position = [
        each
        for each in _parameters(function).values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    for index, (parameter, argument) in enumerate(zip(by_position, arguments, strict=False)):
        there = {each[index] for each in elsewhere if index < len(each)} if index else set()
        if parameter.name != argument and parameter.name in {*arguments, *there}:
            return False
    return True


def _similarity(operator: Operator, function: Any) -> tuple[bool, bool, int]:
    """How like an operator a function is: in what it returns, in what it takes, in what may be left out."""
    parameters = _parameters(function)
    by_position = [each for each in parameters.values() if each.kind is not each.KEYWORD_ONLY]
    differing = 0
    for index, argument in enumerate(_arguments(operator)):
        parameter = parameters.get(argument.name)
        if not argument.kwarg_only and index < len(by_position):
            parameter = by_position[index]
        has_default = parameter is not None and parameter.default is not inspect.Parameter.empty
        differing += argument.has_default_value() != has_default
    if any(each.kind is each.VAR_POSITIONAL for each in by_position):
        differing = 0
    several = _returns_several(function)
    returns = several is None or several == (len(operator.op()._schema.returns) > 1)
    return returns, takes_call(operator, function) is None, -differing


def _returns_several(function: Any) -> bool | None:
    """Whether a function's source returns several values; None if it cannot be told."""
    try:
        [found] = ast.parse(dedent(inspect.getsource(inspect.unwrap(function)))).body
    except (OSError, TypeError, ValueError, SyntaxError):
        return None
    inner = {
        id(below)
        for each in ast.walk(found)
        if isinstance(each, ast.FunctionDef) and each is not found
        for below in ast.walk(each)
    }
    values = [each.value for each in ast.walk(found) if isinstance(each, ast.Return) and id(each) not in inner]
    if any(isinstance(each, ast.Tuple) for each in values):
        return True
    return None if any(isinstance(each, ast.Call) for each in values) else False


def _arguments(operator: Operator) -> list[Any]:
    return list(operator.op()._schema.arguments)


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
