"""What a Python file has: Triton functions and their launchers, or C++ and CUDA texts for `load_inline`; never run."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernels.authoring.python_syntax import parse_source
from kernels.backends import all_backends
from kernels.errors import RequestError
from kernels.support.limited_call import LimitExceeded, call_limited

__all__ = ["InlineSources", "Launcher", "PythonSource", "read_python"]

#: Modules of Triton whose decorator makes a function device code.
_JIT = frozenset({"jit", "autotune", "heuristics"})
_LAUNCHED = frozenset({"triton", "torch"})

#: Calls of `torch.<name>` that compute nothing.
_HARMLESS = frozenset(
    {"Size", "compile", "device", "dtype", "finfo", "get_default_dtype", "iinfo", "is_tensor", "typename"}
)
#: Modules whose calls make tensors or run operators, or use a device, as those of a backend's device type do.
_RUNNING = ("torch.linalg.", "torch.nn.", "torch.ops.", "triton.runtime.driver.")
_QUESTIONS = (".device_count", ".is_available")


@dataclass(frozen=True)
class InlineSources:
    """The texts that a file gives to `torch.utils.cpp_extension.load_inline`.

    Attributes:
        cpp: The text of `cpp_sources`.
        cuda: The text of `cuda_sources`; empty if there is none.
        functions: The names that Python gets.
    """

    cpp: str
    cuda: str
    functions: tuple[str, ...]


@dataclass(frozen=True)
class Launcher:
    """A function that launches Triton functions.

    Attributes:
        name: Its name.
        parameters: The parameters that a call must have, with their annotations; empty if one has none.
        returns: Whether it returns a value.
    """

    name: str
    parameters: tuple[tuple[str, str], ...]
    returns: bool


@dataclass(frozen=True)
class PythonSource:
    """What a Python file has.

    Attributes:
        kernels: Its `@triton.jit` functions.
        launchers: Its public functions that launch them, directly or through others.
        classes: Its classes that launch them.
        modules: The packages that it imports, without Torch's, Triton's and Python's own.
        runs: The lines of statements that run when it is imported, other than definitions, and assignments that compute
            nothing with Torch or the Triton functions.
        inline: What it gives to `load_inline`, or None if it does not call it with texts that stand in the file.
    """

    kernels: tuple[str, ...]
    launchers: tuple[Launcher, ...]
    classes: tuple[str, ...]
    modules: tuple[str, ...]
    runs: tuple[int, ...]
    inline: InlineSources | None


def read_python(data: bytes, name: str) -> PythonSource:
    """Parse a Python file.

    Args:
        data: Its content.
        name: Its name, for the error.

    Raises:
        RequestError: It is not valid Python.

    Example:
        >>> source = read_python(b"@triton.jit\\ndef k(x):\\n  pass\\ndef f(x):\\n  k[(1,)](x)", "f.py")
        >>> source.kernels, source.launchers
        (('k',), (Launcher(name='f', parameters=(('x', ''),), returns=False),))
    """
    try:
        return call_limited(_read, data, name, tuple(each.device_type for each in all_backends()))
    except LimitExceeded as error:
        raise RequestError(f"{name} cannot be parsed: {error}") from None


def _read(data: bytes, name: str, devices: Sequence[str]) -> PythonSource:
    try:
        module = parse_source(data, name)
    except SyntaxError as error:
        raise RequestError(f"{name}, line {error.lineno}: {error.msg}") from None
    except ValueError as error:
        raise RequestError(f"{name}: {error}") from None
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    kernels = [name for name, node in functions.items() if any(map(_is_jit, node.decorator_list))]
    reached = set(kernels)
    others: dict[str, ast.stmt] = {name: node for name, node in functions.items() if name not in reached}
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    others.update(classes)
    users: dict[str, list[str]] = {}
    for name, node in others.items():
        for used in _names(node):
            users.setdefault(used, []).append(name)
    left = list(kernels)
    while left:
        callers = set(users.get(left.pop(), ())) - reached
        reached |= callers
        left += callers
    public = {name for name in reached if name[0] != "_" and name not in classes}
    return PythonSource(
        kernels=tuple(kernels),
        launchers=tuple(_launcher(functions[name]) for name in functions if name in public and name not in kernels),
        classes=tuple(name for name in classes if name in reached and name[0] != "_"),
        modules=tuple(_modules(module)),
        runs=tuple(_runs(module, reached, devices)),
        inline=_inline(module),
    )


def _is_jit(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")) in _JIT


def _launcher(function: ast.FunctionDef) -> Launcher:
    places = [*function.args.posonlyargs, *function.args.args]
    required = places[: len(places) - len(function.args.defaults)]
    keywords = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    required += [each for each, default in keywords if default is None]
    return Launcher(
        name=function.name,
        parameters=tuple((each.arg, ast.unparse(each.annotation) if each.annotation else "") for each in required),
        returns=any(isinstance(each, ast.Return) and each.value is not None for each in _run_by(function.body)),
    )


def _run_by(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Nodes, and those in them, but not what is in a function or a class: that runs later, or not at all."""
    pending = list(nodes)
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            pending += ast.iter_child_nodes(node)


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}


