"""Whether an object has the members of a backend; a plain object gets those of the base class for the rest."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

from kernels.backends.base import Backend, PythonDependency
from kernels.support.formatting import format_error, format_value

__all__ = ["NAME_PATTERNS", "validated"]

_NAME = r"[a-z][a-z0-9_]{0,62}"
_TORCH_NAME = r"[A-Za-z][A-Za-z0-9_]{0,62}"

#: How each name is spelled in the names of variants (see `kernels.resolver.variant`) and in Torch, and that in words.
NAME_PATTERNS = {
    "name": (_NAME, "lower-case letters, digits and underscores"),
    "noarch_name": (_NAME, "lower-case letters, digits and underscores"),
    "token": (
        r"[a-z](?:[a-z0-9_]{0,61}[a-z_])?",
        "lower-case letters, digits and underscores, without a digit at the end: the version follows there",
    ),
    "device_type": (_TORCH_NAME, "Torch's name of a device type"),
    "mapping_device": (_NAME, "lower-case letters, digits and underscores"),
    "dispatch_key": (_TORCH_NAME, "the name of a dispatch key of Torch"),
}

_REQUIRED = ("name", "device_type", "probe")
_METHODS = tuple(name for name, member in vars(Backend).items() if inspect.isfunction(member) and name[0] != "_")

#: A build for it is for every backend.
_UNIVERSAL = "universal"


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


#: Members that are not names: a check of the value's type, and the type in words.
_TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(NAME_PATTERNS, (_is_text, "a str")),
    **dict.fromkeys(("versioned", "checks_archs", "experimental"), (_is_flag, "a bool")),
    **dict.fromkeys(("vendor", "guidance_block", "kernel_guidance", "device_language"), (_is_text, "a str")),
    **dict.fromkeys(("order", "min_macos"), (lambda value: isinstance(value, int), "an int")),
    "python_depends": (
        lambda value: isinstance(value, Mapping) and all(isinstance(each, PythonDependency) for each in value.values()),
        "a mapping from names to PythonDependency(package, module)",
    ),
    "cuda_hacks_to_strip": (
        lambda value: isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value),
        "a list of source lines",
    ),
    "folder": (lambda value: value is None or isinstance(value, Path), "a pathlib.Path or None"),
}


def validated(given: Any) -> Backend:
    """The backend that an object is, with every member of the right type and every name spelled as names are.

    Args:
        given: A `Backend`, or any object with at least `name`, `device_type` and `probe`; or the class of one.

    Returns:
        The object itself, an instance of the class, or, for one that is no `Backend`, a `Backend` with its members.

    Raises:
        TypeError: A member is missing or of the wrong type; the message names all of them.
        ValueError: A name is not spelled as names are, or is reserved.

    Example:
        >>> validated(object())
        Traceback (most recent call last):
            ...
        TypeError: `backend` (object) has no name, device_type, probe; see kernels.backends.Backend.
    """
    kind = type(given).__name__
    if isinstance(given, type):
        kind = given.__name__
        try:
            given = given()
        except Exception as error:
            raise TypeError(
                f"`backend` is the class {kind}, and {kind}() fails: {format_error(error)} Register an instance."
            ) from error
    missing = [name for name in _REQUIRED if not hasattr(given, name)]
    if getattr(getattr(given, "probe", None), "__func__", None) is Backend.probe:
        missing.append("probe")
    if missing:
        raise TypeError(f"`backend` ({kind}) has no {', '.join(missing)}; see kernels.backends.Backend.")
    backend = given if isinstance(given, Backend) else _completed(given)
    wrong = [
        f"`backend.{name}` ({kind}): expected {expected}, got {format_value(getattr(backend, name))}."
        for name, (fits, expected) in _TYPES.items()
        if not fits(getattr(backend, name))
    ]
    for name in _METHODS:
        method = getattr(backend, name)
        if _is_as_in_base(method, getattr(Backend, name)):
            continue
        arguments = list(inspect.signature(getattr(Backend, name)).parameters)[1:]
        if not _takes(method, arguments):
            wrong.append(f"`backend.{name}` ({kind}): expected a method {name}({', '.join(arguments)}).")
    if wrong:
        raise TypeError("\n".join(wrong))
    for name, (pattern, expected) in NAME_PATTERNS.items():
        value = getattr(backend, name)
        if value == _UNIVERSAL or re.fullmatch(pattern, value) is None:
            expected = "another name, as it means every backend" if value == _UNIVERSAL else expected
            raise ValueError(f"`backend.{name}` ({kind}): expected {expected}, got {value[:80]!r}.")
    return backend


def _completed(given: Any) -> Backend:
    backend = Backend()
    for name in (*_TYPES, *_METHODS):
        if hasattr(given, name):
            setattr(backend, name, getattr(given, name))
    return backend


def _is_as_in_base(method: Any, base: FunctionType) -> bool:
    """Whether a method plainly has the arguments of the base class's; else `inspect` tells, which takes long."""
    function = getattr(method, "__func__", None)
    if function is base:
        return True
    if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
        return False
    own, others = function.__code__, base.__code__
    names = others.co_varnames[: others.co_argcount]
    return own.co_varnames[: own.co_argcount] == names and not own.co_kwonlyargcount


def _takes(method: Any, arguments: list[str]) -> bool:
    try:
        inspect.signature(method).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # a method without `self`, or one that is written in C
        return not inspect.ismethod(method)
    return True
