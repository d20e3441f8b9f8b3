"""What is known of a backend before its file is imported: its names, and the traces that it leaves on a machine.

The file of a built-in backend has this as the dictionary `LABEL`, in literals only. It is read from the file's text, so
that a machine with one accelerator does not import the backends of all others; the class takes its names from it too.
"""

from __future__ import annotations

import ast
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from kernels.support.version import MajorMinor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernels.backends.base import Backend

__all__ = [
    "Found",
    "Label",
    "Names",
    "formatted_accelerator",
    "named_devices",
    "parsed_accelerator",
    "read_label",
]

#: The first line of a label, and its last.
_BEGIN, _END = b"\nLABEL = {\n", b"\n}\n"


class Found(NamedTuple):
    """A match, with the version that came with it.

    Attributes:
        version: The version; None where the backend has no versions.
    """

    version: MajorMinor | None = None


class Names(NamedTuple):
    """The names of a backend, and what is told from them alone; see `kernels.backends.Backend`."""

    name: str
    noarch_name: str
    token: str
    device_type: str
    mapping_device: str
    versioned: bool = False
    order: int = 1000
    vendor: str = ""

    @staticmethod
    def of(backend: Any) -> Names:
        """The names of a backend."""
        return Names(*(getattr(backend, name) for name in Names._fields))


class Label(NamedTuple):
    """What is known of a backend before it is imported.

    Attributes:
        names: Its names.
        traces: What shows that it may be on a machine, or that Torch may be built for it (see
            `kernels.backends.traces`); None where it must be asked.
        without_traces: What its probe notes on a machine without traces; for a person.
    """

    names: Names
    traces: Mapping[str, tuple[str, ...]] | None = None
    without_traces: tuple[str, ...] = ()

    @staticmethod
    def from_literals(given: Mapping[str, Any]) -> Label:
        """A label from the dictionary in a backend's file.

        Raises:
            TypeError: It has a name that no label has, or lacks one.

        Example:
            >>> Label.from_literals({"name": "acme", "device_type": "acme"}).names.token
            'acme'
        """
        facts = dict(given)
        traces = facts.pop("traces", None)
        notes = tuple(facts.pop("without_traces", ()))
        names = dict.fromkeys(("noarch_name", "token", "mapping_device"), facts["name"])
        traces = None if traces is None else MappingProxyType({key: tuple(value) for key, value in traces.items()})
        return Label(Names(**{**names, **facts}), traces, notes)


def read_label(path: Path) -> Label | None:
    """The label in a file of source code, which is not imported; None where it has none.

    Raises:
        OSError: The file cannot be read.
        ValueError: Its label is not written in literals.
    """
    text = path.read_bytes().replace(b"\r\n", b"\n")
    begin = text.find(_BEGIN)
    if begin < 0:
        return None
    end = text.index(_END, begin)
    return Label.from_literals(ast.literal_eval(text[begin + len(_BEGIN) - 2 : end + 2].decode()))


def named_devices(names: Names | Backend) -> tuple[str, ...]:
    """The names that a caller may use, by the rule of `Backend.device_names`."""
    return tuple(dict.fromkeys((names.name, names.noarch_name, names.token, names.device_type)))


def parsed_accelerator(names: Names | Backend, text: str) -> Found | None:
    """The version in a compiled variant's accelerator part, by the rule of `Backend.parse_accelerator`."""
    if not names.versioned:
        return Found() if text == names.token else None
    digits = text.removeprefix(names.token)
    # Major and minor, which has one digit; without leading zeros, so that a name prints as it was written.
    if digits == text or not (2 <= len(digits) <= 6 and digits.isascii() and digits.isdecimal()):
        return None
    if digits[0] == "0" and len(digits) > 2:
        return None
    return Found(MajorMinor(int(digits[:-1]), int(digits[-1])))


def formatted_accelerator(names: Names | Backend, version: MajorMinor | None) -> str:
    """The accelerator part for a version, by the rule of `Backend.format_accelerator`.

    Raises:
        ValueError: As for that.
    """
    if names.versioned != (version is not None) or (version is not None and not 0 <= version.minor <= 9):
        raise ValueError(f"`version` is {version}; no {names.name} build can be named for it.")
    return names.token if version is None else f"{names.token}{version.major}{version.minor}"
