"""Operators from C++ functions: the schema, and the C++ that converts the arguments and calls the function."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kernels.authoring.scaffold.adopt.cpp_source import CppFunction, CppParameter, CppSource

__all__ = ["LAUNCH", "AdoptedOperator", "NotMapped", "OperatorArgument", "operator_of", "operators_of_schemas"]

_TENSOR = r"(?:torch|at)::Tensor"
_OPTIONAL = r"(?:std|c10|torch)::optional"
_WHOLE = re.compile(
    r"(?:unsigned |signed )?(?:int|long|long long|long int|short|char)|unsigned|u?int(?:8|16|32|64)?_t|size_t|ssize_t|"
    r"std::size_t|std::u?int(?:8|16|32|64)_t|uint|index_t"
)
_REAL = re.compile(r"float|double")
_ELEMENT = re.compile(
    rf"{_REAL.pattern}|{_WHOLE.pattern}|bool|half|__half|nv_bfloat16|__nv_bfloat16|hip_bfloat16|__hip_bfloat16|"
    r"(?:at|c10)::(?:Half|BFloat16)|void"
)

#: The arguments with which Python launches a `__global__` function.
LAUNCH = ("grid", "block", "shared_bytes")

#: The type in Python of each type in a schema.
_PYTHON = {
    "Tensor": "torch.Tensor",
    "Tensor?": "torch.Tensor | None",
    "Tensor[]": "list[torch.Tensor]",
    "Scalar": "float",
    "int": "int",
    "int?": "int | None",
    "int[]": "list[int]",
    "float": "float",
    "float?": "float | None",
    "float[]": "list[float]",
    "bool": "bool",
    "bool?": "bool | None",
    "str": "str",
    "ScalarType": "torch.dtype",
    "ScalarType?": "torch.dtype | None",
}


#: Names of the module in which an operator's function stands.
_TAKEN = frozenset({"ops", "torch"})

#: Python's own limit in older versions; no operator of Torch has a third of it.
_MAX_PARAMETERS = 255


class NotMapped(Exception):
    """A function that cannot become an operator; its message is the reason."""


@dataclass(frozen=True)
class OperatorArgument:
    """An argument of an operator.

    Attributes:
        name: Its name in the schema and in Python.
        type: Its type in a schema, without what it mutates: `Tensor`, `float`.
        is_written: Whether the function may write to it.
        default: Its default as Python writes it; empty if it has none.
        cpp: Its type as the dispatcher passes it.
        passed: The C++ expression that the function is called with.
    """

    name: str
    type: str
    is_written: bool = False
    default: str = ""
    cpp: str = ""
    passed: str = ""

    @property
    def python(self) -> str:
        """Its type in Python."""
        return _PYTHON.get(self.type, "object")


@dataclass(frozen=True)
class AdoptedOperator:
    """An operator of a kernel.

    Attributes:
        name: Its name.
        arguments: Its arguments, in order.
        returns: What it returns in a schema: `Tensor`, `()`.
        function: The C++ function behind it; None if the file registers the operator itself.
        notes: What its author should look at.
    """

    name: str
    arguments: tuple[OperatorArgument, ...]
    returns: str
    function: CppFunction | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def schema(self) -> str:
        """Its schema, as `TORCH_LIBRARY` takes it."""
        written = iter("abcdefghijklmnopqrstuvwxyz")
        parts = []
        for each in self.arguments:
            alias = f"({next(written, 'z')}!)" if each.is_written else ""
            type_ = each.type.replace("Tensor", f"Tensor{alias}", 1)
            parts.append(f"{type_} {each.name}{f'={each.default}' if each.default else ''}")
        return f"{self.name}({', '.join(parts)}) -> {self.returns}"


def operator_of(name: str, function: CppFunction, source: CppSource) -> AdoptedOperator:
    """The operator that calls a C++ function.

    Args:
        name: The operator's name.
        function: The function.
        source: The file that it is from.

    Raises:
        NotMapped: The function cannot become an operator.

    Example:
        >>> from kernels.authoring.scaffold.adopt.cpp_source import read_cpp
        >>> source = read_cpp("torch::Tensor scale(torch::Tensor x, float by = 2) { return x * by; }")
        >>> operator_of("scale", source.functions[0], source).schema
        'scale(Tensor x, float by=2) -> Tensor'
    """
    if function.is_template:
        raise NotMapped("it is a template; write a function that calls it with a type")
    if keyword.iskeyword(name):
        raise NotMapped("its name is a keyword of Python")
    if name in _TAKEN or name.startswith("__"):
        raise NotMapped(f"the package uses the name {name!r} itself")
    if len(function.parameters) > _MAX_PARAMETERS:
        raise NotMapped(f"it has {len(function.parameters)} parameters")
    returns = "()" if function.returns == "void" else _returned(_resolved(function.returns, source))
    names = _names(function.parameters)
    arguments = tuple(
        _argument(each, name, returns == "()", source) for each, name in zip(function.parameters, names, strict=True)
    )
    # Python has no parameter without a default after one that has one.
    defaults = [each.default for each in arguments]
    if "" in defaults:
        last = len(defaults) - 1 - defaults[::-1].index("")
        arguments = tuple(replace(each, default="") if at < last else each for at, each in enumerate(arguments))
    notes = []
    guessed = [each.name for each, parameter in zip(arguments, function.parameters, strict=True)
               if each.is_written and "*" not in parameter.type and "&" not in parameter.type]  # fmt: skip
    if guessed:
        notes.append(
            f"{name} returns nothing, so {', '.join(guessed)} may be written: in its schema, remove the mark `(a!)` "
            "of a tensor that is only read"
        )
    if function.is_kernel:
        if returns != "()":
            raise NotMapped(f"a __global__ function that returns {function.returns}")
        launch = (("int[]", "at::IntArrayRef", ""), ("int[]", "at::IntArrayRef", ""), ("int", "int64_t", "0"))
        arguments += tuple(
            OperatorArgument(_free(each, names), type_, cpp=cpp, default=default)
            for each, (type_, cpp, default) in zip(LAUNCH, launch, strict=True)
        )
    return AdoptedOperator(name, arguments, returns, function, tuple(notes))


def operators_of_schemas(schemas: Sequence[str]) -> tuple[list[AdoptedOperator], list[str]]:
    """The operators of schemas that a file defines itself, and those that Python gets no function for."""
    found, left = [], []
    for schema in schemas:
        match = re.fullmatch(r"(\w+)\((.*)\) *-> *(.+)", schema)
        if match is None:
            left.append(schema.split("(")[0])
            continue
        arguments = []
        for part in filter(None, (each.strip() for each in match[2].split(","))):
            declared, _, default = part.partition("=")
            type_, _, name = declared.rpartition(" ")
            if part != "*" and name.isidentifier() and not keyword.iskeyword(name):
                plain = re.sub(r"\(\w+!?\)", "", type_)
                literal = default if re.fullmatch(r"-?[0-9][0-9.eE+-]*|True|False|None", default) else ""
                arguments.append(OperatorArgument(name, plain, is_written="!" in type_, default=literal))
        found.append(AdoptedOperator(match[1], tuple(arguments), match[3]))
    return found, left


def _names(parameters: Sequence[CppParameter]) -> list[str]:
    names: list[str] = []
    for number, each in enumerate(parameters):
        name = each.name or f"argument_{number}"
        name = f"{name}_" if keyword.iskeyword(name) or name in ("self", "torch", "ops") else name
        names.append(_free(name, names))
    return names


def _free(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _resolved(type_: str, source: CppSource) -> str:
    """A type without the names that the file gives it."""
    type_ = re.sub(r"\b(?:ATen|c10)::Tensor\b", "at::Tensor", type_)
    return re.sub(r"(?<![\w:])Tensor\b", "at::Tensor", re.sub(r"(?<![\w:])optional<", "std::optional<", type_))


def _returned(type_: str) -> str:
    plain = _plain(type_)
    if re.fullmatch(_TENSOR, plain):
        return "Tensor"
    if re.fullmatch(rf"(?:std::vector<{_TENSOR}>|(?:torch|at)::TensorList|c10::List<{_TENSOR}>)", plain):
        return "Tensor[]"
    if match := re.fullmatch(r"std::(?:tuple|pair)<(.+)>", plain):
        parts = [part.strip() for part in match[1].split(",")]
        if all(re.fullmatch(_TENSOR, part) for part in parts):
            return f"({', '.join(['Tensor'] * len(parts))})"
    if _WHOLE.fullmatch(plain):
        return "int"
    if _REAL.fullmatch(plain):
        return "float"
    if plain == "bool":
        return "bool"
    raise NotMapped(f"no schema has its return type {type_}")


def _plain(type_: str) -> str:
    return re.sub(r"\bconst\b ?|&+$", "", type_.removesuffix(" const")).strip()


def _argument(parameter: CppParameter, name: str, returns_nothing: bool, source: CppSource) -> OperatorArgument:
    type_ = _resolved(parameter.type, source)
    type_ = re.sub(r"(?<=\*)\s*const\b", "", type_)  # of the pointer, not of what it points to
    plain = _plain(type_)
    is_constant = re.search(r"\bconst\b", type_) is not None
    default = _default(parameter.default)
    if re.fullmatch(_TENSOR, plain):
        written = not is_constant and (returns_nothing or type_.endswith("&"))
        passed = name
        if type_.endswith("&") and not is_constant:
            passed = f"const_cast<at::Tensor&>({name})"
        return OperatorArgument(name, "Tensor", written, "", "const at::Tensor&", passed)
    if re.fullmatch(rf"{_OPTIONAL}<{_TENSOR}>", plain):
        return OperatorArgument(name, "Tensor?", False, default, "const std::optional<at::Tensor>&", name)
    if re.fullmatch(rf"std::vector<{_TENSOR}>", plain):
        return OperatorArgument(name, "Tensor[]", False, "", "at::TensorList", f"{name}.vec()")
    if re.fullmatch(r"(?:torch|at)::TensorList", plain):
        return OperatorArgument(name, "Tensor[]", False, "", "at::TensorList", name)
    if re.fullmatch(r"(?:torch|at|c10)::IntArrayRef", plain):
        return OperatorArgument(name, "int[]", False, "", "at::IntArrayRef", name)
    if match := re.fullmatch(r"std::vector<(.+)>", plain):
        if match[1] in ("int64_t", "long", "int"):
            vector = f"std::vector<{match[1]}>({name}.begin(), {name}.end())"
            return OperatorArgument(name, "int[]", False, "", "at::IntArrayRef", vector)
        if match[1] in ("float", "double"):
            vector = f"std::vector<{match[1]}>({name}.begin(), {name}.end())"
            return OperatorArgument(name, "float[]", False, "", "at::ArrayRef<double>", vector)
    if re.fullmatch(r"(?:torch|at|c10)::Scalar", plain):
        return OperatorArgument(name, "Scalar", False, default, "const at::Scalar&", name)
    if re.fullmatch(r"(?:torch|at|c10)::(?:ScalarType|Dtype)", plain):
        return OperatorArgument(name, "ScalarType", False, "", "at::ScalarType", name)
    if plain == "std::string":
        return OperatorArgument(name, "str", False, "", "c10::string_view", f"std::string({name})")
    if plain == "bool":
        return OperatorArgument(name, "bool", False, default, "bool", name)
    if match := re.fullmatch(rf"{_OPTIONAL}<(.+)>", plain):
        for pattern, schema, cpp in ((_WHOLE, "int?", "int64_t"), (_REAL, "float?", "double")):
            if pattern.fullmatch(match[1]) and match[1] in (cpp, "long"):
                return OperatorArgument(name, schema, False, default, f"std::optional<{cpp}>", name)
        if match[1] == "bool":
            return OperatorArgument(name, "bool?", False, default, "std::optional<bool>", name)
    if plain.endswith("*") and "*" not in plain[:-1]:
        element = plain[:-1].strip()
        if _ELEMENT.fullmatch(source.aliases.get(element, element)):
            pointed = f"const {element}" if is_constant else element
            passed = f'data_of<{pointed}>({name}, "{name}", guard.current_device())'
            return OperatorArgument(name, "Tensor", not is_constant, "", "const at::Tensor&", passed)
    if _WHOLE.fullmatch(source.aliases.get(plain, plain)):
        return OperatorArgument(name, "int", False, default, "int64_t", f"static_cast<{plain}>({name})")
    if _REAL.fullmatch(source.aliases.get(plain, plain)):
        return OperatorArgument(name, "float", False, default, "double", f"static_cast<{plain}>({name})")
    raise NotMapped(f"no schema has the type {parameter.type} of its parameter {parameter.name or '(unnamed)'}")


def _default(text: str) -> str:
    if text in ("true", "false"):
        return text.capitalize()
    if re.fullmatch(r"(?:(?:c10|std|torch)::)?(?:nullopt|optional<.*>\(\))|\{\}", text):
        return "None"
    number = re.fullmatch(r"(-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)[fFlLuU]*", text)
    return number[1] if number else ""
