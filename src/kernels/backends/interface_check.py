"""Whether an object has what a backend must have; a plain object is completed with the base class's answers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kernels.backends.base import Backend, PythonDependency
from kernels.support.formatting import format_value

__all__ = ["checked"]


class _Text(NamedTuple):
    """A member that is a name: its spelling, and what an error says is allowed."""

    pattern: str
    allowed: str


#: As they stand in variant names, which a build's folder has (see `kernels.resolver.variant`), and in Torch.
_NAME = _Text(r"[a-z][a-z0-9_]{0,62}", "a name of lower-case letters, digits and underscores")
_TEXTS = {
    "name": _NAME,
    "noarch_name": _NAME,
    "token": _Text(
        r"[a-z](?:[a-z0-9_]{0,61}[a-z_])?",
        "lower-case letters, digits and underscores, without a dash and without a digit at the end (versions go there)",
    ),
    "device_type": _Text(r"[A-Za-z][A-Za-z0-9_]{0,62}", "Torch's name of a device type"),
    "mapping_device": _NAME,
    "dispatch_key": _Text(r"[A-Za-z][A-Za-z0-9_]{0,62}", "the name of one of Torch's dispatch keys"),
}
_FLAGS = ("versioned", "checks_archs", "experimental")
_NOTES = ("vendor", "guidance_block", "kernel_guidance", "prepare_key")
#: What an object that is no subclass must bring along; `Backend` has an answer for everything else.
_REQUIRED = ("name", "device_type", "probe")
_METHODS = tuple(name for name, member in vars(Backend).items() if inspect.isfunction(member) and name[0] != "_")
_OTHERS = ("order", "python_depends", "cuda_hacks_to_strip", "folder")

#: Names that stand for something else where a backend's name may stand.
_RESERVED = frozenset({"universal"})


def checked(given: Any) -> Backend:
    """The backend that an object is, once every member is found to be what it must be.

    Args:
        given: A `Backend`, or any object with at least its members `name`, `device_type` and `probe`.

    Returns:
        The object itself, or, for one that is no `Backend`, a `Backend` with its members.

    Raises:
        TypeError: A member is missing or of the wrong type; all of them are named.
        ValueError: A name is not spelled as names are, or is reserved.

    Example:
        >>> checked(object())
        Traceback (most recent call last):
            ...
        TypeError: `backend` is a object without name, device_type, probe; see kernels.backends.Backend.
    """
    if isinstance(given, type):
        raise TypeError(f"`backend` is the class {given.__name__}; allowed is an instance of it.")
    kind = type(given).__name__
    missing = [name for name in _REQUIRED if not _has(given, name) or _inherited(given, name)]
    if missing:
        raise TypeError(f"`backend` is a {kind} without {', '.join(missing)}; see kernels.backends.Backend.")
    backend = given if isinstance(given, Backend) else _completed(given)
    wrong = _wrong_types(backend)
    if wrong:
        raise TypeError("\n".join(f"`backend.{name}` of {kind} is {why}" for name, why in wrong))
    for name, text in _TEXTS.items():
        value = getattr(backend, name)
        if re.fullmatch(text.pattern, value) is None:
            raise ValueError(f"`backend.{name}` of {kind} is {value[:80]!r}; allowed is {text.allowed}.")
        if value in _RESERVED:
            raise ValueError(f"`backend.{name}` of {kind} is {value!r}, which stands for every backend.")
    return backend


def _has(given: Any, name: str) -> bool:
    try:
        getattr(given, name)
    except AttributeError:
        return False
    except Exception as error:
        raise TypeError(f"`backend.{name}` of {type(given).__name__} raised {type(error).__name__}: {error}") from error
    return True


def _inherited(given: Any, name: str) -> bool:
    """Whether a member is the base class's own, which stands for none."""
    own = getattr(Backend, name, None)
    return own is not None and getattr(getattr(given, name), "__func__", None) is own


def _completed(given: Any) -> Backend:
    backend = Backend()
    for name in (*_TEXTS, *_FLAGS, *_NOTES, *_OTHERS, *_METHODS):
        if _has(given, name):
            setattr(backend, name, getattr(given, name))
    return backend


def _wrong_types(backend: Backend) -> list[tuple[str, str]]:
    """Every member of the wrong type, and what is wrong."""
    wrong: list[tuple[str, str]] = []
    expected: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
        (tuple(_TEXTS), lambda value: type(value) is str, "a name"),
        (_FLAGS, lambda value: isinstance(value, bool), "True or False"),
        (_NOTES, lambda value: type(value) is str, "text"),
        (("order",), lambda value: type(value) is int, "a whole number"),
        (("python_depends",), _is_python_depends, "a mapping from names to PythonDependency(package, module)"),
        (("cuda_hacks_to_strip",), _is_texts, "a sequence of source lines"),
        (("folder",), lambda value: value is None or isinstance(value, Path), "a pathlib.Path, or None"),
    )
    for names, fits, allowed in expected:
        for name in names:
            value = getattr(backend, name) if _has(backend, name) else None
            if not fits(value):
                wrong.append((name, f"{format_value(value)}; allowed is {allowed}."))
    for name in _METHODS:
        method = getattr(backend, name)
        if not callable(method):
            wrong.append((name, f"{format_value(method)}; allowed is a method."))
        elif not _takes(method, name):
            wrong.append((name, f"a method that cannot be called as {name}({_arguments(name)})."))
    return wrong


def _is_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)


def _is_python_depends(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(key, str) and isinstance(each, PythonDependency) for key, each in value.items()
    )


def _parameters(name: str) -> list[str]:
    return list(inspect.signature(getattr(Backend, name)).parameters)[1:]


def _arguments(name: str) -> str:
    return ", ".join(_parameters(name))


def _takes(method: Callable[..., Any], name: str) -> bool:
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        # Written in C nothing tells; written in Python it lacks the parameter `self`.
        return not inspect.isfunction(getattr(method, "__func__", None))
    try:
        signature.bind(*_parameters(name))
    except TypeError:
        return False
    return True
