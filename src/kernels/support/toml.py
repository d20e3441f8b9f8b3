"""Read a TOML file section by section, with the line of each mistake."""

from __future__ import annotations

import difflib
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from kernels.errors import RequestError
from kernels.support.documents import TomlToken, TooComplex, load_toml, toml_tokens
from kernels.support.files import FileTooLarge, read_bounded
from kernels.support.formatting import did_you_mean, format_text
from kernels.support.version import MajorMinor

__all__ = ["MAX_TOML_BYTES", "Section", "TomlFile", "TomlPath", "locate", "parse_toml", "read_toml"]

#: The largest file that is read. The longest published `build.toml`, which lists every header it needs, has 552 kB.
MAX_TOML_BYTES = 1024 * 1024

#: How similar a key must be to a missing one (`difflib`, 0 to 1) to be suggested: `kernel` and `general` have 0.62.
_NEAR = 0.65

#: The most keys that are compared with a missing one.
_MOST_COMPARED = 100

#: The path of a value: keys, and indices in lists.
TomlPath = tuple[str | int, ...]

_VERSION = r"[0-9]{1,4}\.[0-9]{1,4}"


class TomlFile(msgspec.Struct, frozen=True):
    """A TOML file's content and the lines of its parts.

    Attributes:
        path: The file.
        text: Its text.
        data: Its content.
        lines: The line, counted from 1, of each table, key and list element.
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
        data = load_toml(text)
        lines = locate(text)
    except TooComplex as error:
        raise RequestError(f"{path}:{error.line or 1}: not read, because {error}.") from None
    except ValueError as error:
        found = re.search(r"\(at line ([0-9]+), column [0-9]+\)", str(error))
        line = int(found[1]) if found else text.count("\n") + 1
        says = re.sub(r" \(at .*\)$", "", str(error))
        raise RequestError(f"{path}:{line}: not valid TOML: {format_text(says)}.") from None
    return TomlFile(path, text, data, lines)


def locate(text: str) -> dict[TomlPath, int]:
    """The line of each table, key and list element of a valid TOML text.

    Example:
        >>> locate('a = 1\\n[b]\\nc = [\\n  2,\\n]\\n')
        {('a',): 1, ('b',): 2, ('b', 'c'): 3, ('b', 'c', 0): 4}
    """
    return _Locator(text, list(toml_tokens(text))).lines


class _Locator:
    """One walk over the tokens of a valid TOML text."""

    def __init__(self, text: str, tokens: list[TomlToken]) -> None:
        starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self.tokens = [token for token, _ in tokens] + ["\n"]
        self.line_of = [bisect_right(starts, start) for _, start in tokens] + [len(starts)]
        self.at = 0
        self.lines: dict[TomlPath, int] = {}
        self.counts: dict[TomlPath, int] = {}
        table: TomlPath = ()
        while self.at < len(self.tokens):
            if self.tokens[self.at] == "\n":
                self.at += 1
            elif self.tokens[self.at] == "[":
                table = self.header()
            else:
                self.pair(table)

    def header(self) -> TomlPath:
        line, listed = self.line_of[self.at], self.tokens[self.at + 1] == "["
        self.at += 2 if listed else 1
        keys = self.keys("]")
        self.at += listed
        table: TomlPath = ()
        for depth, key in enumerate(keys, 1):
            table = (*table, key)
            self.lines.setdefault(table, line)
            if listed and depth == len(keys):
                self.counts[table] = self.counts.get(table, -1) + 1
            table = self.element(table)
            self.lines.setdefault(table, line)
        return table

    def element(self, table: TomlPath) -> TomlPath:
        return (*table, self.counts[table]) if table in self.counts else table

    def keys(self, end: str) -> list[str]:
        found = []
        while (token := self.tokens[self.at]) != end:
            if token != ".":
                found.append(_key(token))
            self.at += 1
        self.at += 1
        return found

    def pair(self, table: TomlPath) -> None:
        line = self.line_of[self.at]
        for key in self.keys("="):
            table = (*table, key)
            self.lines.setdefault(table, line)
        self.value(table)

    def value(self, path: TomlPath) -> None:
        opening = self.tokens[self.at]
        if opening not in ("[", "{"):
            while self.tokens[self.at] not in (",", "]", "}", "\n"):
                self.at += 1
            return
        self.at += 1
        index = 0
        while (token := self.tokens[self.at]) not in ("]", "}"):
            if token in ("\n", ","):
                self.at += 1
            elif opening == "{":
                self.pair(path)
            else:
                self.lines[(*path, index)] = self.line_of[self.at]
                self.value((*path, index))
                index += 1
        self.at += 1


def _key(token: str) -> str:
    if token[0] not in "\"'":
        return token
    return token[1:-1] if "\\" not in token else str(next(iter(load_toml(f"{token} = 0"))))


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
            raise self.error((), f"`{self.name()}` is {_short(table)}; expected a section.")
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
        return self.error(at, f"`{self.name(*at)}` is {_short(value)}; expected {expected}.{hint}")

    def missing(self, key: str, expected: str) -> RequestError:
        """An error about a missing key, which suggests the key that may be mistyped."""
        near = difflib.get_close_matches(key, [*islice(self.table, _MOST_COMPARED)], n=1, cutoff=_NEAR)
        mistyped = near[0] if near else key
        hint = f" Did you mean it by `{mistyped}`?" if near else ""
        return self.error((mistyped,), f"`{self.name(key)}` is missing; expected {expected}.{hint}")

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


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # more digits than Python writes
        return "a number with too many digits"
    return text if len(text) <= 80 else text[:77] + "…"
