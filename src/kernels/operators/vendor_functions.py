"""The functions of a vendor's folder: which it lists, which operators they replace, and why some replace none."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from kernels.backends import Backend
from kernels.backends.plugins.vendor_modules import vendor_package
from kernels.errors import RequestError
from kernels.operators.aten import Operator, find_operator
from kernels.operators.dispatch import Override, decomposed
from kernels.operators.matching import in_order, operators_of
from kernels.operators.schema import check_function, is_with_backward
from kernels.support.formatting import did_you_mean, format_value

__all__ = [
    "UnusedOp",
    "check_override",
    "chosen_functions",
    "left_out_by",
    "listed_functions",
    "overrides_of",
    "read_functions",
]


@dataclass(frozen=True)
class UnusedOp:
    """A function of a vendor that overrides no operator.

    Attributes:
        function: The function's name.
        reason: Why not: no operator has its name, or it cannot take the operator's arguments.
    """

    function: str
    reason: str


def listed_functions(module: ModuleType, where: str) -> list[str]:
    """The names in a vendor's `__all__`; without it, those of all functions there, as FlagGems reads a folder.

    Args:
        module: The `ops` of a vendor's folder.
        where: The vendor or folder, for messages.

    Raises:
        RequestError: `__all__` is not a list of names, or is missing where there are no functions either.

    Example:
        >>> module = ModuleType("ops")
        >>> module.__all__ = ["silu"]
        >>> listed_functions(module, "acme")
        ['silu']
    """
    form = """a list of the functions' names, such as __all__ = ["silu"]"""
    if "__all__" not in vars(module):
        found = [
            name
            for name, value in vars(module).copy().items()
            if not name.startswith("_") and inspect.isfunction(value)
        ]
        if not found:
            raise RequestError(f"`ops` of {where} has no `__all__`: {form}.")
        return found
    listed = vars(module)["__all__"]
    if not isinstance(listed, (list, tuple)) or not all(isinstance(each, str) for each in listed):
        raise RequestError(f"`__all__` of `ops` of {where} is {format_value(listed)}; expected {form}.")
    return list(listed)


def read_functions(module: ModuleType, where: str) -> tuple[dict[str, Any], dict[str, RequestError]]:
    """The functions that a vendor's `ops` lists, and why others that it lists are not there."""
    functions: dict[str, Any] = {}
    missing: dict[str, RequestError] = {}
    for name in dict.fromkeys(listed_functions(module, where)):
        try:
            functions[name] = getattr(module, name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the module may have its own `__getattr__`
            why = "which does not exist" if isinstance(error, AttributeError) else f"which fails: {error}"
            missing[name] = RequestError(f"`__all__` of `ops` of {where} names {name!r}, {why}.")
    return functions, missing


def chosen_functions(
    functions: Mapping[str, Any],
    included: list[str] | None,
    excluded: list[str],
    where: str,
    names: dict[str, list[str]],
) -> list[str]:
    """The functions to use, in their own order; an operator means every function that is for it."""

    def meant(entry: str, argument: str) -> set[str]:
        operator = _operator(entry, names)
        found = {each for each in functions if each == entry or operator in _operators(each, functions[each], names)}
        if not found:
            raise RequestError(
                f"`{argument}` has {entry!r}, which {where} does not offer; it offers {', '.join(functions)}."
                f"{did_you_mean(entry, functions)}"
            )
        return found

    taken = set(functions) if included is None else set[str]().union(*(meant(each, "include") for each in included))
    for entry in excluded:
        taken -= meant(entry, "exclude")
    return [each for each in functions if each in taken]


def _operators(name: str, function: Any, names: dict[str, list[str]]) -> tuple[Operator, ...]:
    try:
        return operators_of(name, function, names)
    except RequestError:
        return ()


def _operator(text: str, names: dict[str, list[str]]) -> Operator | None:
    try:
        return find_operator(text, names)
    except RequestError:
        return None


def overrides_of(
    functions: Mapping[str, Any], backend: Backend, where: str, names: dict[str, list[str]]
) -> tuple[list[Override], dict[str, RequestError]]:
    """The overrides of a vendor's functions, and why others have none."""
    overrides: dict[Operator, Override] = {}
    refused: dict[str, RequestError] = {}
    for name, function in functions.items():
        mine, errors = [], []
        try:
            operators = operators_of(name, function, names)
        except RequestError as error:
            operators = ()
            errors.append(RequestError(f"`{name}` in `ops` of {where}: {error}"))
        for operator in operators:
            override = Override(operator, backend.dispatch_key, function, name, where, backend, partial=True)
            try:
                if operator in overrides:
                    first = overrides[operator].function_name
                    raise RequestError(f"`{first}` and `{name}` in `ops` of {where} are both {operator}.")
                check_override(override)
            except RequestError as error:
                errors.append(error)
            else:
                mine.append(override)
        overrides.update((each.operator, each) for each in mine)
        if not mine:
            refused[name] = errors[0]
    return list(overrides.values()), refused


def left_out_by(backend: Backend, functions: Iterable[str]) -> list[UnusedOp]:
    """The functions that a vendor's folder itself says not to use."""
    listed = getattr(vendor_package(backend), "CUSTOMIZED_UNUSED_OPS", ())
    if not isinstance(listed, (list, tuple, set, frozenset)):
        return []
    return [
        UnusedOp(each, f"{backend.folder} lists it in CUSTOMIZED_UNUSED_OPS.") for each in functions if each in listed
    ]


def check_override(override: Override) -> None:
    """Raise if a function cannot override its operator."""
    where = f"`{override.function_name}` of {override.origin}"
    check_function(override.operator, override.function, where, partial=override.partial)
    if override.partial and not in_order(override.operator, override.function):
        raise RequestError(
            f"{where} has the parameters of {override.operator} in another order.\n"
            f"  operator: {override.operator.op()._schema}\n  function: {inspect.signature(override.function)}"
        )
    _check_derivative(override)


def _check_derivative(override: Override) -> None:
    """Raise if an operator would have two derivatives."""
    operator, where = override.operator, f"`{override.function_name}` of {override.origin}"
    with_backward = is_with_backward(override.function)
    if with_backward and not decomposed(operator, override.dispatch_key):
        raise RequestError(
            f"{where} is a torch.autograd.Function, but Torch has a derivative of {operator}. Give a function; for "
            "another derivative, also give one for the operator that computes it."
        )
