"""JSON files that declare backends: the types of their values, read and checked.

`backends.schema.json` is the same for editors; a test compares the two.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import Meta

from kernels.backends.interface_check import NAME_PATTERNS
from kernels.backends.plugins.torch_expression import parse_torch_path
from kernels.backends.registration import DeclarationError
from kernels.support.documents import load_json
from kernels.support.files import read_bounded
from kernels.support.formatting import format_text, format_value, nearest_name
from kernels.support.logs import logger, warn_once
from kernels.support.record_file import learn

__all__ = [
    "MAX_BACKENDS",
    "MAX_FILE_BYTES",
    "SCHEMA_PATH",
    "ArchRule",
    "ArchsQuery",
    "Declaration",
    "DeclaredDependency",
    "Detect",
    "DeviceType",
    "Query",
    "ReadFile",
    "convert_declaration",
    "read_declarations",
    "read_file",
    "unknown_fields",
]

_log = logger(__name__)

#: The JSON Schema of such files, for editors.
SCHEMA_PATH = Path(__file__).with_name("backends.schema.json")

#: The largest file that is read. The longest published notes for kernel authors have some 10 kB.
MAX_FILE_BYTES = 1024 * 1024

#: The most backends that one file declares; each is compared with all others.
MAX_BACKENDS = 100

#: The most errors that one message lists.
_MAX_ERRORS = 10

#: Which devices a build runs on; see the schema.
ArchRule = Literal["exact", "prefix", "same-major-minor-not-newer", "any"]

_Name = Annotated[str, Meta(pattern=rf"^{NAME_PATTERNS['name'][0]}\Z")]
_Token = Annotated[str, Meta(pattern=rf"^{NAME_PATTERNS['token'][0]}\Z")]
DeviceType = Annotated[str, Meta(pattern=rf"^{NAME_PATTERNS['device_type'][0]}\Z")]
_DispatchKey = Annotated[str, Meta(pattern=rf"^{NAME_PATTERNS['dispatch_key'][0]}\Z")]
_Version = Annotated[str, Meta(pattern=r"^[0-9]{1,4}\.[0-9]{1,4}(?:[.+_-][A-Za-z0-9.+_-]{0,50})?\Z")]
_Arch = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")]
_Argument = Annotated[str, Meta(max_length=4096, pattern=r"^[^\x00]*\Z")]
_Command = Annotated[tuple[_Argument, ...], Meta(min_length=1, max_length=64)]
_Expression = Annotated[str, Meta(min_length=1, max_length=500)]
_TopModule = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,126}\Z")]
_Module = Annotated[str, Meta(max_length=255, pattern=r"^[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*\Z")]
_Package = Annotated[str, Meta(pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,126}[A-Za-z0-9])?\Z")]
_Library = Annotated[
    str, Meta(pattern=r"^(?:[A-Za-z0-9_][A-Za-z0-9_.+-]{0,126}|(?:/|[A-Za-z]:[\\/])[^\x00]{1,4000})\Z")
]
_SourceLine = Annotated[str, Meta(min_length=1)]


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where an answer comes from: a `command` and the `pattern` of its output, or a path below the `torch` module."""

    #: How many groups the pattern may have.
    groups: ClassVar[tuple[int, ...]] = (1, 2)

    command: _Command = ()
    pattern: _Expression = ""
    torch: _Expression = ""

    def __post_init__(self) -> None:
        if self.torch and not self.command and not self.pattern:
            parse_torch_path(self.torch)
        elif self.command and self.pattern and not self.torch:
            _check_program(self.command)
            _check_pattern(self.pattern, self.groups)
        else:
            expected = 'expected {"command": […], "pattern": "…"} or {"torch": "…"}'
            absent = "command" if self.pattern else "pattern" if self.command else ""
            raise ValueError(f"{expected}, got no `{absent}`" if absent and not self.torch else expected)


class ArchsQuery(Query, frozen=True, forbid_unknown_fields=True):
    """Where the architectures come from: each match of the pattern is a device."""

    groups: ClassVar[tuple[int, ...]] = (1,)