def _modules(module: ast.Module) -> Iterator[str]:
    found: dict[str, None] = {}
    for node in ast.walk(module):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = ["." * node.level] if node.level else [node.module or ""]
        for name in names:
            found.setdefault(name.partition(".")[0] or name, None)
    yield from (name for name in found if name not in _LAUNCHED and name not in sys.stdlib_module_names)


def _runs(module: ast.Module, reached: Collection[str], devices: Sequence[str]) -> Iterator[int]:
    imported = dict(_imported(module))
    for node in module.body:
        is_main = isinstance(node, ast.If) and "__name__" in _names(node.test)
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, (ast.Expr, ast.For, ast.While, ast.With)) and not is_main and not is_text:
            yield node.lineno
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None:
            called = [each.func for each in _run_by([node.value]) if isinstance(each, ast.Call)]
            if any(_computes(each, imported, reached, devices) for each in called):
                yield node.lineno


def _imported(module: ast.Module) -> Iterator[tuple[str, str]]:
    """The names that imports give, with what they stand for."""
    for node in module.body:
        if isinstance(node, ast.Import):
            yield from ((each.asname, each.name) for each in node.names if each.asname)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((each.asname or each.name, f"{node.module}.{each.name}") for each in node.names)


def _computes(
    function: ast.expr, imported: Mapping[str, str], reached: Collection[str], devices: Sequence[str]
) -> bool:
    """Whether a call launches a Triton function, makes a tensor or asks a device."""
    if isinstance(function, ast.Subscript):  # the grid of a launch
        function = function.value
    parts: list[str] = []
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    if not isinstance(function, ast.Name):
        return False
    if function.id in reached:
        return True
    name = ".".join([imported.get(function.id, function.id), *reversed(parts)])
    if name.count(".") == 1 and name.startswith("torch."):
        return name.removeprefix("torch.") not in _HARMLESS
    return name.startswith((*_RUNNING, *(f"torch.{each}." for each in devices))) and not name.endswith(_QUESTIONS)


def _inline(module: ast.Module) -> InlineSources | None:
    constants: dict[str, ast.expr] = {}
    for node in module.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            constants[node.targets[0].id] = node.value
    for call in ast.walk(module):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name != "load_inline":
            continue
        # The parameters in order: name, cpp_sources, cuda_sources.
        given = dict(zip(("name", "cpp_sources", "cuda_sources"), call.args, strict=False))
        given.update({each.arg: each.value for each in call.keywords if each.arg})
        texts = {key: _text(given.get(key), constants) for key in ("cpp_sources", "cuda_sources", "functions")}
        if texts["cpp_sources"] is None or texts["cuda_sources"] is None or texts["functions"] is None:
            return None
        names = tuple(filter(str.isidentifier, re.split(r"\s+", "\n".join(texts["functions"]))))
        return InlineSources("\n".join(texts["cpp_sources"]), "\n".join(texts["cuda_sources"]), names)
    return None


def _text(node: ast.expr | None, constants: Mapping[str, ast.expr], depth: int = 0) -> list[str] | None:
    """The texts of an expression of constants; None if it is none."""
    if node is None or depth > 20:
        return [] if node is None else None
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else [] if node.value is None else None
    if isinstance(node, ast.Name):
        return _text(constants[node.id], constants, depth + 1) if node.id in constants else None
    if isinstance(node, (ast.List, ast.Tuple)):
        parts = [_text(each, constants, depth + 1) for each in node.elts]
        return None if None in parts else [text for part in parts for text in part or ()]
    if isinstance(node, ast.Dict):
        parts = [None if key is None else _text(key, constants, depth + 1) for key in node.keys]
        return None if None in parts else [text for part in parts for text in part or ()]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = (_text(each, constants, depth + 1) for each in (node.left, node.right))
        return None if left is None or right is None else ["".join([*left, *right])]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("strip", "lstrip"):
        return _text(node.func.value, constants, depth + 1)
    return None
