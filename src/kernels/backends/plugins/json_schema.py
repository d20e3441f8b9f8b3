"""A file that declares backends, read and checked: what it says, as data.

The file is hostile until checked: its size is bounded, no key may stand twice, and what is wrong is named with its
path and value.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from kernels.backends.plugins.json_values import Wrong, below, short, wrong_values
from kernels.backends.plugins.torch_expression import parse_torch_path
from kernels.backends.registration import DeclarationError
from kernels.support.documents import TooComplex, load_json
from kernels.support.files import FileTooLarge, NotRegularFile, read_bounded

__all__ = [
    "MAX_BACKENDS",
    "MAX_FILE_BYTES",
    "ArchRule",
    "Declaration",
    "DeclaredDependency",
    "Detect",
    "Query",
    "read_declarations",
    "wrong_meanings",
]

#: The largest file that is read. The longest notes for kernel authors that are published have some 10 kB.
MAX_FILE_BYTES = 1024 * 1024

#: The most backends that one file declares; each is compared with all others.
MAX_BACKENDS = 100

#: Errors that one message names.
_SHOWN = 10

#: Which devices a build runs on; see the schema.
ArchRule = Literal["exact", "prefix", "same-major-minor-not-newer", "any"]


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where an answer comes from: a `command` and the `pattern` of its output, or a path below the `torch` module."""

    command: tuple[str, ...] = ()
    pattern: str = ""
    torch: str = ""


class Detect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What tells that a backend is there: a module, a shared library or a command; one of them is given."""

    module: str = msgspec.field(default="", name="import")
    library: str = ""
    command: tuple[str, ...] = ()


class DeclaredDependency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Python dependency: the package to install, and the module to look for, if any."""

    package: str
    module: str | None = None


class Declaration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file says of one backend; None where it says nothing. The schema describes the fields.

    Example:
        >>> Declaration(device_string="acme", archs=("a100x",)).given()
        {'device_string': 'acme', 'archs': ('a100x',)}
    """

    name: str | None = None
    device_string: str | None = None
    variant_token: str | None = None
    version: str | Query | None = None
    archs: tuple[str, ...] | Query | None = None
    detect: Detect | None = None
    arch_rule: ArchRule | None = None
    dispatch_key: str | None = None
    python_depends: dict[str, str | DeclaredDependency | None] | None = None
    experimental: bool | None = None
    vendor: str | None = None
    guidance_block: str | None = None
    kernel_guidance: str | None = None
    cuda_hacks_to_strip: tuple[str, ...] | None = None

    def given(self) -> dict[str, Any]:
        """The fields that say something, by name."""
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {name: value for name, value in values if value is not None}


def read_declarations(path: os.PathLike[str] | str) -> dict[str, Declaration]:
    """What a file declares, by the backends' names, in the file's order.

    Args:
        path: The file, at most `MAX_FILE_BYTES` of JSON; see `kernels.backends.plugins.json_values`.

    Raises:
        TypeError: `path` is no path.
        DeclarationError: It cannot be read, is not JSON, or has a value that is not allowed; the message gives the
            file, the value's path in it, the value, and what is allowed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "acme.json")
        ...     _ = file.write_text('{"acme": {"device_string": "acme", "version": "1.2"}}')
        ...     declarations = read_declarations(file)
        >>> declarations["acme"].version
        '1.2'
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"`path` is {path!r}, a {type(path).__name__}; allowed is the path of a JSON file.")
    file = Path(path)
    content = _parse(file, _read(file))
    names = tuple(filter(str.isidentifier, content)) if isinstance(content, dict) else ()
    meanings = chain.from_iterable(wrong_meanings(name, content[name]) for name in names)
    for found in (_twice(content), _too_many(names), wrong_values(content), meanings):
        lines = [f"{file}: {f'`{path}`' if path else 'the file'} {why}" for path, why in islice(found, _SHOWN)]
        if lines:
            more = [f"{file}: and more."] if next(found, None) is not None else []
            raise DeclarationError("\n".join(lines + more), names)
    return {name: msgspec.convert(dict(content[name]), Declaration) for name in names}


