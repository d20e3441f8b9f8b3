"""May this forward stand in for that one? What can be told before the first call.

A kernel's forward runs with another layer's members: it may have none of its own, takes the same arguments, and reads
only what the layer has. It is written for one forward: that of the class that carries the mark, with the methods that
this forward calls.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from kernels.errors import LayerError, MappingError
from kernels.layer.mode import Mode
from kernels.support.formatting import format_names

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "ALLOWED_MEMBERS",
    "check_layer",
    "check_registered_mode",
    "class_fault",
    "lacking_attributes",
    "module_fault",
    "other_parameters",
    "remember_forward",
    "replaceable_methods",
    "unsupported",
]

#: The members that a layer may have beyond those of every `nn.Module`.
ALLOWED_MEMBERS = frozenset({"can_torch_compile", "has_backward"})

#: What a class statement itself creates, on any Python from 3.10.
_STATEMENT = frozenset(
    {
        "__abstractmethods__",
        "__annotate__",
        "__annotate_func__",
        "__annotations__",
        "__annotations_cache__",
        "__classdictcell__",
        "__conditional_annotations__",
        "__dict__",
        "__doc__",
        "__firstlineno__",
        "__module__",
        "__orig_bases__",
        "__parameters__",
        "__qualname__",
        "__static_attributes__",
        "__weakref__",
        "_abc_impl",
    }
)

#: What looks at a module, and sets nothing.
_ASKING = frozenset({"getattr", "hasattr", "isinstance", "type"})
#: What runs later, or not for each call.
_NOT_AT_ONCE = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

_METHODS = (FunctionType, property, classmethod, staticmethod, functools.cached_property)

#: The forward and the class's own methods that each class had when it was marked.
_marked: WeakKeyDictionary[type, dict[str, Any]] = WeakKeyDictionary()


def check_layer(layer: Any, replaced: Any, origin: str) -> None:
    """Check that a kernel's layer may replace another layer's forward.

    Args:
        layer: The kernel's attribute with the layer's name.
        replaced: The class of the layer whose forward is replaced.
        origin: Where `layer` comes from, for the message.

    Raises:
        LayerError: It is not a subclass of `nn.Module`, has a constructor or new members, or its forward takes other
            parameters.
    """
    from torch import nn

    if not inspect.isclass(layer) or not issubclass(layer, nn.Module):
        raise LayerError(f"{origin}: expected a subclass of torch.nn.Module, got {layer!r}.")
    cls: Any = layer
    if cls.__init__ is not nn.Module.__init__ or cls.__new__ is not nn.Module.__new__:
        raise LayerError(
            f"{origin} must not override the constructor of nn.Module: it runs with the members of the layer that it "
            "replaces."
        )
    own = {name for base in cls.__mro__ if base not in nn.Module.__mro__ for name in vars(base)}
    new = sorted(own - set(dir(nn.Module)) - _STATEMENT - ALLOWED_MEMBERS)
    if new:
        raise LayerError(
            f"{origin} must not contain additional members, but has {', '.join(new)}; put them outside the class."
        )
    broken, _ = _compared(cls.forward, replaced.forward)
    if broken is not None:
        raise LayerError(f"{origin} {broken}.")


def other_parameters(layer: Any, replaced: Any) -> str | None:
    """How the same call would mean something else to a kernel's forward, or None.

    Args:
        layer: A kernel's layer that `check_layer` accepts.
        replaced: The class of the layer whose forward is replaced.
    """
    return _compared(layer.forward, replaced.forward)[1]


def check_registered_mode(layer: type[nn.Module], layer_name: str, mode: Mode, origin: str) -> None:
    """Check that a layer supports the mode that it is registered for.

    Raises:
        MappingError: It does not, so the mapping is wrong.
    """
    lacking = unsupported(layer, mode)
    if lacking is not None:
        raise MappingError(f"{origin} {lacking}, but is registered for {layer_name!r} with the mode {mode}.")


def unsupported(layer: type[nn.Module], mode: Mode) -> str | None:
    """What a mode needs and a layer does not support, or None."""
    if Mode.TRAINING in mode and not getattr(layer, "has_backward", True):
        return "does not support backward"
    if Mode.TORCH_COMPILE in mode and not getattr(layer, "can_torch_compile", False):
        return "does not support torch.compile"
    return None


# Kept by the forwards, never by the classes: a library may replace the forward of a class, and mark it again.
@lru_cache(maxsize=4096)
def _compared(kernel_forward: Any, own_forward: Any) -> tuple[str | None, str | None]:
    """The rule that a kernel's forward breaks, and how the same call would mean something else to it."""
    try:
        kernel, own = inspect.signature(kernel_forward), inspect.signature(own_forward)
    except (TypeError, ValueError) as error:
        return f"has a forward whose parameters cannot be compared with those of the layer: {error}", None
    parameters, others = list(kernel.parameters.values()), list(own.parameters.values())
    compared = f"forward{kernel} cannot replace {getattr(own_forward, '__qualname__', 'forward')}{own}"
    if len(parameters) != len(others):
        return f"has a different number of arguments: {compared}", None
    places = {each.name: place for place, each in enumerate(others)}
    meanings = []
    for place, (parameter, other) in enumerate(zip(parameters, others, strict=True)):
        name = parameter.name
        if parameter.kind != other.kind:
            kinds = f"{name}: {parameter.kind.description}, {other.name}: {other.kind.description}"
            return f"has different kinds of arguments ({kinds}): {compared}", None
        if parameter.kind is not parameter.KEYWORD_ONLY:
            if places.get(name, place) != place:
                meanings.append(
                    f"the kernel's forward takes {name!r} as argument {place}, the layer's as {places[name]}"
                )
        elif name not in places:
            meanings.append(f"the kernel's forward has a keyword-only parameter {name!r}, which the layer's has not")
        else:
            other = others[places[name]]
        if _is_other_default(parameter.default, other.default):
            defaults = f"{parameter.default!r} in the kernel's forward, {other.default!r} in the layer's"
            meanings.append(f"the default of {name!r} is {defaults}")
    return None, meanings[0] if meanings else None


