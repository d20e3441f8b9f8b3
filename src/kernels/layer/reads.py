"""What a forward reads of its module, from its source: `self.weight`, `self.variance_epsilon`.

Only what every call reads is required. A read is not required inside a loop, in one branch alone, after a statement
that may return, where `AttributeError` is caught, or of an attribute that the code tests with `hasattr` or `getattr`,
or sets itself. Nothing is required where the code may set any attribute, or gives the module's name to something else.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

__all__ = ["Reads", "reads_of"]

#: How far calls of other functions that get the module are followed.
_CALLS = 3

_CATCHING = frozenset({"AttributeError", "Exception", "BaseException"})
_BUILTIN_ERRORS = frozenset(
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
)
_TESTING = frozenset({"hasattr", "getattr", "vars", "type", "isinstance"})

#: Methods of `nn.Module` that set the attribute they are given the name of.
_SETTING = frozenset({"__setattr__", "add_module", "register_buffer", "register_module", "register_parameter"})

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True)
class Reads:
    """Attributes of the module.

    Attributes:
        required: Those that every call reads.
        named: Those that occur in the code.
        optional: Those that the code tests or sets.
        sets_any: Whether it may set any attribute.
    """

    required: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    sets_any: bool = False


_NOTHING = Reads()


def reads_of(function: Any) -> Reads:
    """What a function reads of its first argument; nothing where its source is not known.

    Args:
        function: A forward, as its class has it.

    Example:
        >>> from torch import nn
        >>> sorted(reads_of(nn.Linear.forward).required)
        ['bias', 'weight']
    """
    try:
        function = inspect.unwrap(function)
    except ValueError:  # it wraps itself
        return _NOTHING
    return _reads(function, 0, _CALLS) if isinstance(function, FunctionType) else _NOTHING


@lru_cache(maxsize=4096)
def _reads(function: FunctionType, position: int, calls: int) -> Reads:
    tree = _syntax(function)
    if tree is None:
        return _NOTHING
    parameters = [*tree.args.posonlyargs, *tree.args.args]
    if position >= len(parameters):
        return _NOTHING
    code = _Code(parameters[position].arg, _resolver(function), calls)
    required = code.block(tree.body)
    # A file that was changed since would give other names than the code that runs.
    known = _names(function.__code__) | code.called
    required = set() if code.sets_any else required - code.optional
    return Reads(frozenset(required & known), frozenset(code.named & known), frozenset(code.optional), code.sets_any)


def _syntax(function: FunctionType) -> ast.FunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    first = tree.body[0] if tree.body else None
    return first if isinstance(first, ast.FunctionDef) and first.name == function.__name__ else None


def _names(code: CodeType) -> set[str]:
    """The names in a function's code, with those of the functions in it and of its constants."""
    names = {*code.co_names, *(each for each in code.co_consts if isinstance(each, str))}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names |= _names(inner)
    return names


def _resolver(function: FunctionType) -> Callable[[str], Any]:
    def resolve(name: str) -> Any:
        if name in function.__code__.co_freevars:
            cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
            try:
                return cells[name].cell_contents
            except ValueError:  # not assigned yet
                return None
        return function.__globals__.get(name)

    return resolve


