"""What a piece of Python source uses of `kernels`: its names, the forms of its calls, the errors that it catches.

The source is parsed and never run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["UNKNOWN", "Use", "uses_in"]

PACKAGE = "kernels"

#: The value of an argument that only the program knows.
UNKNOWN = "?"

#: Functions that take a package's name and say whether or in which version it is installed.
_ASKS = {"find_spec", "import_module", "version", "_is_package_available", "_dist_version", "is_package_available"}

#: Attributes that layers and their mapping carry for others to read.
_MARKS = {"kernel_layer_name", "kernel_condition", "_kernel_funcs", "can_torch_compile", "has_backward"}

#: Variables that this package reads.
_VARIABLES = ("KERNELS_CACHE", "LOCAL_KERNELS", "DISABLE_KERNEL_MAPPING", "USE_KERNELIZE_", "KERNELS_")


@dataclass
class Use:
    """One place that uses the package.

    Attributes:
        line: Its line.
        name: What it uses, with its path: `kernels.get_kernel`.
        kind: "import", "call", "attribute", "subclass", "asks" (whether it is installed), "mark", "variable".
        positional: The values of a call's positional arguments; `UNKNOWN` where only the program knows.
        keywords: The same for its keyword arguments.
        catches: The exceptions that are caught around it, in the function or where the function is called.
        reads: What is read of the call's result.
    """

    line: int
    name: str
    kind: str
    positional: list[Any] = field(default_factory=list)
    keywords: dict[str, Any] = field(default_factory=dict)
    catches: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)


def uses_in(source: str) -> list[Use]:
    """What a module uses of the package, in the order of its lines.

    Raises:
        SyntaxError: The source cannot be parsed.

    Example:
        >>> uses_in("from kernels import get_kernel\\nget_kernel('org/name', version=1).relu")[1]
        Use(line=2, name='kernels.get_kernel', kind='call', positional=['org/name'], keywords={'version': 1}, \
catches=[], reads=['relu'])
    """
    if PACKAGE not in source and not any(mark in source for mark in _MARKS):
        return []
    return _Module(ast.parse(source)).uses()


class _Module:
    def __init__(self, tree: ast.Module) -> None:
        self._nodes = list(ast.walk(tree))
        self._parents = {child: parent for parent in self._nodes for child in ast.iter_child_nodes(parent)}
        self._names = dict(self._imported())
        self._values = self._assigned()

    def uses(self) -> list[Use]:
        found = [use for node in self._nodes for use in self._of(node)]
        return sorted(found, key=lambda use: (use.line, use.kind, use.name))

    def _of(self, node: ast.AST) -> Iterator[Use]:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for path in _paths(node).values():
                yield Use(node.lineno, path, "import", catches=self._caught_around(node))
        elif isinstance(node, ast.Call):
            yield from self._call(node)
        elif isinstance(node, ast.Attribute):
            inner = isinstance(self._parents.get(node), ast.Attribute)
            called = self._called(node)
            if not inner and not called and (path := self._path(node)) and path not in self._names.values():
                yield Use(node.lineno, path, "attribute")
            elif node.attr in _MARKS and self._names:
                yield Use(node.lineno, node.attr, "mark")
        elif isinstance(node, ast.ClassDef):
            for base in node.bases:
                if path := self._path(base):
                    yield Use(node.lineno, path, "subclass")

    def _call(self, node: ast.Call) -> Iterator[Use]:
        if path := self._path(node.func):
            yield Use(
                node.lineno,
                path,
                "call",
                [self._value(argument) for argument in node.args],
                dict(self._keywords(node)),
                self._caught_around(node),
                sorted(set(self._read_of(node))),
            )
            return
        asked = node.args[0] if node.args else None
        if not isinstance(asked, ast.Constant) or not isinstance(asked.value, str):
            asked = next((each for each in node.args[1:2] if isinstance(each, ast.Constant)), asked)
        text = asked.value if isinstance(asked, ast.Constant) else None
        function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if function in _ASKS and isinstance(text, str) and text.split(".")[0] == PACKAGE:
            yield Use(node.lineno, text, "asks", catches=self._caught_around(node))
        elif function in {"get", "getenv", "setdefault"} and isinstance(text, str) and text.startswith(_VARIABLES):
            yield Use(node.lineno, text, "variable")
        elif function in {"getattr", "hasattr"} and text in _MARKS:
            yield Use(node.lineno, str(text), "mark")

    # -- names --------------------------------------------------------------------------------------------------------

    def _imported(self) -> Iterator[tuple[str, str]]:
        for node in self._nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                yield from _paths(node).items()

    def _path(self, node: ast.AST) -> str | None:
        """The path of a name of the package: `kernels.get_kernel`."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if isinstance(node, ast.Attribute) and (owner := self._path(node.value)):
            return f"{owner}.{node.attr}"
        return None

    def _called(self, node: ast.AST) -> bool:
        parent = self._parents.get(node)
        return isinstance(parent, ast.Call) and parent.func is node

    # -- values -------------------------------------------------------------------------------------------------------

    def _assigned(self) -> dict[tuple[ast.AST | None, str], list[ast.expr]]:
        """What names are given, by the function that gives it, or None for the module."""
        values: dict[tuple[ast.AST | None, str], list[ast.expr]] = {}
        for node in self._nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                values.setdefault((self._function_of(node), node.targets[0].id), []).append(node.value)
        return values

    def _given(self, name: ast.Name) -> list[ast.expr]:
        """What a name is given where it is used; nothing if it is a parameter."""
        function = self._function_of(name)
        if function is not None:
            arguments = function.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            if name.id in {each.arg for each in every}:
                return []
        return self._values.get((function, name.id)) or self._values.get((None, name.id), [])

    def _value(self, node: ast.expr) -> Any:
        if (path := self._path(node)) is not None:
            return path
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            both = [self._value(node.left), self._value(node.right)]
            return " | ".join(both) if all(isinstance(each, str) for each in both) else UNKNOWN
        if isinstance(node, ast.Dict):
            keys = [self._value(key) if key else None for key in node.keys]
            if all(isinstance(key, str) and not key.startswith(PACKAGE) for key in keys):
                return dict(zip(keys, map(self._value, node.values), strict=True))
            return UNKNOWN
        if isinstance(node, ast.Name) and len(given := self._given(node)) == 1:
            node = given[0]
        return node.value if isinstance(node, ast.Constant) else UNKNOWN

    def _keywords(self, node: ast.Call) -> Iterator[tuple[str, Any]]:
        for keyword in node.keywords:
            if keyword.arg is not None:
                yield keyword.arg, self._value(keyword.value)
            elif isinstance(keyword.value, ast.Name):
                # `**trust_kwargs`: what the dictionaries hold that the name is given
                for each in (each for given in self._given(keyword.value) for each in ast.walk(given)):
                    if isinstance(each, ast.Dict) and isinstance(known := self._value(each), dict):
                        yield from known.items()

    # -- around -------------------------------------------------------------------------------------------------------

    def _caught_around(self, node: ast.AST) -> list[str]:
        """What is caught around a node, or around the calls in this module of the function that holds it."""
        caught, functions, seen = set(), [node], set()
        while functions:
            child = functions.pop()
            while (parent := self._parents.get(child)) is not None:
                if isinstance(parent, ast.Try) and child in parent.body:
                    caught |= {name for handler in parent.handlers for name in _handled(handler)}
                if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    if parent.name not in seen:
                        seen.add(parent.name)
                        functions += [call for call in self._nodes if _calls(call, parent.name)]
                    break
                child = parent
        return sorted(caught)

    def _read_of(self, node: ast.Call) -> Iterator[str]:
        parent = self._parents.get(node)
        if isinstance(parent, ast.Attribute):
            yield parent.attr
        if isinstance(parent, ast.Call) and (attribute := _getattr_of(parent, node)):
            yield attribute
        if isinstance(parent, ast.Assign):
            names = {each.id for target in parent.targets for each in ast.walk(target) if isinstance(each, ast.Name)}
            function = self._function_of(node)
            for each in self._nodes:
                attribute, owner = None, None
                if isinstance(each, ast.Attribute):
                    attribute, owner = each.attr, each.value
                elif isinstance(each, ast.Call) and each.args:
                    attribute, owner = _getattr_of(each, each.args[0]), each.args[0]
                named = isinstance(owner, ast.Name) and owner.id in names
                if attribute and named and self._function_of(each) is function:
                    yield attribute

    def _function_of(self, node: ast.AST | None) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        while node is not None and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node = self._parents.get(node)
        return node


def _paths(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    """The names that an import binds, with their paths in the package."""
    if isinstance(node, ast.Import):
        return {
            alias.asname or PACKAGE: alias.name if alias.asname else PACKAGE
            for alias in node.names
            if alias.name.split(".")[0] == PACKAGE
        }
    if node.level or node.module is None or node.module.split(".")[0] != PACKAGE:
        return {}
    return {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}


def _handled(handler: ast.ExceptHandler) -> Iterator[str]:
    if handler.type is None:
        yield "BaseException"
    elif isinstance(handler.type, ast.Tuple):
        yield from map(ast.unparse, handler.type.elts)
    else:
        yield ast.unparse(handler.type)


def _calls(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _getattr_of(call: ast.Call, value: ast.AST) -> str | None:
    named = isinstance(call.func, ast.Name) and call.func.id in {"getattr", "hasattr"}
    if named and call.args[0] is value and len(call.args) > 1 and isinstance(call.args[1], ast.Constant):
        return str(call.args[1].value)
    return None