class Detect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What shows that a backend is there: a module, a shared library or a command."""

    module: _TopModule = msgspec.field(default="", name="import")
    library: _Library = ""
    command: _Command = ()

    def __post_init__(self) -> None:
        if bool(self.module) + bool(self.library) + bool(self.command) != 1:
            raise ValueError('expected {"import": "…"}, {"library": "…"} or {"command": […]}')
        if self.command:
            _check_program(self.command)


class DeclaredDependency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Python dependency: the package to install, and the module to look for, if any."""

    package: _Package
    module: _Module | None = None


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """What a file declares of one backend; None where it declares nothing. The schema describes the fields.

    Example:
        >>> Declaration(device_string="acme", archs=("a100x",)).given()
        {'device_string': 'acme', 'archs': ('a100x',)}
    """

    name: _Name | None = None
    device_string: DeviceType | None = None
    variant_token: _Token | None = None
    version: _Version | Query | None = None
    archs: Annotated[tuple[_Arch, ...], Meta(max_length=1024)] | ArchsQuery | None = None
    detect: Detect | None = None
    arch_rule: ArchRule | None = None
    dispatch_key: _DispatchKey | None = None
    device_language: _Name | None = None
    python_depends: dict[_Package, _Module | DeclaredDependency | None] | None = None
    experimental: bool | None = None
    vendor: str | None = None
    guidance_block: str | None = None
    kernel_guidance: str | None = None
    cuda_hacks_to_strip: tuple[_SourceLine, ...] | None = None

    def __post_init__(self) -> None:
        if self.arch_rule == "same-major-minor-not-newer" and isinstance(self.archs, tuple):
            for arch in self.archs:
                if re.fullmatch(r"[0-9]{1,4}\.[0-9]{1,4}", arch) is None:
                    raise ValueError(f"`archs`: expected major.minor with arch_rule {self.arch_rule}, got {arch!r}")

    def given(self) -> dict[str, Any]:
        """The fields that are declared, by name."""
        values = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {name: value for name, value in values if value is not None}


class ReadFile(NamedTuple):
    """A file that declares backends.

    Attributes:
        declarations: What it declares, by the backends' names, in the file's order.
        unknown: The fields that were ignored, by the backend's name, each with the known field that is nearest, or "".
    """

    declarations: dict[str, Declaration]
    unknown: dict[str, tuple[tuple[str, str], ...]]


def read_declarations(path: os.PathLike[str] | str) -> dict[str, Declaration]:
    """What a file declares, by the backends' names, in the file's order.

    Fields of a backend that are not known are ignored, with one warning: the file may be written for a newer version,
    or for other tools.

    Args:
        path: The file, at most `MAX_FILE_BYTES` of JSON.

    Raises:
        TypeError: `path` is not a path.
        DeclarationError: The file cannot be read, is not JSON, or has a wrong value; the message has the file and the
            value's path in it (`$.acme.detect`).

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "acme.json")
        ...     _ = file.write_text('{"acme": {"device_string": "acme", "version": "1.2"}}')
        ...     declarations = read_declarations(file)
        >>> declarations["acme"].version
        '1.2'
    """
    return read_file(path).declarations