def _is_other_default(kernel: Any, own: Any) -> bool:
    """Whether a call that leaves an argument out means something else to the kernel."""
    empty = inspect.Parameter.empty
    if kernel is own or kernel is empty or own is empty:  # a call without the argument fails, or the layer has none
        return False
    try:
        return not bool(kernel == own or (kernel != kernel and own != own))  # or both are NaN
    except Exception:  # noqa: BLE001 - values of any type, such as a tensor
        return True


def remember_forward(cls: type) -> None:
    """Note the forward of a class that is being marked, and its methods: a kernel is written for these."""
    own = {name: member for name, member in vars(cls).copy().items() if isinstance(member, _METHODS)}
    _marked[cls] = own | {"forward": _found(cls, "forward")}


def class_fault(cls: type) -> str | None:
    """Why no instance of a class may get a kernel that is mapped to its mark, or None.

    Args:
        cls: A class that is marked, or inherits a mark.
    """
    owner = _owner(cls)
    written = f"the kernel is written for that of {owner.__qualname__}, which carries the mark"
    noted = _marked.get(owner, {})
    for name in ("forward", *_methods(cls)):
        called = "" if name == "forward" else ", which forward calls,"
        member = _found(owner, name)
        if _found(cls, name) is not member:
            return f"{_definer(cls, name).__qualname__} overrides {name}{called or ','} and {written}"
        if noted.get(name, member) is not member:
            return f"{name} of {owner.__qualname__}{called} was replaced after the class was marked"
    return None


def module_fault(module: nn.Module, own_forward: Any, methods: Sequence[str]) -> str | None:
    """Why one module may not get the kernel of its class, or None.

    Args:
        module: A layer.
        own_forward: The forward that is set on it, below hooks, other than by `kernelize`; None without one.
        methods: The `replaceable_methods` of its class.
    """
    if own_forward is not None and getattr(own_forward, "__func__", None) is not _found(type(module), "forward"):
        return "a forward of its own is set on this module"
    for name in methods:
        if name in module.__dict__:
            return f"{name}, which forward calls, is set on this module"
    return None


def replaceable_methods(cls: type) -> list[str]:
    """The methods that the forward of a class uses, in whose place a module may have attributes of its own.

    Args:
        cls: A class that is marked, or inherits a mark.
    """
    return [name for name in _methods(cls) if not isinstance(_found(cls, name), functools.cached_property)]


def _methods(cls: type) -> list[str]:
    """The methods and properties that the forward of a class with its mark uses, and those that these use."""
    from torch import nn

    owner = _owner(cls)
    found: list[str] = []
    pending = [_found(owner, "forward")]
    while pending:
        function = _function(pending.pop())
        for name in _names(function.__code__) if function is not None else ():
            member = _found(owner, name)
            known = name in ("forward", *found) or _definer(owner, name) in nn.Module.__mro__
            if isinstance(member, _METHODS) and not known:
                found.append(name)
                pending.append(member)
    return found


