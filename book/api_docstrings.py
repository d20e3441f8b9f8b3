"""How the site reads the docstrings of the package: an extension of griffe, and what is missing in them.

An `Example:` is a block of code. A struct takes its fields as arguments; a class that describes no arguments is made by
this package alone, and has no signature. The names of type variables are shown without their underscore. A gap is a
warning: it ends a strict build, so that nothing public gets into the site without a description.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))

from api_names import documented_names

__all__ = ["Docstrings", "gaps"]

_log = logging.getLogger("mkdocs.api_docstrings")

_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)


class Docstrings(griffe.Extension):
    """What mkdocstrings is given to show."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Call an example by the name that griffe knows."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub("Examples:", obj.docstring.value)

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """Show the type variables of a signature without their underscore."""
        for annotation in (func.returns, *(each.annotation for each in func.parameters)):
            if isinstance(annotation, griffe.Expr):
                for name in annotation.iterate(flat=True):
                    if isinstance(name, griffe.ExprName) and re.match("_[A-Z]", name.name):
                        name.name = name.name[1:]

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Give every class the arguments that its users give it."""
        for each in _classes(pkg):
            if any(str(base) in ("msgspec.Struct", "Struct") for base in each.bases):
                _set_init(each, _fields(each))
            elif "dataclass" in each.labels:
                _shorten_defaults(each.members.get("__init__"))
            elif "__new__" in each.members and "__init__" not in each.members:
                _set_init(each, [*each.members["__new__"].parameters][1:])  # type: ignore[union-attr]
            elif not _described(each, "parameters"):
                each.members.pop("__init__", None)
        # What it adds to `Exception` is of no use to callers.
        pkg["errors.KernelsError"].bases = ["Exception"]
        for name, _ in documented_names():
            for gap in gaps(name, pkg):
                _log.warning(gap)


def _classes(owner: griffe.Module | griffe.Class) -> Iterator[griffe.Class]:
    for member in owner.members.values():
        if isinstance(member, (griffe.Module, griffe.Class)):
            if isinstance(member, griffe.Class):
                yield member
            yield from _classes(member)


def _shorten_defaults(function: Any) -> None:
    """Show `...` for what makes a default anew for each object."""
    for parameter in [] if function is None else function.parameters:
        if str(parameter.default).startswith("(lambda"):
            parameter.default = "..."


def _fields(struct: griffe.Class) -> Iterator[griffe.Parameter]:
    keyword_only = "kw_only" in struct.keywords
    for each in struct.members.values():
        if isinstance(each, griffe.Attribute) and "instance-attribute" in each.labels:
            kind = griffe.ParameterKind.keyword_only if keyword_only else griffe.ParameterKind.positional_or_keyword
            yield griffe.Parameter(each.name, annotation=each.annotation, kind=kind, default=each.value)


def _set_init(owner: griffe.Class, parameters: Iterable[griffe.Parameter]) -> None:
    first = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
    owner.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(first, *parameters)))


def gaps(name: str, package: griffe.Module) -> list[str]:
    """What a reader of a name's page would look for in vain, a sentence each.

    Args:
        name: The dotted name of a function, a class or a value.
        package: The package that has it.
    """
    return list(_gaps(_target(package[name.partition(".")[2]]), name))


def _target(found: Any) -> Any:
    return found.final_target if found.is_alias else found


def _gaps(found: Any, name: str, *, method: bool = False) -> Iterator[str]:
    if found.docstring is None:
        yield f"{name} has no docstring"
    elif found.is_function:
        yield from _differences(name, "Args", _parameters(found), _described(found, "parameters"))
        if not method and str(found.returns) != "None" and not {"returns", "yields"} & _sections(found):
            yield f"{name} does not say what it returns"
    elif found.is_class:
        yield from _gaps_of_class(found, name)


def _gaps_of_class(found: griffe.Class, name: str) -> Iterator[str]:
    described = _described(found, "parameters") | _described(found, "attributes")
    taken = _parameters(found.members["__init__"]) if "__init__" in found.members else set()
    for member in found.members.values():
        if member.is_alias or member.name.startswith("_") or _is_other_name(member, found):
            continue
        # Fields may be described by the class; what else it has, by itself.
        if member.name not in described or member.is_function:
            yield from _gaps(member, f"{name}.{member.name}", method=True)
    fields = {each for each in taken if not each.startswith("_")}
    yield from (f"{name} does not describe {each}" for each in sorted(fields - described))
    there = taken | set(found.all_members)
    yield from (f"{name} describes {each}, which it does not have" for each in sorted(described - there))


def _is_other_name(member: Any, owner: griffe.Class) -> bool:
    """Whether a class has a member twice: `benchmark_large = benchmark_small`."""
    return bool(member.is_attribute and str(member.value) in owner.members)


def _differences(name: str, section: str, there: set[str], described: set[str]) -> Iterator[str]:
    yield from (f"{name} does not describe {each} under {section}" for each in sorted(there - described))
    yield from (f"{name} describes {each}, which it does not take" for each in sorted(described - there))


def _parameters(function: griffe.Function) -> set[str]:
    first = {"self", "cls"} if isinstance(function.parent, griffe.Class) else set()
    return {each.name for each in function.parameters} - first


def _described(found: Any, kind: str) -> set[str]:
    """The names that a section describes; several may share a line."""
    return {
        name.strip().lstrip("*")
        for section in _parsed(found)
        if section.kind.value == kind
        for each in section.value
        for name in each.name.split(",")
    }


def _sections(found: Any) -> set[str]:
    return {section.kind.value for section in _parsed(found)}


def _parsed(found: Any) -> list[Any]:
    return [] if found.docstring is None else found.docstring.parse("google", warnings=False)
