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

_RAW = r'R"(?P<mark>[^()\s\\"]{0,16})\((?P<raw>.*?)\)(?P=mark)"'
_PLAIN = r'"(?P<plain>(?:[^"\\\n]|\\.)*)"'
_LITERAL = re.compile(rf"{_RAW}|{_PLAIN}", re.S)
_COMMENT_OR_LITERAL = re.compile(rf"(?P<comment>//[^\n]*|/\*.*?\*/)|{_RAW}|{_PLAIN}", re.S)
_DEFINED = re.compile(r"\.\s*def\s*\(\s*")
_SPACE = re.compile(r"\s*")
_SCHEMA = re.compile(r"(?:\w+::)?(?P<name>\w[\w.]*)\s*\(.*\)\s*->\s*\S.*", re.S)


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
    for schema in _first_arguments(_COMMENT_OR_LITERAL.sub(_without_comment, text)):
        match = _SCHEMA.fullmatch(schema)
        if match is not None and len(schema) <= _MAX_SCHEMA:
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


def _without_comment(match: re.Match[str]) -> str:
    return " " if match["comment"] is not None else match[0]


def _first_arguments(text: str) -> Iterator[str]:
    """The literals that are the first argument of each `.def(…)`, adjacent ones joined."""
    for match in _DEFINED.finditer(text):
        position, parts = match.end(), []
        while (literal := _LITERAL.match(text, position)) is not None:
            raw = literal["raw"]
            parts.append(raw if raw is not None else literal["plain"].replace('\\"', '"').replace("\\n", " "))
            position = _end(_SPACE.match(text, literal.end()), literal.end())
        if parts:
            yield "".join(parts).strip()


def _end(match: re.Match[str] | None, otherwise: int) -> int:
    return otherwise if match is None else match.end()
