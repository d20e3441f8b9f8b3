"""Read a TOML file section by section, with the line of each mistake."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kernels.errors import RequestError
from kernels.support.documents import TooComplex, load_toml
from kernels.support.files import FileTooLarge, read_bounded
from kernels.support.formatting import did_you_mean, format_text, format_value, nearest_name
from kernels.support.version import MajorMinor

__all__ = ["MAX_TOML_BYTES", "Section", "TomlFile", "TomlPath", "locate", "parse_toml", "read_toml"]

#: The largest file that is read. The longest published `build.toml`, which lists every header it needs, has 552 kB.
MAX_TOML_BYTES = 1024 * 1024

#: How similar a key must be to a missing one (`difflib`, 0 to 1) to be suggested: `kernel` and `general` have 0.62.
_NEAR = 0.65

#: The path of a value: keys, and indices in lists.
TomlPath = tuple[str | int, ...]

_VERSION = r"[0-9]{1,4}\.[0-9]{1,4}"


class TomlFile(msgspec.Struct, frozen=True):
    """A TOML file's content and the lines of its parts.

    Attributes:
        path: The file.
        text: Its text.
        data: Its content.
        lines: The line, counted from 1, of each table and of each key that begins a line.
    """

    path: Path
    text: str
    data: dict[str, Any]
    lines: Mapping[TomlPath, int]

    def error(self, at: TomlPath, problem: str) -> RequestError:
        """An error that names the file and the line.

        Args:
            at: The part; where it is missing, the line is its section's.
            problem: What is wrong.
        """
        while at and at not in self.lines:
            at = at[:-1]
        return RequestError(f"{self.path}:{self.lines.get(at, 1)}: {problem}")


def read_toml(path: Path) -> TomlFile:
    """Read a TOML file.

    Args:
        path: The file, at most `MAX_TOML_BYTES`.

    Raises:
        OSError: It cannot be read.
        RequestError: It is too large, not UTF-8, not TOML or nested too deep.
    """
    try:
        data = read_bounded(path, MAX_TOML_BYTES)
    except FileTooLarge:
        raise RequestError(f"{path} is larger than {MAX_TOML_BYTES // 2**20} MiB, the most that is read.") from None
    try:
        text = data.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise RequestError(f"{path}:{line}: not valid TOML: a byte that is not UTF-8.") from None
    return parse_toml(text, path)


def parse_toml(text: str, path: Path) -> TomlFile:
    """Parse TOML.

    Args:
        text: The file's text.
        path: The file's name, for errors.

    Raises:
        RequestError: It is not TOML, is nested too deep, or has too many parts.

    Example:
        >>> file = parse_toml('[general]\\nname = "relu"\\n', Path("build.toml"))
        >>> file.data, file.lines[("general", "name")]
        ({'general': {'name': 'relu'}}, 2)
    """
    try:
        return TomlFile(path, text, load_toml(text), locate(text))
    except TooComplex as error:
        raise RequestError(f"{path} was not read: {error}.") from None
    except ValueError as error:
        found = re.search(r"\(at line ([0-9]+), column [0-9]+\)", str(error))
        line = int(found[1]) if found else text.count("\n") + 1
        says = re.sub(r" \(at .*\)$", "", str(error))
        raise RequestError(f"{path}:{line}: not valid TOML: {format_text(says)}.") from None


_KEY = r"""(?:[\w-]+|"[^"]*"|'[^']*')"""
_DOTTED = rf"{_KEY}(?:[ \t]*\.[ \t]*{_KEY})*"
_HEADING = re.compile(rf"[ \t]*(\[{{1,2}})[ \t]*({_DOTTED})[ \t]*\]{{1,2}}[ \t]*(?:#.*)?$")
_ASSIGNMENT = re.compile(rf"[ \t]*({_DOTTED})[ \t]*=")


def locate(text: str) -> dict[TomlPath, int]:
    """The line of each table, and of each key that begins a line, in a valid TOML text.

    Nothing inside of a list or an inline table has a line of its own.

    Example:
        >>> locate('a = 1\\n[b]\\nc = 2\\n[[d]]\\n[[d]]\\n')
        {('a',): 1, ('b',): 2, ('b', 'c'): 3, ('d',): 4, ('d', 0): 4, ('d', 1): 5}
    """
    lines: dict[TomlPath, int] = {}
    counts: dict[TomlPath, int] = {}
    table: TomlPath = ()
    for number, line in enumerate(text.split("\n"), 1):
        heading, assignment = _HEADING.match(line), _ASSIGNMENT.match(line)
        if heading is not None:
            table = ()
            keys = _keys(heading[2])
            for depth, key in enumerate(keys, 1):
                table = (*table, key)
                lines.setdefault(table, number)
                if heading[1] == "[[" and depth == len(keys):
                    counts[table] = counts.get(table, -1) + 1
                if table in counts:
                    table = (*table, counts[table])
                    lines.setdefault(table, number)
        elif assignment is not None:
            path = table
            for key in _keys(assignment[1]):
                path = (*path, key)
                lines.setdefault(path, number)
    return lines


