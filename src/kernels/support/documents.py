"""Third-party JSON, TOML and Python, parsed so that a hostile document is an error and not a crash or a long wait.

Each reader limits the size of its file, and what has a type is decoded by it (`decode_json`). Nesting is bounded by
Python's recursion limit, which every parser here obeys.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["TooComplex", "check_source", "load_json", "load_toml"]

#: A dotted key of more than 32 parts, whose parts may be quoted: `tomllib` takes time by the square of their number.
_LONG_KEY = re.compile(r"""(?:\.[ \t]*(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[^\s."',=\[\]{}]{1,1000})[ \t]*){32}""")

#: The most signs and lines of a Python source: each may become a node of half a kilobyte in the tree. A module of
#: 10,000 lines has some 100,000.
_MAX_SIGNS = 250_000

_WORDS = bytes(range(0x80, 0x100)) + b"_ \t\r" + bytes(each for each in range(0x80) if chr(each).isalnum())


class TooComplex(ValueError):
    """A document is nested too deep, or has too many or too long parts; the message is a clause."""


def load_json(data: bytes | str, *, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value of a JSON document of limited size, for which there is no type.

    Args:
        data: The document, UTF-8.
        pairs: Makes an object of its keys and values. Default: a dictionary.

    Raises:
        ValueError: It is not JSON, has a number such as `NaN`, or is nested too deep (`TooComplex`).

    Example:
        >>> load_json(b'{"a": [1, null]}')
        {'a': [1, None]}
    """
    text = data if isinstance(data, str) else data.decode("utf-8")
    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=_no_number)
    except RecursionError:
        raise TooComplex("it is nested too deep") from None


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number")


def load_toml(text: str) -> dict[str, Any]:
    """The content of a TOML document of limited size.

    Args:
        text: The document.

    Raises:
        ValueError: It is not TOML, is nested too deep, or has a key of too many parts (`TooComplex`).

    Example:
        >>> load_toml("a.b = 1")
        {'a': {'b': 1}}
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    found = _LONG_KEY.search(text)
    if found:
        line = text.count("\n", 0, found.start()) + 1
        raise TooComplex(f"it is nested too deep: a key in line {line} has more than 32 parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise TooComplex("it is nested too deep") from None


def check_source(data: bytes) -> None:
    """Refuse a Python source whose syntax tree could be large; it need not be valid Python.

    Raises:
        TooComplex: It has too many signs and lines.

    Example:
        >>> check_source(b"a;" * 10)
    """
    if len(data.translate(None, _WORDS)) > _MAX_SIGNS:
        raise TooComplex(f"it has more than {_MAX_SIGNS} signs and lines")