def read_file(path: os.PathLike[str] | str) -> ReadFile:
    """As `read_declarations`, with the fields that are not known.

    Args:
        path: As for `read_declarations`.

    Raises:
        TypeError: As for `read_declarations`.
        DeclarationError: As for `read_declarations`.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"`path`: expected the path of a JSON file, got {path!r} ({type(path).__name__}).")
    content = _load(Path(path))
    if not isinstance(content, dict):
        raise DeclarationError(f"{path}: expected an object of backends by their names, got {format_value(content)}.")
    content.pop("$schema", None)
    names = tuple(filter(str.isidentifier, content))
    if len(content) > MAX_BACKENDS:
        raise DeclarationError(f"{path}: expected at most {MAX_BACKENDS} backends, got {len(content)}.", names)
    declarations, ignored, errors = {}, {}, []
    for name, fields in content.items():
        try:
            declarations[name] = convert_declaration(name, fields)
        except ValueError as error:
            errors.append(f"{path}: {format_text(error)}.")
        else:
            unknown = unknown_fields(fields)
            if unknown:
                ignored[name] = unknown
                said = ", ".join(f"{format_value(each)}{f' (near: {near})' if near else ''}" for each, near in unknown)
                warn_once(_log, f"{path}: fields of `{name}` that are not known, and ignored: {said}.")
    if errors:
        more = [f"{path}: and more."] if len(errors) > _MAX_ERRORS else []
        raise DeclarationError("\n".join([*errors[:_MAX_ERRORS], *more]), names)
    return ReadFile(declarations, ignored)


def unknown_fields(fields: object) -> tuple[tuple[str, str], ...]:
    """The first fields that no declaration has, each with the known field that is nearest, or "".

    Example:
        >>> unknown_fields({"vendor": "Acme", "kernel_guidence": "Tiles.", "colour": "red"})
        (('kernel_guidence', 'kernel_guidance'), ('colour', ''))
    """
    known = Declaration.__struct_fields__
    unknown = (each for each in (fields if isinstance(fields, dict) else ()) if each not in known)
    return tuple((each, nearest_name(each, known) or "") for each in islice(unknown, _MAX_ERRORS))


def convert_declaration(name: str, fields: object, kind: type[Declaration] = Declaration) -> Declaration:
    """What the fields of one backend declare.

    Args:
        name: The backend's name, for the paths in errors.
        fields: The fields, as JSON has them.
        kind: The structure of the fields.

    Raises:
        ValueError: The name or a value is wrong; the message ends with the value's path.

    Example:
        >>> convert_declaration("acme", {"vendor": 7})
        Traceback (most recent call last):
        msgspec.ValidationError: Expected `str | null`, got `int` - at `$.acme.vendor`
    """
    pattern, words = NAME_PATTERNS["name"]
    if re.fullmatch(pattern, name) is None:
        raise ValueError(f"expected a backend's name of {words}, got {format_value(name)}")
    for field, value in fields.items() if isinstance(fields, dict) else ():
        if value is None:
            raise ValueError(f"expected a value, got null - at `$.{name}.{field}`")
    learn(kind)
    # A structure with the name as its only field: paths begin with it.
    one = msgspec.defstruct("_One", [("backend", kind)], rename={"backend": name})
    declaration: Declaration = getattr(msgspec.convert({name: fields}, one), "backend")  # noqa: B009
    if declaration.name not in (None, name):
        raise ValueError(f"expected {name!r}, the key, got {declaration.name!r} - at `$.{name}.name`")
    return declaration


def _load(file: Path) -> Any:
    twice: list[str] = []

    def to_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            twice.extend(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        return made

    try:
        data = read_bounded(file, MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        why = error.strerror or error if isinstance(error, OSError) else error
        raise DeclarationError(f"{file}: cannot be read: {why}.") from None
    try:
        text = data.decode("utf-8-sig")  # editors on Windows put a mark before UTF-8
        content = load_json(text, pairs=to_object)
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise DeclarationError(f"{file}: not JSON: half of a surrogate pair is not text.") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise DeclarationError(f"{file}: not JSON: {error.msg} at {where}.") from None
    except UnicodeDecodeError as error:
        raise DeclarationError(f"{file}: not JSON: byte {error.start} is not UTF-8.") from None
    except ValueError as error:
        raise DeclarationError(f"{file}: not JSON: {error}.") from None
    if twice:
        keys = ", ".join(format_value(key) for key in islice(dict.fromkeys(twice), _MAX_ERRORS))
        raise DeclarationError(f"{file}: an object has the same key twice: {keys}.")
    return content


def _check_pattern(pattern: str, groups: tuple[int, ...]) -> None:
    # To match without regard to case makes compiling ranges of letters slow: a second for every few characters.
    if re.search(r"\(\?[aiLmsux-]", re.sub(r"\\.", "", pattern, flags=re.DOTALL)) is not None:
        raise ValueError(f"`pattern`: flags such as (?i) are not supported, write [Aa]: {format_value(pattern)}")
    try:
        found = re.compile(pattern, re.MULTILINE).groups
    except (re.error, RecursionError, OverflowError, MemoryError) as error:
        raise ValueError(f"`pattern`: not a regular expression: {format_value(pattern)}: {error}") from None
    if found not in groups:
        expected = f"{' or '.join(map(str, groups))} group{'s' if groups[1:] else ''}"
        hint = "" if found else "; put ( ) around the part that counts"
        raise ValueError(f"`pattern`: expected {expected} with the answer, got {found}{hint}: {format_value(pattern)}")


def _check_program(command: tuple[str, ...]) -> None:
    # A relative path would run a program of the current folder.
    if not command[0] or (not os.path.isabs(command[0]) and re.search(r"[\\/]", command[0])):
        raise ValueError(f"`command`: expected a program on PATH or an absolute path, got {format_value(command[0])}")
