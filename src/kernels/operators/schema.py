"""Check that a function can override an operator: Torch calls it with the arguments of the operator's schema."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from kernels.errors import RequestError
from kernels.operators.aten import Operator
from kernels.support.formatting import format_value

__all__ = [
    "check_arguments",
    "check_function",
    "is_decomposed",
    "is_with_backward",
    "positional_arguments",
    "takes_call",
]

#: Types of defaults that can be compared between a schema and a function; Torch writes types and layouts as numbers.
_COMPARABLE = (type(None), bool, int, float, complex, str)


def is_with_backward(function: Any) -> bool:
    """Whether it is a subclass of `torch.autograd.Function`."""
    import torch

    return isinstance(function, type) and issubclass(function, torch.autograd.Function)


def is_decomposed(operator: Operator, dispatch_key: str) -> bool:
    """Whether Torch computes an operator by others, so that its derivative is theirs.

    If a backend has its own kernel for it, overriding that kernel does not change the derivative.
    """
    return operator.has_kernel("CompositeImplicitAutograd") and not operator.has_kernel(dispatch_key)


def check_function(operator: Operator, function: Any, where: str, *, partial: bool = False) -> None:
    """Raise unless a function takes an operator's arguments, however Torch passes them.

    Torch's dispatcher passes positional arguments by position and others by name, and leaves out trailing positional
    and any named ones that have the schema's default (torch/csrc/autograd/utils/python_arg_parsing and
    `parseIValuesToPyArgsKwargs` in torch/csrc/autograd/python_variable.cpp), so the function needs these defaults too.

    Args:
        operator: The operator.
        function: A function, or a subclass of `torch.autograd.Function`, which gets every argument by position.
        where: The function's source, for the message.
        partial: Whether it is enough that the function takes some calls; `takes_call` tells them from others.

    Raises:
        RequestError: It does not (the message shows the schema and the function's signature), or the operator returns
            a view.
    """
    _check_no_view(operator, where)
    check_arguments(operator, function, where, partial=partial)


def check_arguments(operator: Operator, function: Any, where: str, *, partial: bool = False) -> None:
    """Raise unless a function takes an operator's arguments; as `check_function`, for any operator."""
    if is_with_backward(function):
        _check_with_backward(operator, function, where)
        return
    if isinstance(function, type) or not callable(function):
        raise RequestError(
            f"{where} is {format_value(function)}; expected a function, or a subclass of torch.autograd.Function."
        )
    schema = operator.op()._schema
    signature = _signature(operator, function, where)
    by_position = [each for each in schema.arguments if not each.kwarg_only]
    by_name = [each for each in schema.arguments if each.kwarg_only]
    needed = len(by_position)
    while needed and by_position[needed - 1].has_default_value():
        needed -= 1
    calls = (
        (by_position, by_name),
        (by_position[:needed], [each for each in by_name if not each.has_default_value()]),
    )
    errors = []
    for positional, named in calls:
        try:
            signature.bind(*[each.name for each in positional], **{each.name: each for each in named})
        except TypeError as error:
            errors.append(str(error))
    if len(errors) > (len(calls) - 1 if partial else 0):
        raise _refused(operator, where, signature, errors[0])
    left_out = {each.name: each for each in by_name if each.has_default_value()}
    parameters = list(signature.parameters.values())
    for index in range(needed, len(by_position)):
        parameter = parameters[index] if index < len(parameters) else None
        if parameter is None or parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            break  # taken by *args
        _check_default(operator, where, signature, by_position[index], parameter)
    for name, argument in left_out.items():
        if name in signature.parameters:
            _check_default(operator, where, signature, argument, signature.parameters[name])


def takes_call(operator: Operator, function: Any) -> Callable[[Sequence[Any], dict[str, Any]], bool] | None:
    """Whether a function takes the arguments of a call; None if it takes every call of the operator.

    Example:
        >>> takes = takes_call(Operator("add", "Tensor"), lambda x, y: x)
        >>> takes(["x", "y"], {}), takes(["x", "y"], {"alpha": 2})
        (True, False)
    """
    try:
        check_arguments(operator, function, "")
    except RequestError:
        bind = _signature(operator, function, "").bind
    else:
        return None

    def takes(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        try:
            bind(*args, **kwargs)
        except TypeError:
            return False
        return True

    return takes


def _check_no_view(operator: Operator, where: str) -> None:
    """Raise if an operator returns a view of an argument (`Tensor(a)` without `!`)."""
    schema = operator.op()._schema
    if any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns):
        raise RequestError(
            f"{where} cannot override {operator}, which returns views of its arguments: Torch relies on the memory, "
            "the version and the Python object that its own kernel gives them (`torch.nn.Parameter` on those of "
            f"`detach`).\n  operator: {schema}"
        )


def positional_arguments(operator: Operator) -> Callable[[Sequence[Any], dict[str, Any]], list[Any]]:
    """A function that completes the arguments of a call, in the order of an operator's schema."""
    arguments = operator.op()._schema.arguments
    names = [(each.name, each.default_value) for each in arguments]

    def complete(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        return [*args, *(kwargs.get(name, default) for name, default in names[len(args) :])]

    return complete


def _check_with_backward(operator: Operator, function: Any, where: str) -> None:
    import torch

    schema = operator.op()._schema
    base = torch.autograd.Function
    for each in (*schema.arguments, *schema.returns):
        # autograd.Function tracks tensors that are arguments and results themselves, not those in lists.
        if (
            each.alias_info is not None
            or "List[Tensor]" in str(each.type)
            or "List[Optional[Tensor]]" in str(each.type)
        ):
            what = "changes its arguments" if each.alias_info else "takes or returns lists"
            raise RequestError(
                f"{where} is a torch.autograd.Function, but {operator} {what}, which such a class cannot track.\n"
                f"  operator: {schema}"
            )
    if function.backward is base.backward and function.vjp is base.vjp:
        raise RequestError(f"{where} is a torch.autograd.Function without `backward`.")
    forward = _signature(operator, function.forward, where)
    context = [] if function.setup_context is not base.setup_context else ["ctx"]
    try:
        forward.bind(*context, *[each.name for each in schema.arguments])
    except TypeError as error:
        raise _refused(operator, f"`forward` of {where}", forward, str(error)) from None
    given = function.backward if function.backward is not base.backward else function.vjp
    backward = _signature(operator, given, where)
    try:
        backward.bind("ctx", *schema.returns)
    except TypeError as error:
        raise _refused(operator, f"`backward` of {where}", backward, str(error)) from None


def _signature(operator: Operator, function: Any, where: str) -> inspect.Signature:
    import torch

    if isinstance(function, torch._ops.OpOverloadPacket):
        function = getattr(function, "default", function)
    if isinstance(function, torch._ops.OpOverload):
        return _signature_of(function._schema)
    try:
        return inspect.signature(function)
    except Exception as error:  # noqa: BLE001 - a third-party object may have its own `__signature__`
        raise RequestError(
            f"{where} has no signature that could be compared with {operator} ({type(error).__name__}: {error}); "
            f"wrap it in a function with the operator's arguments.\n  operator: {operator.op()._schema}"
        ) from None


def _signature_of(schema: Any) -> inspect.Signature:
    """The signature of an operator of a compiled kernel."""
    parameters = []
    for each in schema.arguments:
        default = each.default_value if each.has_default_value() else inspect.Parameter.empty
        # An argument passed by position may be named `from`, which no parameter can be.
        kind = inspect.Parameter.KEYWORD_ONLY if each.kwarg_only else inspect.Parameter.POSITIONAL_ONLY
        name = each.name if each.kwarg_only else f"{each.name}_"
        parameters.append(inspect.Parameter(name, kind, default=default))
    return inspect.Signature(parameters)


def _check_default(
    operator: Operator, where: str, signature: inspect.Signature, argument: Any, parameter: inspect.Parameter
) -> None:
    wanted, given = argument.default_value, parameter.default
    if (wanted == [] and given is None) or (wanted is None and given is False and "bool" in str(argument.type)):
        return  # both say that nothing is given
    if _comparable(wanted) and _comparable(given) and not _equal(wanted, given):
        raise _refused(
            operator,
            where,
            signature,
            f"`{parameter.name}` has the default {given!r}, the operator's is {wanted!r}, which Torch leaves out",
        )


def _comparable(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_comparable(each) for each in value)
    return isinstance(value, _COMPARABLE)


def _equal(wanted: Any, given: Any) -> bool:
    if isinstance(wanted, list):
        # For a list of a fixed length, a schema allows one number in place of equal ones.
        same = list(given) if isinstance(given, (list, tuple)) else [given] * len(wanted)
        return wanted == same if wanted or isinstance(given, (list, tuple)) else False
    return bool(wanted == given)


def _refused(operator: Operator, where: str, signature: inspect.Signature, why: str) -> RequestError:
    return RequestError(
        f"{where} cannot take the arguments of {operator}: {why}.\n"
        f"  operator: {operator.op()._schema}\n"
        f"  function: {signature}"
    )
