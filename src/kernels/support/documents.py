"""Bounds on third-party TOML, JSON and Python, checked in one pass before a parser sees them.

A document's size says little about the cost of parsing it. `tomllib` takes time and memory by the square of the number
of parts in a dotted key, a JSON parser recurses up to Python's recursion limit (if an application has raised that
limit, until the stack overflows), and `[{},{},…]` takes thirty times its size.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

__all__ = [
    "MAX_DEPTH",
    "MAX_DIGITS",
    "TomlToken",
    "TooComplex",
    "check_json",
    "check_source",
    "check_toml",
    "integer",
    "load_json",
    "load_toml",
    "toml_tokens",
]

#: The most nested containers. A Sigstore bundle has 8, the most of all files that are read.
MAX_DEPTH = 32

#: The most values of a JSON document: a file of hashes for 10,000 kernels with ten builds each has 400,000.
MAX_VALUES = 1_000_000

#: The most characters of a key, and of a number, which Python converts in time by the square of its digits.
MAX_DIGITS = 1000

#: The most strings, names, numbers and signs of a TOML document. The longest published `build.toml` has 20,000.
MAX_TOKENS = 200_000

#: The most signs and lines of a Python source: each may become a node of half a kilobyte in the tree. A module of
#: 10,000 lines has some 100,000.
MAX_SIGNS = 250_000


class TooComplex(ValueError):
    """A document is nested too deep, or has too many or too long parts; the message is a clause.

    Attributes:
        line: The line, counted from 1, if known.
    """

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


# JSON


_STRING = rb'"[^"]*"?'
_ALIKE, _OPENING = bytes.maketrans(b"{}", b"[]"), ord("[")
_UNCOUNTED = bytes(set(range(256)) - set(b'"[]{},'))


def check_json(data: bytes | str, *, depth: int = MAX_DEPTH, values: int = MAX_VALUES) -> None:
    """Refuse JSON that is nested too deep or has too many values; it need not be valid JSON.

    Args:
        data: The document.
        depth: The most levels.
        values: The most values.

    Raises:
        TooComplex: It has more of either.

    Example:
        >>> check_json(b'{"a": [1, "[[[["]}', depth=2)
        >>> check_json(b"[" * 10_000)
        Traceback (most recent call last):
        kernels.support.documents.TooComplex: it is nested too deep, with more than 32 levels
    """
    text = data.encode("utf-8", "replace") if isinstance(data, str) else data
    opened = text.count(b"[") + text.count(b"{")
    if opened <= depth and opened + text.count(b",") < values:
        return
    # Strings are skipped. A backslash outside of a string is an error to every parser.
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    text = text.translate(None, _UNCOUNTED)
    many = TooComplex(f"it has more than {values} values")
    if text.count(b'"') > 4 * values:  # a key and a value have two each
        raise many
    text = re.sub(_STRING, b"", text)
    if text.count(b"[") + text.count(b"{") + text.count(b",") >= values:
        raise many
    inner = brackets = text.translate(_ALIKE, b",")
    for _ in range(depth):
        inner = inner.replace(b"[]", b"")
    if not inner:
        return
    # It is deeper, or its brackets do not match: count up to the place where a parser would stop.
    level = 0
    for each in brackets:
        level += 1 if each == _OPENING else -1
        if level > depth:
            raise TooComplex(f"it is nested too deep, with more than {depth} levels")
        if level < 0:
            return


def load_json(
    data: bytes | str,
    *,
    depth: int = MAX_DEPTH,
    values: int = MAX_VALUES,
    pairs: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """The value of a JSON document that is neither deep nor large.

    Args:
        data: The document, UTF-8.
        depth: The most levels.
        values: The most values.
        pairs: Makes an object of its keys and values. Default: a dictionary.

    Raises:
        ValueError: It is not JSON, has a number such as `NaN`, or is too complex (`TooComplex`).

    Example:
        >>> load_json(b'{"a": [1, null]}')
        {'a': [1, None]}
    """
    check_json(data, depth=depth, values=values)
    text = data if isinstance(data, str) else data.decode("utf-8")
    return json.loads(text, object_pairs_hook=pairs, parse_int=integer, parse_constant=_no_number)


def integer(text: str) -> int:
    """The whole number in a text.

    Raises:
        TooComplex: It has too many digits.

    Example:
        >>> integer("-7")
        -7
    """
    if len(text) > MAX_DIGITS:
        raise TooComplex(f"a number has more than {MAX_DIGITS} digits")
    return int(text)


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number")


# TOML

#: A token's text and its start.
TomlToken = tuple[str, int]

#: A token, after spaces and a comment; of a string only its start.
_TOML_START = r"""[ \t\r]*(?:\#[^\n]*(?=\n))?("{3}|'{3}|["'\n\[\]{}=,.]|[^ \t\r\n"'\#\[\]{}=,.]+)"""
#: The end of a string, by its start, with the escapes to skip; in single quotes it ends with its line at the latest.
_TOML_ENDS = {'"""': r'\\[\s\S]|"{3,5}', "'''": r"'{3,5}", '"': r'\\[^\n]|["\n]', "'": r"['\n]"}


def toml_tokens(text: str) -> Iterator[TomlToken]:
    """The tokens of a TOML text: strings, bare names and values, signs and line breaks, without spaces and comments.

    They may end early where the text is not TOML: a parser would stop there as well.

    Raises:
        TooComplex: There are too many of them.

    Example:
        >>> [token for token, _ in toml_tokens('a."b.c" = 1 # d')]
        ['a', '.', '"b.c"', '=', '1']
    """
    begin, ends = re.compile(_TOML_START), {start: re.compile(end) for start, end in _TOML_ENDS.items()}
    position = 0
    for _ in range(MAX_TOKENS):
        found = begin.match(text, position)
        if found is None:
            return
        start, position = found.span(1)
        end = ends.get(found[1])
        if end is not None:
            for inside in end.finditer(text, position):
                if not inside[0].startswith("\\"):
                    break
            else:
                return
            position = inside.end()
            if inside[0] == "\n":
                return
        yield text[start:position], start
    if begin.match(text, position) is not None:
        raise TooComplex(f"it has more than {MAX_TOKENS} names, values and signs")


def check_toml(text: str) -> list[TomlToken]:
    """Refuse TOML that is nested too deep, or has too many or too long parts; it need not be valid TOML.

    Args:
        text: The document.

    Returns:
        Its tokens.

    Raises:
        TooComplex: It is nested too deep, or has too many or too long parts.

    Example:
        >>> len(check_toml("a.b = 1"))
        5
        >>> check_toml("a = [" * 100)
        Traceback (most recent call last):
        kernels.support.documents.TooComplex: it is nested too deep, with more than 32 levels
    """
    tokens: list[TomlToken] = []
    # The depths of the open containers: the table of the last heading, and each list and inline table since.
    opened: list[int] = []
    table = level = 0
    parts, before, heading = 1, "", False
    for token, start in toml_tokens(text):
        tokens.append((token, start))
        kind = token[0]
        if kind == "\n":
            if not opened:
                if heading:
                    table, heading = parts + 1, False
                level, parts = table, 1
        elif kind == "[" and not opened and (heading or before in ("", "\n")):
            heading = True
        elif kind in "[{":
            opened.append(level)
            level += parts
            parts = 1
        elif kind in "]}":
            if opened:
                level = opened.pop()
        elif kind == ",":
            parts = 1
        elif kind == ".":
            parts += 1
        elif kind not in "\"'=" and len(token) > MAX_DIGITS:
            raise TooComplex(f"a name or number has more than {MAX_DIGITS} characters", _line(text, start))
        if kind in ".=" and len(before) > MAX_DIGITS:
            raise TooComplex(f"a key has more than {MAX_DIGITS} characters", _line(text, start))
        if level + parts > MAX_DEPTH + 1:
            raise TooComplex(f"it is nested too deep, with more than {MAX_DEPTH} levels", _line(text, start))
        before = token
    return tokens


def load_toml(text: str) -> dict[str, Any]:
    """The content of a TOML document that is neither deep nor large.

    Args:
        text: The document.

    Raises:
        ValueError: It is not TOML, or is too complex (`TooComplex`).

    Example:
        >>> load_toml("a.b = 1")
        {'a': {'b': 1}}
    """
    check_toml(text)
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


# Python


_WORDS = bytes(range(0x80, 0x100)) + b"_ \t\r" + bytes(each for each in range(0x80) if chr(each).isalnum())


def check_source(data: bytes) -> None:
    """Refuse a Python source whose syntax tree could be large; it need not be valid Python.

    Raises:
        TooComplex: It has too many signs and lines.

    Example:
        >>> check_source(b"a;" * 10)
    """
    if len(data.translate(None, _WORDS)) > MAX_SIGNS:
        raise TooComplex(f"it has more than {MAX_SIGNS} signs and lines")


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
