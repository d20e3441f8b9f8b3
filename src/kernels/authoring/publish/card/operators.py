"""The operators that a kernel's C++ sources register with Torch, by their schemas. The sources are only read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from kernels.authoring.compile.build_toml.model import KernelSource
from kernels.support.files import read_bounded

__all__ = ["operator_schemas", "schemas_in"]

_MAX_SOURCE_BYTES = 4 * 1024 * 1024
_MAX_SCHEMA = 2000
_SUFFIXES = frozenset({".cpp", ".cc", ".cxx", ".cu", ".mm", ".hip", ".sycl"})

#: What begins a comment or a literal in C++; and a plain literal, whose text may have escapes.
_SPECIAL = re.compile(r'//|/\*|R"(?P<mark>[^()\s\\"]{0,16})\(|"')
_PLAIN = re.compile(r'((?:[^"\\\n]|\\.)*)"', re.S)
_DEFINED = re.compile(r"\.\s*def\s*\(\s*")
_SCHEMA = re.compile(r"(?:\w+::)?(?P<name>\w[\w.]*)\s*\([^()]*(?:\([^()]*\)[^()]*)*\)\s*->\s*\S.*", re.S)

#: The characters before a literal in which `.def(` is looked for.
_BEFORE = 200


def operator_schemas(source: KernelSource) -> list[str]:
    """The schemas of the operators that a kernel registers, without their namespace, sorted by name.

    Args:
        source: The sources; files that are missing or too large are left out.
    """
    found: dict[str, str] = {}
    for path in _files(source):
        try:
            found |= schemas_in(read_bounded(path, _MAX_SOURCE_BYTES).decode("utf-8", "replace"))
        except OSError:
            continue
    return [found[name] for name in sorted(found)]


def schemas_in(text: str) -> dict[str, str]:
    r"""The schemas in a C++ source that registers operators, by the operator's name.

    Example:
        >>> schemas_in('TORCH_LIBRARY(relu, m) { m.def("relu(Tensor! out, Tensor input)"\n " -> ()"); }')
        {'relu': 'relu(Tensor! out, Tensor input) -> ()'}
    """
    if "TORCH_LIBRARY" not in text:
        return {}
    found = {}
    for schema in _first_arguments(text):
        match = _SCHEMA.fullmatch(schema) if len(schema) <= _MAX_SCHEMA else None
        if match is not None:
            found[match["name"]] = " ".join(schema[match.start("name") :].split())
    return found


def _files(source: KernelSource) -> Iterator[Path]:
    listed = [] if source.binding is None else [*source.binding.src]
    listed += [path for kernel in source.kernels for path in kernel.src]
    root = source.folder.resolve()
    for path in dict.fromkeys(listed):
        place = (source.folder / path).resolve()
        if place.suffix in _SUFFIXES and place.is_relative_to(root):
            yield place


def _first_arguments(text: str) -> Iterator[str]:
    """The literals that are the first argument of each `.def(…)`, adjacent ones joined."""
    code, parts = "", list[str]()
    for kind, content in (*_tokens(text), ("end", "")):
        if kind == "literal" and (parts or _ends_with_def(code)):
            parts.append(content)
        elif kind == "code" and not content.strip():
            continue  # between adjacent literals
        elif parts:
            yield "".join(parts).strip()
            parts = []
        code = content if kind == "code" else ""


def _ends_with_def(code: str) -> bool:
    return any(match.end() == len(code[-_BEFORE:]) for match in _DEFINED.finditer(code[-_BEFORE:]))


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """The code of a source and its literals; comments are left out. Ends at a literal or a comment without an end."""
    position = 0
    while (match := _SPECIAL.search(text, position)) is not None:
        yield "code", text[position : match.start()]
        if match[0] == "//":
            end, after = text.find("\n", match.end()), 1
        elif match[0] == "/*":
            end, after = text.find("*/", match.end()), 2
        elif match["mark"] is not None:
            closing = f'){match["mark"]}"'
            end, after = text.find(closing, match.end()), len(closing)
            yield "literal", text[match.end() : end]
        else:
            plain = _PLAIN.match(text, match.end())
            end, after = (-1 if plain is None else plain.end() - 1), 1
            content = "" if plain is None else plain[1]
            yield "literal", content.replace('\\"', '"').replace("\\n", " ")
        if end < 0:
            return
        position = end + after
    yield "code", text[position:]
