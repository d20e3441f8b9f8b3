"""What is wrong with a JSON document, in plain words and with its line, from what the parser says."""

from __future__ import annotations

import json
import re

from kernels.support.formatting import format_text

__all__ = ["describe_mistake", "line_of"]

#: What the parser calls a type, and what a reader calls it.
_TYPES = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}

_PLACE = re.compile(r" - at `\$(.*)`$")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_TYPE = re.compile(r"Expected `([^`]*)`(?:, got `([^`]*)`)?$")
_FIELD = re.compile(r"Object (missing required|contains unknown) field `([^`]*)`$")
_VALUE = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")


def describe_mistake(error: Exception, data: bytes | str) -> str:
    r"""What is wrong with a document, with the line where it is.

    Args:
        error: The parser's error.
        data: The document, neither deep nor large (`check_json`).

    Example:
        >>> describe_mistake(ValueError("Expected `int`, got `str` - at `$.a[1]`"), '{"a":\n [1, "x"]}')
        'line 2: `a[1]`: expected an integer, got a string'
    """
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    try:
        json.loads(text)
    except json.JSONDecodeError as wrong:
        return f"line {wrong.lineno}, column {wrong.colno}: it is not JSON: {format_text(wrong.msg)}"
    except (ValueError, RecursionError):
        return format_text(error)
    message = str(error)
    place = _PLACE.search(message)
    path = "" if place is None else place[1]
    said = message if place is None else message[: place.start()]
    field = _FIELD.fullmatch(said)
    if field is not None:
        name = _name(f"{path}.{field[2]}")
        what = f"`{name}` is missing" if field[1].startswith("missing") else f"`{name}` is not a known field"
    else:
        of_type = _TYPE.fullmatch(said)
        what = said if of_type is None else f"expected {_words(of_type[1])}"
        what += f", got {_words(of_type[2])}" if of_type is not None and of_type[2] else ""
        what = f"`{_name(path)}`: {what}" if path else what
    line = _line(text, path) if path else None
    return format_text(what if line is None else f"line {line}: {what}")


def line_of(error: Exception, data: bytes | str) -> str:
    r"""The line of a mistake, to append to the parser's own words; empty where it cannot be told.

    Args:
        error: The parser's error.
        data: The document, neither deep nor large (`check_json`).

    Example:
        >>> line_of(ValueError("Expected `int`, got `str` - at `$.a[1]`"), '{"a":\n [1, "x"]}')
        ' (line 2)'
    """
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    place = _PLACE.search(str(error))
    line = None if place is None else _line(text, place[1])
    return "" if line is None else f" (line {line})"


def _name(path: str) -> str:
    return path.removeprefix(".") if path.startswith(".") else f"${path}"


def _words(kinds: str) -> str:
    return " or ".join(_TYPES.get(kind, kind) for kind in kinds.split(" | "))


def _line(text: str, path: str) -> int | None:
    """The line of the value at a path such as `[0].name`, None if it cannot be told."""
    steps = _STEP.findall(path)
    if "".join(f".{key}" if key else f"[{index}]" for key, index in steps) != path:
        return None
    try:
        position = _skip(text, 0)
        for key, index in steps:
            position = _member(text, position, key) if key else _element(text, position, int(index))
    except (IndexError, ValueError):
        return None
    return text.count("\n", 0, position) + 1


def _member(text: str, position: int, key: str) -> int:
    position = _skip(text, position + 1)
    while True:
        name, position = _VALUE.raw_decode(text, position)
        position = _skip(text, _skip(text, position) + 1)
        if name == key:
            return position
        position = _next(text, position)


def _element(text: str, position: int, index: int) -> int:
    position = _skip(text, position + 1)
    for _ in range(index):
        position = _next(text, position)
    return position


def _next(text: str, position: int) -> int:
    """The start of what follows a value and its comma."""
    _, position = _VALUE.raw_decode(text, position)
    position = _skip(text, position)
    if text[position] != ",":
        raise ValueError(position)
    return _skip(text, position + 1)


def _skip(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    return position if found is None else found.end()