class _Code:
    """One function's code, read with the name that its module has in it."""

    def __init__(self, module: str, resolve: Callable[[str], Any], calls: int) -> None:
        self.module = module
        self.resolve = resolve
        self.calls = calls
        self.optional: set[str] = set()  # tested, or set by the code itself
        self.sets_any = False  # any attribute may be set, or the name may stand for something else
        self.named: set[str] = set()
        self.called: set[str] = set()  # named by functions that get the module
        self.local: dict[str, set[str]] = {}  # a function in it, and what it reads

    def expression(self, node: ast.AST | None) -> set[str]:
        """What an expression reads whatever happens."""
        if node is None:
            return set()
        if isinstance(node, ast.Attribute) and self._is_module(node.value):
            self.named.add(node.attr)
            if isinstance(node.ctx, ast.Load):
                return {node.attr}
            self.optional.add(node.attr)
            return set()
        if isinstance(node, ast.Subscript) and self._is_dict(node.value) and not isinstance(node.ctx, ast.Load):
            self.sets_any = True
        if isinstance(node, ast.Name):
            if self._is_module(node) and not isinstance(node.ctx, ast.Load):
                self.sets_any = True
            return set(self.local.get(node.id, ()))
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.IfExp):
            body, other = self.expression(node.body), self.expression(node.orelse)
            return self.expression(node.test) | (set() if self._tests(node.test) else body & other)
        if isinstance(node, ast.BoolOp):
            self._all(node.values[1:])
            return self.expression(node.values[0])
        if isinstance(node, ast.Lambda):
            body = self.expression(node.body)
            return set() if self._shadows(node.args) else body
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            self._all(child for child in ast.iter_child_nodes(node))
            return self.expression(node.generators[0].iter)
        return self._all(ast.iter_child_nodes(node))

    def block(self, statements: list[ast.stmt]) -> set[str]:
        """What a list of statements reads whatever happens."""
        required: set[str] = set()
        for number, statement in enumerate(statements):
            if isinstance(statement, ast.If):
                rest = statements[number + 1 :]
                return required | self._branches(statement, rest)
            if isinstance(statement, (ast.With, ast.AsyncWith)) and not _suppresses(statement):
                rest = statements[number + 1 :]
                return required | self._all(statement.items) | self.block([*statement.body, *rest])
            required |= self._statement(statement)
            if isinstance(statement, ast.Raise) or _may_return(statement):
                self.block(statements[number + 1 :])  # for the names
                break
        return required

    def _branches(self, statement: ast.If, rest: list[ast.stmt]) -> set[str]:
        test, tests = self.expression(statement.test), self._tests(statement.test)
        body, other = self.block(statement.body), self.block(statement.orelse)
        after = self.block(rest)
        ends = _ends(statement.body), _ends(statement.orelse)
        if tests:
            return test | (set() if any(ends) else after)
        if ends[0]:
            other = other | (set() if ends[1] else after)
            # An exit that is an error, or needs nothing of the module, as that for an empty tensor, is not the rule.
            exceptional = not body or isinstance(statement.body[-1], ast.Raise)
            return test | (other if exceptional else body & other)
        if ends[1]:
            exceptional = not other or isinstance(statement.orelse[-1], ast.Raise)
            return test | (body | after if exceptional else other & (body | after))
        return test | (body & other) | after

    def _statement(self, statement: ast.stmt) -> set[str]:
        if isinstance(statement, _LOOPS):
            self.block(statement.body), self.block(statement.orelse)
            if isinstance(statement, ast.While):
                return self.expression(statement.test)
            return self.expression(statement.iter) | self.expression(statement.target)
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            self.block(statement.body)
            return self._all(statement.items)
        if isinstance(statement, ast.Try) or (sys.version_info >= (3, 11) and isinstance(statement, ast.TryStar)):
            body = self.block([*statement.body, *statement.orelse])
            for handler in statement.handlers:
                self.block(handler.body)
            caught = any(_catches(handler.type) for handler in statement.handlers)
            return (set() if caught else body) | self.block(statement.finalbody)
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            read = self.block(statement.body)
            self.local[statement.name] = set() if self._shadows(statement.args) else read
            return self._all(statement.decorator_list) | self._all([statement.args])
        if isinstance(statement, ast.ClassDef):
            return set()
        if isinstance(statement, ast.Match):
            for case in statement.cases:
                self.block(case.body)
            return self.expression(statement.subject)
        return self._all(ast.iter_child_nodes(statement))

    def _call(self, call: ast.Call) -> set[str]:
        name = call.func.id if isinstance(call.func, ast.Name) else None
        attribute = _constant(call.args[1]) if len(call.args) > 1 and self._is_module(call.args[0]) else None
        self._note_set(call, name, attribute)
        if attribute is not None and name in ("hasattr", "getattr", "setattr"):
            self.named.add(attribute)
            if name == "getattr" and len(call.args) == 2:
                return {attribute}
            self.optional.add(attribute)
        required = self._all(ast.iter_child_nodes(call))
        if name is not None and self.calls:
            callee = self.resolve(name)
            for position, argument in enumerate(call.args):
                if self._is_module(argument) and isinstance(callee, FunctionType):
                    read = _reads(callee, position, self.calls - 1)
                    self.named |= read.named
                    self.called |= read.named
                    self.optional |= read.optional
                    self.sets_any = self.sets_any or read.sets_any
                    required |= read.required
        return required

    def _note_set(self, call: ast.Call, name: str | None, attribute: str | None) -> None:
        """Note what a call sets: `setattr(self, name, …)`, `self.register_buffer(name, …)`."""
        if name == "setattr" and attribute is None and call.args and self._is_module(call.args[0]):
            self.sets_any = True
        called = call.func
        if not isinstance(called, ast.Attribute):
            return
        if self._is_dict(called.value) and called.attr in ("setdefault", "update"):
            self.sets_any = True
        if self._is_module(called.value) and called.attr in _SETTING:
            given = _constant(call.args[0]) if call.args else None
            if given is None:
                self.sets_any = True
            else:
                self.optional.add(given)

    def _all(self, nodes: Iterable[ast.AST]) -> set[str]:
        return set().union(*[self.expression(node) for node in nodes])

    def _is_dict(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "vars":
            return len(node.args) == 1 and self._is_module(node.args[0])
        return isinstance(node, ast.Attribute) and node.attr == "__dict__" and self._is_module(node.value)

    def _is_module(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id == self.module

    def _shadows(self, arguments: ast.arguments) -> bool:
        return any(isinstance(node, ast.arg) and node.arg == self.module for node in ast.walk(arguments))

    def _tests(self, node: ast.AST) -> bool:
        """Whether an expression asks what the module has."""
        return any(self._asks(each) for each in ast.walk(node))

    def _asks(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return node.func.id in _TESTING and any(self._is_module(argument) for argument in node.args)
        return isinstance(node, ast.Attribute) and self._is_dict(node)


def _ends(statements: list[ast.stmt]) -> bool:
    last = statements[-1] if statements else None
    if isinstance(last, ast.If):
        return _ends(last.body) and _ends(last.orelse)
    return isinstance(last, (ast.Return, ast.Raise))


def _may_return(node: ast.AST) -> bool:
    """Whether a statement may return, so that what follows it is not always reached."""
    if isinstance(node, _SCOPES):
        return False
    return isinstance(node, ast.Return) or any(map(_may_return, ast.iter_child_nodes(node)))


def _suppresses(statement: ast.With | ast.AsyncWith) -> bool:
    """Whether one of the contexts is `contextlib.suppress`."""
    for item in statement.items:
        made = item.context_expr
        if isinstance(made, ast.Call) and _last_name(made.func) == "suppress":
            return True
    return False


def _catches(kind: ast.expr | None) -> bool:
    kinds: list[ast.expr | None] = [*kind.elts] if isinstance(kind, ast.Tuple) else [kind]
    return any(each is None or _may_be_attribute_error(_last_name(each)) for each in kinds)


def _may_be_attribute_error(name: str | None) -> bool:
    return name in _CATCHING or name not in _BUILTIN_ERRORS


def _last_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _constant(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
