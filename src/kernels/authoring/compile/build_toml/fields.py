"""What a key of `build.toml` is: its name, its type, what it means, and how it is read.

Each type of value is a class here; `keys` declares the keys with them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from kernels.support.toml import Section
from kernels.support.version import MajorMinor

__all__ = [
    "BACKEND_SCHEMA",
    "BackendField",
    "BackendsField",
    "ByBackend",
    "Field",
    "IntegerField",
    "Keys",
    "NamedTablesField",
    "TableField",
    "TablesField",
    "TextField",
    "TextsField",
    "VersionByBackendField",
    "VersionField",
]

T = TypeVar("T")

#: Where a schema has the names of the backends.
BACKEND_SCHEMA = "#/$defs/backend"


@dataclass(frozen=True)
class Field(ABC, Generic[T]):
    """A key.

    Attributes:
        key: Its name.
        about: What it means, in sentences.
        example: A value.
        expected: What an error says that its value must be. Default: that of its type.
        default: The value of a file without the key, in words; "" if there is none.
        required: Whether a file must have it.
        underscores: Whether it can also be written with underscores for dashes.
    """

    key: str
    about: str
    example: Any = None
    expected: str = ""
    default: str = ""
    required: bool = False
    underscores: bool = False

    #: The type of its value, for people.
    type_name: ClassVar[str]

    @abstractmethod
    def read(self, section: Section) -> T:
        """Its value in a section.

        Raises:
            RequestError: The value is of another type.
        """

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its value, without the description."""

    @property
    def spellings(self) -> tuple[str, ...]:
        """The names by which it can be written."""
        return (self.key, self.key.replace("-", "_")) if self.underscores else (self.key,)

    def examples(self) -> Mapping[str, Any]:
        """Keys and values for documentation."""
        return {} if self.example is None else {self.key: self.example}


class TextField(Field["str | None"]):
    """A string that is not blank."""

    type_name = "string"

    def read(self, section: Section) -> str | None:
        return section.text(self.key, self.expected or "a string")

    def require(self, section: Section) -> str:
        """The value, or an error that it is missing."""
        value = self.read(section)
        if value is None:
            raise section.missing(self.key, self.expected)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string"}


class IntegerField(Field["int | None"]):
    """A whole number."""

    type_name = "integer"

    def read(self, section: Section) -> int | None:
        return section.integer(self.key, self.expected)

    def require(self, section: Section) -> int:
        """The value, or an error that it is missing."""
        value = self.read(section)
        if value is None:
            raise section.missing(self.key, self.expected)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "integer"}


class VersionField(Field["MajorMinor | None"]):
    """A version `X.Y`."""

    type_name = 'version, such as "2.9"'

    def read(self, section: Section) -> MajorMinor | None:
        return section.version(*self.spellings)

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": r"^[0-9]{1,4}\.[0-9]{1,4}$"}


class TextsField(Field["tuple[str, ...]"]):
    """A list of strings; empty if it is missing."""

    type_name = "list of strings"

    def read(self, section: Section) -> tuple[str, ...]:
        return section.texts(*self.spellings)

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": {"type": "string", "minLength": 1}}


class VersionByBackendField(Field["MajorMinor | Section | None"]):
    """A version for every backend, or a table: backend to version."""

    type_name = "version, or a table of backends and versions"

    def read(self, section: Section) -> MajorMinor | Section | None:
        if isinstance(section.table.get(self.key), dict):
            return section.section(self.key)
        return section.version(self.key)

    def schema(self) -> dict[str, Any]:
        version = VersionField("", "").schema()
        return {"oneOf": [version, {"type": "object", "additionalProperties": version}]}


@dataclass(frozen=True)
class TableField(Field["Section | None"]):
    """A section inside the section."""

    keys: type[Keys] | None = None
    type_name = "section"

    def read(self, section: Section) -> Section | None:
        return section.section(self.key)

    def schema(self) -> dict[str, Any]:
        return {} if self.keys is None else self.keys.schema()


@dataclass(frozen=True)
class TablesField(Field["Iterator[Section]"]):
    """A list of tables."""

    keys: type[Keys] | None = None
    type_name = "list of tables"

    def read(self, section: Section) -> Iterator[Section]:
        return section.sections(self.key)

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": {} if self.keys is None else self.keys.schema()}


@dataclass(frozen=True)
class NamedTablesField(Field["Section | None"]):
    """Sections with names that the author chooses."""

    keys: type[Keys] | None = None
    type_name = "sections"

    def read(self, section: Section) -> Section | None:
        return section.section(self.key)

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": {} if self.keys is None else self.keys.schema()}


class BackendField(TextField):
    """The name of a backend."""

    def schema(self) -> dict[str, Any]:
        return {"$ref": BACKEND_SCHEMA}


class BackendsField(TextsField):
    """A list of backends' names."""

    type_name = "list of backends"

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": {"$ref": BACKEND_SCHEMA}, "minItems": 1}


F = TypeVar("F", TextsField, VersionField)


@dataclass(frozen=True)
class ByBackend(Generic[F]):
    """Keys that begin with the name of a backend, or of its device language: `cuda-flags`, `hip-flags`.

    Attributes:
        suffix: What follows the name: `flags`.
        field: The type of their values.
        about: What they mean.
        shown: Keys and values for documentation.
    """

    suffix: str
    field: type[F]
    about: str
    shown: Mapping[str, Any]

    @property
    def key(self) -> str:
        """How the keys are named in documentation: joined as in the example, though both ways are read."""
        joined = "_" if all("_" in key for key in self.shown) else "-"
        return f"<backend>{joined}{self.suffix}"

    def of(self, name: str) -> F:
        """The key of a backend or language."""
        return self.field(f"{name}-{self.suffix}", self.about, underscores=True)

    def examples(self) -> Mapping[str, Any]:
        """Keys and values for documentation."""
        return self.shown

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of their values, without the description."""
        return self.of("").schema()


class Keys:
    """The keys of a section: each is an attribute of its class.

    Attributes:
        header: The section's heading, without brackets.
    """

    header: ClassVar[str]

    @classmethod
    def fields(cls) -> tuple[Field[Any] | ByBackend[Any], ...]:
        """The keys, in the order of their declaration."""
        return tuple(each for each in vars(cls).values() if isinstance(each, (Field, ByBackend)))

    @classmethod
    def schema(cls) -> dict[str, Any]:
        """The JSON Schema of the section."""
        properties: dict[str, Any] = {}
        patterns: dict[str, Any] = {}
        others: dict[str, Any] | bool = False
        for field in cls.fields():
            value = {"description": field.about, **field.schema()}
            if isinstance(field, ByBackend):
                patterns[rf"^[a-z][a-z0-9]*[-_]{field.suffix}$"] = value
                properties.update({key: {**value, "examples": [shown]} for key, shown in field.examples().items()})
            elif field.key.startswith("<"):  # any backend's name, also of a vendor
                others = value
            else:
                example = {} if field.example is None else {"examples": [field.example]}
                properties[field.key] = {**value, **example}
        required = [field.key for field in cls.fields() if isinstance(field, Field) and field.required]
        return {
            "description": " ".join((cls.__doc__ or "").split()),
            "type": "object",
            "properties": properties,
            **({"patternProperties": patterns} if patterns else {}),
            **({"required": required} if required else {}),
            "additionalProperties": others,
        }
