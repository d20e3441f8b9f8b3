"""What a C++ or CUDA file has: its functions, headers and registrations, read without a compiler and never run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["CppFunction", "CppParameter", "CppSource", "read_cpp"]

#: Words before a function's name that are no part of its return type.
_SPECIFIERS = re.compile(
    r"static|inline|extern|constexpr|__(?:host|device|global|forceinline|noinline|inline)__|TORCH_API|C10_EXPORT|"
    r"C10_HOST_DEVICE|virtual|friend|explicit"
)
_NOT_FUNCTIONS = re.compile(r"if|for|while|switch|return|sizeof|decltype|defined|operator|main")

# Comments, and the literals in which their signs mean nothing. One that is not closed ends with its line or the file:
# if it matched nothing, each of its signs would be the start of another search.
_LEXEMES = re.compile(
    r'//(?:[^\n\\]|\\.)*|/\*.*?(?:\*/|\Z)|R"([^()\\\s]{0,16})\(.*?(?:\)\1"|\Z)|"(?:[^"\\\n]|\\.)*"?|'
    r"(?<![0-9a-fA-F])'(?:[^'\\\n]|\\.){0,20}'",
    re.DOTALL,
)
_STRINGS = re.compile(r'"((?:[^"\\\n]|\\.)*)"')

_ATTRIBUTES = re.compile(r"\b(?:__launch_bounds__|__attribute__|__declspec|alignas)\s*(?=\()")

#: The longest text before a function's body, in characters: no real one is near it, and the search for its parts in
#: text without end takes its square.
_MAX_HEAD = 5_000


@dataclass(frozen=True)
class CppParameter:
    """A parameter of a C++ function.

    Attributes:
        type: Its type, with one space between words.
        name: Its name; empty if it has none.
        default: The text of its default; empty if it has none.
    """

    type: str
    name: str
    default: str = ""


@dataclass(frozen=True)
class CppFunction:
    """A function that a C++ file defines or declares.

    Attributes:
        name: Its name, without namespaces.
        scope: The namespaces around it, `a::b`; empty at the top.
        returns: Its return type.
        parameters: Its parameters, in order.
        is_kernel: Whether it is `__global__`: device code that a launch starts.
        is_template: Whether it is a template.
        is_declaration: Whether it has no body here.
        line: The line of its name, counted from 1.
        body: Its body, without comments and texts; empty for a declaration.
    """

    name: str
    scope: str
    returns: str
    parameters: tuple[CppParameter, ...]
    is_kernel: bool = False
    is_template: bool = False
    is_declaration: bool = False
    line: int = 1
    body: str = field(default="", repr=False, compare=False)

    @property
    def qualified(self) -> str:
        """Its name with its namespaces."""
        return f"{self.scope}::{self.name}" if self.scope else self.name


@dataclass(frozen=True)
class CppSource:
    """What a C++ file has.

    Attributes:
        functions: Its functions, in order; of one that is declared and defined, the definition.
        includes: The files of its `#include`, as `"name"` or `<name>`.
        python_names: What `PYBIND11_MODULE` offers: names in Python, and the C++ function of each.
        python_defaults: The defaults of `py::arg("name") = value`, by the name in Python: one for each `py::arg`.
        schemas: The operators that `TORCH_LIBRARY` defines, as written.
        implementations: The operators that `TORCH_LIBRARY_IMPL` implements, and the C++ function of each.
        aliases: Types that the file names: `typedef float real;`, `using real = float;`.
        on_default_stream: The lines of launches that name no stream.
    """

    functions: tuple[CppFunction, ...]
    includes: tuple[str, ...]
    python_names: dict[str, str]
    python_defaults: dict[str, tuple[str, ...]]
    schemas: tuple[str, ...]
    implementations: dict[str, str]
    aliases: dict[str, str]
    on_default_stream: tuple[int, ...]


def read_cpp(text: str) -> CppSource:
    """Find the functions and registrations of a C++ file. Macros are not expanded, and both sides of `#if` are read.

    Args:
        text: The file's text.

    Example:
        >>> source = read_cpp("namespace a { int add(int x, int y = 1) { return x + y; } }")
        >>> source.functions[0].qualified, [each.type for each in source.functions[0].parameters]
        ('a::add', ['int', 'int'])
    """
    # Of the same length, so that a place in one is the same place in the others.
    uncommented = _LEXEMES.sub(lambda match: _blank(match[0]) if match[0][:2] in ("//", "/*") else match[0], text)
    includes = re.findall(r'^[ \t]*#[ \t]*include[ \t]*(<[^>\n]+>|"[^"\n]+")', uncommented, re.MULTILINE)
    code = _LEXEMES.sub(
        lambda match: '"' + _blank(match[0])[1:-1] + '"' if match[0][-1] == '"' != match[0] else match[0], uncommented
    )
    code = re.sub(
        r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", lambda match: _blank(match[0]), code, flags=re.MULTILINE | re.DOTALL
    )
    functions: dict[tuple[str, str, int], CppFunction] = {}
    macros: list[tuple[str, str]] = []
    line = counted = 0
    for scope, head, start, body in _declarations(code):
        macro = re.match(r"\s*(PYBIND11_MODULE|TORCH_LIBRARY\w*)\s*\(", head)
        if macro:
            macros.append((macro[1], uncommented[start : start + len(head) + len(body)]))
            continue
        place = start + len(head) - len(head.lstrip())
        line, counted = line + code.count("\n", counted, place), place
        function = _function(head, scope, body, 1 + line)
        if function is not None:
            key = (function.scope, function.name, len(function.parameters))
            if key not in functions or functions[key].is_declaration:
                functions[key] = function
    defined = [_registered(body, "def") for name, body in macros if name == "PYBIND11_MODULE"]
    implemented = [_registered(body, "impl") for name, body in macros if name.startswith("TORCH_LIBRARY_IMPL")]
    return CppSource(
        functions=tuple(functions.values()),
        includes=tuple(dict.fromkeys(includes)),
        python_names={name: function for each in defined for name, function in each.items()},
        python_defaults=dict(_python_defaults("".join(body for name, body in macros if name == "PYBIND11_MODULE"))),
        schemas=tuple(_schemas("".join(body for name, body in macros if "IMPL" not in name and "TORCH" in name))),
        implementations={name: function for each in implemented for name, function in each.items()},
        aliases=_aliases(code),
        on_default_stream=tuple(_launches_without_stream(code)),
    )


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _declarations(code: str) -> Iterator[tuple[str, str, int, str]]:
    """Each declaration at the level of a namespace: its scope, text, start and body (empty without one)."""
    scopes: list[str] = []  # the namespaces around this place; an `extern "C"` block is an empty name
    start = place = 0
    while place < len(code):
        character = code[place]
        if character in "({[" and (character != "{" or not _opens_scope(code[start:place])):
            end = _closing(code, place)
            if character == "{":
                head, body = code[start:place], code[place:end]
                yield "::".join(filter(None, scopes)), head, start, body
                start = end
            place = end
        elif character == "{":
            scopes.append(_opened_scope(code[start:place]))
            place += 1
            start = place
        else:
            if character == ";":
                yield "::".join(filter(None, scopes)), code[start:place], start, ""
            place += 1
            if character == "}" and scopes:
                scopes.pop()
            if character in ";}":
                start = place


def _opens_scope(head: str) -> bool:
    return re.search(r'(?:^|\s)(?:namespace\b[^()=;]*|extern\s+" *"\s*)$', head[-_MAX_HEAD:].strip()) is not None


def _opened_scope(head: str) -> str:
    named = re.search(r"namespace\s+([\w:]+)\s*$", head[-_MAX_HEAD:].strip())
    return named[1] if named else ""


def _closing(code: str, place: int) -> int:
    """The place after the bracket that closes the one at `place`; the end if there is none."""
    depth = 0
    for match in re.compile(r'"[^"]*"|\'[^\']*\'|[(){}\[\]]').finditer(code, place):
        if match[0] in "({[":
            depth += 1
        elif match[0] in ")}]":
            depth -= 1
            if depth == 0:
                return match.end()
    return len(code)


def _function(head: str, scope: str, body: str, line: int) -> CppFunction | None:
    if len(head) > _MAX_HEAD:
        return None
    head = re.sub(r"\[\[.*?\]\]", " ", head, flags=re.DOTALL)
    is_template = re.match(r"\s*template\b", head) is not None
    head = _without_template(head)
    while (attribute := _ATTRIBUTES.search(head)) is not None:
        head = f"{head[: attribute.start()]} {head[_closing(head, attribute.end()) :]}"
    match = re.match(r'(?P<before>(?:[\w:&*,<>\s]|" *")*?[\s&*>])(?P<name>[A-Za-z_]\w*)\s*\(', head)
    if match is None or _NOT_FUNCTIONS.fullmatch(match["name"]):
        return None
    end = _closing(head, match.end() - 1)
    after = head[end:].strip()
    trailing = re.match(r"(?:noexcept\s*)?->\s*(.+)", after, re.DOTALL)
    if after and not trailing and re.fullmatch(r"(?:noexcept|const|override|\s)+", after) is None:
        return None
    words = _spaced(re.sub(r'" *"', " ", match["before"])).split(" ")
    returns = " ".join(word for word in words if _SPECIFIERS.fullmatch(word) is None)
    if not returns or {"typedef", "using", "class", "struct", "return", "new", "delete", "else"} & set(words):
        return None
    if "__device__" in words and "__host__" not in words:
        return None
    parameters = tuple(map(_parameter, _split(head[match.end() : end - 1])))
    if parameters == (CppParameter("void", ""),):
        parameters = ()
    return CppFunction(
        name=match["name"],
        scope=scope,
        returns=_spaced(trailing[1]) if trailing and returns == "auto" else returns,
        parameters=parameters,
        is_kernel="__global__" in words,
        is_template=is_template,
        is_declaration=not body,
        line=line,
        body=body,
    )


def _without_template(head: str) -> str:
    while (match := re.match(r"\s*template\s*<", head)) is not None:
        depth, place = 1, match.end()
        while place < len(head) and depth:
            depth += {"<": 1, ">": -1}.get(head[place], 0)
            place += 1
        head = head[place:]
    return head


def _parameter(text: str) -> CppParameter:
    declared, _, default = text.partition("=")
    declared = _spaced(re.sub(r"\b(?:__restrict__|__restrict|__grid_constant__)\b", " ", declared))
    array = re.search(r"\s*\[[^\]]*\]$", declared)
    if array:
        declared = declared[: array.start()]
    match = re.fullmatch(r"(.*[\s&*>])([A-Za-z_]\w*)", declared)
    # `unsigned int` has no name; neither has `float`.
    unnamed = match is None or match[2] in ("int", "long", "char", "short", "double")
    type_, name = (declared, "") if unnamed or match is None else (match[1], match[2])
    return CppParameter(_spaced(type_ + ("*" if array else "")), name, _spaced(default))


def _split(text: str) -> list[str]:
    """The parts between commas that no bracket holds."""
    parts, depth, start = [], 0, 0
    for place, character in enumerate(text):
        if character in "(<{[":
            depth += 1
        elif character in ")>}]":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    parts.append(text[start:])
    return [part for part in parts if part.strip()]


def _spaced(text: str) -> str:
    """A type as it is usually written: `const T&`, `a::B<T, U>*`."""
    text = " ".join(text.split())
    text = re.sub(r"\s*([&*<>,]|::)\s*", r"\1", text)
    text = re.sub(r"([&*>])(?=\w)", r"\1 ", text)
    return text.replace(",", ", ")


def _registered(body: str, method: str) -> dict[str, str]:
    """The names and functions of `m.def("name", &function, …)` or `m.impl("name", TORCH_FN(function))`."""
    wrapped = r"(?:&|TORCH_FN\(|torch::wrap_pybind_function\(|static_cast<(?:(?!static_cast<)[^;])*?>\(|\s)*"
    name = r'(?:TORCH_SELECTIVE_NAME\(\s*)?"(\w+)"\s*\)?'
    found = re.findall(rf"\.\s*{method}\s*\(\s*{name}\s*,{wrapped}([A-Za-z_][\w:]*)", body)
    return {name: function.rpartition("::")[2] for name, function in found}


def _python_defaults(body: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    for match in re.finditer(r'\.\s*def\s*\(\s*"(\w+)"([^;]*)', body):
        arguments = re.findall(
            r'(?:arg\(\s*"\w+"\s*\)|"\w+"_a)(?:\.noconvert\(\w*\))?\s*(?:=\s*([^,;)]+(?:\(\))?))?', match[2]
        )
        yield match[1], tuple(_spaced(each) for each in arguments)


def _schemas(body: str) -> Iterator[str]:
    for match in re.finditer(r"\.\s*def\s*\(\s*((?:\"(?:[^\"\\\n]|\\.)*\"[\s\\]*)+)", body):
        text = "".join(_STRINGS.findall(match[1]))
        if "(" in text:
            yield " ".join(text.split())


def _aliases(code: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for declared in re.findall(r"\btypedef\s([\w:\s]{1,500});", code):
        *type_, name = declared.split() or [""]
        if type_ and name.isidentifier():
            found.setdefault(name, _spaced(" ".join(type_)))
    for name, declared in re.findall(r"\busing\s+(\w+)\s*=([\w:\s]{1,500});", code):
        if declared.strip():
            found.setdefault(name, _spaced(declared))
    return found


def _launches_without_stream(code: str) -> Iterator[int]:
    for match in re.finditer(r"<<<((?:(?!<<<).){0,5000}?)>>>", code, re.DOTALL):
        if len(_split(match[1])) < 4:
            yield 1 + code.count("\n", 0, match.start())