def _too_many(names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if len(names) > MAX_BACKENDS:
        yield "", f"declares {len(names)} backends; allowed are {MAX_BACKENDS} or fewer."


def _read(file: Path) -> bytes:
    try:
        return read_bounded(file, MAX_FILE_BYTES)
    except NotRegularFile:
        raise DeclarationError(
            f"{file}: it is no regular file; allowed is a file of JSON that declares backends."
        ) from None
    except FileTooLarge:
        raise DeclarationError(
            f"{file}: it has more than {MAX_FILE_BYTES} bytes, too many for declared backends."
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise DeclarationError(f"{file}: the file that declares backends cannot be read: {why}.") from None


class _Object(dict[str, Any]):
    """A JSON object that remembers the keys that stood in it twice."""

    twice: tuple[str, ...] = ()


def _parse(file: Path, data: bytes) -> Any:
    try:
        text = data.decode("utf-8-sig")  # editors on Windows put a mark before UTF-8
        return load_json(text, pairs=_object)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise DeclarationError(f"{file}: not JSON: {error.msg} at {where}.") from None
    except UnicodeDecodeError as error:
        raise DeclarationError(f"{file}: not JSON: byte {error.start} is no UTF-8.") from None
    except TooComplex as error:
        raise DeclarationError(f"{file}: its JSON was not read: {error}.") from None
    except ValueError as error:
        raise DeclarationError(f"{file}: not JSON: {error}.") from None


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    made = _Object(pairs)
    if len(made) < len(pairs):
        times = Counter(key for key, _ in pairs)
        made.twice = tuple(key for key in made if times[key] > 1)[:_SHOWN]
    return made


def _twice(content: Any) -> Iterator[Wrong]:
    """Every key that stands twice, and text that cannot be written out."""
    waiting: list[tuple[str, Any]] = [("", content)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, _Object):
            for key in value.twice:
                yield Wrong(path, f"has the key {short(key)} twice; allowed is once.")
            for key in filter(_is_no_text, value):
                yield Wrong(path, f"has the key {short(key)}; half a surrogate pair is no text.")
            waiting += [(below(path, key), each) for key, each in value.items()]
        elif isinstance(value, list):
            waiting += [(f"{path}[{index}]", each) for index, each in enumerate(value)]
        elif isinstance(value, str) and _is_no_text(value):
            yield Wrong(path, f"is {short(value)}; half a surrogate pair is no text.")


def _is_no_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def wrong_meanings(name: str, fields: dict[str, Any]) -> Iterator[Wrong]:
    """What a schema cannot say of one backend: names that must agree, patterns and paths that must be readable.

    Args:
        name: The backend's name.
        fields: What is declared of it, as the schema allows.
    """
    inner = fields.get("name", name)
    if inner != name:
        yield Wrong(f"{name}.name", f"is {short(inner)}; allowed is {name!r}, the key, or nothing.")
    for field, groups in (("version", (1, 2)), ("archs", (1,))):
        value = fields.get(field)
        if isinstance(value, dict):
            for key, why in _wrong_query(value, groups):
                yield Wrong(f"{name}.{field}.{key}", why)
    detect = fields.get("detect", {})
    if "command" in detect:
        for key, why in _wrong_program(detect["command"]):
            yield Wrong(f"{name}.detect.{key}", why)
    if fields.get("arch_rule") == get_args(ArchRule)[2] and isinstance(fields.get("archs"), list):
        for index, arch in enumerate(fields["archs"]):
            if re.fullmatch(r"[0-9]{1,4}\.[0-9]{1,4}", arch) is None:
                rule = fields["arch_rule"]
                yield Wrong(f"{name}.archs[{index}]", f"is {short(arch)}; allowed with {rule} is major.minor.")


def _wrong_query(query: dict[str, Any], groups: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    if "torch" in query:
        try:
            parse_torch_path(query["torch"])
        except ValueError as error:
            yield "torch", f"is {short(query['torch'])}: {error}."
        return
    yield from _wrong_program(query["command"])
    pattern, allowed = query["pattern"], " or ".join(map(str, groups))
    # To match without regard to case makes compiling ranges of letters slow: a second for every few characters.
    if re.search(r"\(\?[aiLmsux-]", re.sub(r"\\.", "", pattern, flags=re.DOTALL)) is not None:
        yield "pattern", f"is {short(pattern)}; flags in it, such as (?i), are not allowed: write [Aa]."
        return
    try:
        found = re.compile(pattern, re.MULTILINE).groups
    except (re.error, RecursionError, OverflowError, MemoryError) as error:
        yield "pattern", f"is {short(pattern)}, no regular expression: {error}."
        return
    if found not in groups:
        yield "pattern", f"is {short(pattern)}, with {found} groups; allowed are {allowed}: they are the answer."


def _wrong_program(command: list[str]) -> Iterator[tuple[str, str]]:
    program = command[0]
    # A path that depends on the folder one happens to be in would run whatever lies there.
    if not program or (not os.path.isabs(program) and re.search(r"[\\/]", program)):
        yield "command[0]", f"is {short(program)}; allowed is a program that PATH leads to, or an absolute path."
