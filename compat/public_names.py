"""The public names of the client that this Python has, as JSON: what they are, and what can be passed to them.

Only what introspection tells is written down, so that it can be compared between two clients.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import json
import sys
from typing import Any

#: The modules that the existing client documents, or that published kernels and libraries import by path.
MODULES = (
    "kernels",
    "kernels.layer",
    "kernels.layer.mode",
    "kernels.benchmark",
    "kernels.benchmarks",
    "kernels.cli",
    "kernels.verify",
)

#: Of a module that lists no public names, those that others use.
_ENTRY_POINTS = {"kernels.cli": ["main"]}

#: Methods that say what operators and built-in functions do with an object.
_OPERATORS = [
    "__call__",
    "__contains__",
    "__enter__",
    "__eq__",
    "__exit__",
    "__getitem__",
    "__hash__",
    "__iter__",
    "__len__",
    "__lt__",
    "__or__",
    "__str__",
]
_PLAIN = (object, BaseException, Exception)


def public_names() -> dict[str, dict[str, Any]]:
    """Each module's public names and what they are."""
    return {name: _names_of(importlib.import_module(name)) for name in MODULES if _exists(name)}


def parameters_of(function: Any) -> list[list[Any]] | None:
    """`[name, kind, default]` of each parameter; a default's text, or None if there is none."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    found = []
    for parameter in signature.parameters.values():
        default = None if parameter.default is parameter.empty else repr(parameter.default)
        if default is not None and " at 0x" in default:
            default = "an object"
        found.append([parameter.name, parameter.kind.name.lower(), default])
    return found


def _exists(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return False
    return True


def _names_of(module: Any) -> dict[str, Any]:
    listed = getattr(module, "__all__", _ENTRY_POINTS.get(module.__name__))
    if listed is None:
        # Without a list: what the module defines itself.
        listed = [
            name
            for name in dir(module)
            if not name.startswith("_")
            and not inspect.ismodule(value := getattr(module, name))
            and getattr(value, "__module__", module.__name__) == module.__name__
        ]
    return {name: _describe(getattr(module, name)) for name in sorted(listed)}


def _describe(value: Any) -> dict[str, Any]:
    if inspect.isclass(value):
        return _describe_class(value)
    if inspect.isroutine(value):
        return {"kind": "function", "parameters": parameters_of(value)}
    return {"kind": "value", "type": type(value).__name__}


def _describe_class(cls: type) -> dict[str, Any]:
    told: dict[str, Any] = {"kind": "class"}
    if issubclass(cls, enum.Enum):
        return {**told, "values": [name for name in cls.__members__ if not name.startswith("_")]}
    if cls.__init__ is not object.__init__:  # type: ignore[misc]
        told["parameters"] = parameters_of(cls)
    if dataclasses.is_dataclass(cls):
        told["fields"] = [field.name for field in dataclasses.fields(cls)]
    members = {}
    for base in reversed(cls.__mro__):
        # What comes with a base of another package is that package's.
        if not base.__module__.startswith(("kernels", "builtins")) or base in _PLAIN:
            continue
        for name, member in vars(base).items():
            if name.startswith("_"):
                continue
            if isinstance(member, (staticmethod, classmethod)) or inspect.isroutine(member):
                members[name] = {"kind": "method", "parameters": parameters_of(getattr(cls, name))}
            elif inspect.isclass(member):
                members[name] = {"kind": "class"}
            else:
                members[name] = {"kind": "attribute"}
        for name in vars(base).get("__annotations__", {}):
            if not name.startswith("_"):
                members.setdefault(name, {"kind": "attribute"})
    told["members"] = dict(sorted(members.items()))
    own = {name for base in cls.__mro__ if base not in _PLAIN for name, member in vars(base).items() if member}
    told["operators"] = [name for name in _OPERATORS if name in own]
    return told


if __name__ == "__main__":
    json.dump(public_names(), sys.stdout, indent=1)