@lru_cache(maxsize=4096)
def _names(code: CodeType) -> tuple[str, ...]:
    """The names in a code, sorted, with its texts (for `getattr`) and the names in the functions in it."""
    names = {*code.co_names, *(each for each in code.co_consts if isinstance(each, str))}
    return tuple(sorted(names.union(*(_names(each) for each in code.co_consts if isinstance(each, CodeType)))))


def lacking_attributes(forward: Callable[..., Any], modules: Sequence[nn.Module]) -> dict[int, str]:
    """What a kernel's forward reads of modules that do not have it: a reason for each such module, by its place.

    Args:
        forward: The kernel's forward.
        modules: Modules of one class.
    """
    cls: Any = type(modules[0])
    wanted = [name for name in _reads(forward) if _found(cls, name) is None]
    found: dict[int, str] = {}
    for place, module in enumerate(modules if wanted else ()):
        missing = [name for name in wanted if not _has(module, name)]
        if missing:
            read = format_names(f"self.{name}" for name in missing)
            found[place] = f"the kernel's forward reads {read}, which {cls.__qualname__} does not have"
    return found


@lru_cache(maxsize=4096)
def _reads(forward: Any) -> tuple[str, ...]:
    """The attributes of `self` that a forward loads before its first branch, sorted; none without its source.

    Not those that it sets, or has the name of as a text (`hasattr(self, "eps")`), and none after it gives `self` to
    other code, which may set them. If a layer lacks what is read later, its first call raises an `AttributeError`.

    Args:
        forward: A forward, as its class has it.
    """
    function = _function(forward)
    if function is None or not function.__code__.co_argcount:
        return ()
    code = function.__code__
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    if not isinstance(tree, ast.FunctionDef) or tree.name != code.co_name:
        return ()
    loaded: set[str] = set()
    for node in _always_run(tree.body, code.co_varnames[0]):
        if not isinstance(node, ast.Attribute) or node.attr == "__dict__":
            break
        loaded.add(node.attr)
    for each in ast.walk(tree):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            loaded.discard(each.value)
        elif isinstance(each, ast.Attribute) and not isinstance(each.ctx, ast.Load):
            loaded.discard(each.attr)
    # A file that was changed since has other names than the code that runs.
    return tuple(sorted(loaded.intersection(code.co_names)))


def _always_run(statements: list[ast.stmt], name: str) -> Iterator[ast.expr]:
    """The attributes of a name that every call of a body evaluates, in order, and the name where it stands alone."""
    for statement in statements:
        yield from _evaluated(statement, name)
        is_branch = hasattr(statement, "body") and not isinstance(statement, (ast.FunctionDef, ast.ClassDef))
        if is_branch or isinstance(statement, (ast.Match, ast.Return, ast.Raise)):
            return


def _evaluated(node: ast.AST, name: str) -> Iterator[ast.expr]:
    parts = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Name) and node.id == name:
        yield node
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name:
        yield node
        return
    elif isinstance(node, _NOT_AT_ONCE):
        return
    elif isinstance(node, (ast.IfExp, ast.Assert)):
        parts = [node.test]
    elif isinstance(node, ast.BoolOp):
        parts = [node.values[0]]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _ASKING:
        parts = [*node.args[1:]]
    elif isinstance(node, ast.stmt):
        parts = [part for part in parts if isinstance(part, (ast.expr, ast.withitem))]
    for part in parts:
        yield from _evaluated(part, name)


def _function(member: Any) -> FunctionType | None:
    """The function of a method or a property, below its decorators; None if it is not written in Python."""
    if isinstance(member, property):
        member = member.fget
    elif isinstance(member, functools.cached_property):
        member = member.func
    try:
        function = inspect.unwrap(getattr(member, "__func__", member))
    except ValueError:  # it wraps itself
        return None
    return function if isinstance(function, FunctionType) else None


def _owner(cls: type) -> type:
    """The class whose mark a class has."""
    return _definer(cls, "kernel_layer_name")


def _found(cls: type, name: str) -> Any:
    """A class's attribute as it is defined, or None."""
    return vars(_definer(cls, name)).get(name)


def _definer(cls: type, name: str) -> type:
    return next((base for base in cls.__mro__ if name in vars(base)), cls)


def _has(module: nn.Module, name: str) -> bool:
    try:
        return hasattr(module, name)
    except Exception:  # noqa: BLE001 - a third-party `__getattr__`
        return False