def _keys(dotted: str) -> list[str]:
    return [key.strip("\"'") for key in re.findall(_KEY, dotted)]


class Section:
    """A table that is read key by key, and then refuses the keys that were not read.

    Args:
        file: The file.
        path: The table's path in the file.
        table: Its content.

    Raises:
        RequestError: It is not a table.
    """

    def __init__(self, file: TomlFile, path: TomlPath, table: Any) -> None:
        self.file = file
        self.path = path
        if not isinstance(table, dict):
            raise self.error((), f"`{self.name()}` is {format_value(table)}; expected a section.")
        self.table: dict[str, Any] = table
        self.asked: list[str] = []

    def name(self, *more: str | int) -> str:
        """A key's name in a message."""
        path = (*self.path, *more)
        text = "".join(f"[{part}]" if isinstance(part, int) else f".{part[:200]}" for part in path)
        return text.removeprefix(".")

    def error(self, key: TomlPath, problem: str) -> RequestError:
        """An error at the line of a key of this section."""
        return self.file.error((*self.path, *key), problem)

    def wrong(self, key: str | TomlPath, value: Any, expected: str, hint: str = "") -> RequestError:
        """An error that has a value and the expected ones."""
        at = (key,) if isinstance(key, str) else key
        return self.error(at, f"`{self.name(*at)}` is {format_value(value)}; expected {expected}.{hint}")

    def missing(self, key: str, expected: str) -> RequestError:
        """An error about a missing key, which suggests the key that may be mistyped."""
        near = nearest_name(key, self.table, _NEAR)
        hint = "" if near is None else f" Did you mean it by `{near}`?"
        return self.error((near or key,), f"`{self.name(key)}` is missing; expected {expected}.{hint}")

    def get(self, *spellings: str) -> tuple[str, Any]:
        """The one of several spellings of a key that is present, and its value; None where none is."""
        self.asked.append(spellings[0])
        present = [key for key in spellings if key in self.table]
        if len(present) > 1:
            raise self.error(
                (present[1],), f"`{self.name()}` has both `{present[0]}` and `{present[1]}`; expected one of them."
            )
        self.asked += spellings[1:] if present else ()
        return (present[0], self.table[present[0]]) if present else (spellings[0], None)

    def text(self, key: str, expected: str = "a string") -> str | None:
        """A string that is not blank, or None."""
        _, value = self.get(key)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise self.wrong(key, value, expected)
        return value

    def integer(self, key: str, expected: str) -> int | None:
        """A whole number, or None."""
        _, value = self.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise self.wrong(key, value, expected)
        return value

    def version(self, *spellings: str) -> MajorMinor | None:
        """A version `X.Y`, or None."""
        key, value = self.get(*spellings)
        if value is None:
            return None
        if not isinstance(value, str) or re.fullmatch(_VERSION, value) is None:
            raise self.wrong(key, value, 'a version such as "2.9"')
        return MajorMinor.parse(value)

    def texts(self, *spellings: str) -> tuple[str, ...]:
        """A list of strings, empty if it is missing."""
        key, value = self.get(*spellings)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise self.wrong(key, value, "a list of strings")
        for index, each in enumerate(value):
            if not isinstance(each, str) or not each:
                raise self.wrong((key, index), each, "a string")
        return tuple(value)

    def section(self, key: str) -> Section | None:
        """A table inside this one, or None."""
        _, value = self.get(key)
        return None if value is None else Section(self.file, (*self.path, key), value)

    def sections(self, key: str) -> Iterator[Section]:
        """The tables of a list, in order; none if it is missing."""
        _, value = self.get(key)
        if value is not None and not isinstance(value, list):
            raise self.wrong(key, value, "a list of tables")
        for index, each in enumerate(value or []):
            yield Section(self.file, (*self.path, key, index), each)

    def refuse_unknown(self) -> None:
        """Refuse the keys that were not read.

        Raises:
            RequestError: A key was not read; the message lists the valid ones.
        """
        for key in self.table:
            if key not in self.asked:
                known = ", ".join(sorted(set(self.asked)))
                place = f"`{self.name()}`" if self.path else self.file.path.name
                hint = did_you_mean(key, self.asked)
                raise self.error((key,), f"{place} has the unknown key `{key[:200]}`; expected {known}.{hint}")
