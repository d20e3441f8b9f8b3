"""The page and the schema of `build.toml`, written from the keys that the reader reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kernels.authoring.compile.build_toml.fields import BACKEND_SCHEMA, ByBackend, Field, Keys
from kernels.authoring.compile.build_toml.keys import (
    EDITION,
    FRAMEWORKS,
    BackendNeedsKeys,
    FileKeys,
    GeneralKeys,
    HubKeys,
    KernelDependsKeys,
    KernelKeys,
)
from kernels.backends import entries

__all__ = ["SCHEMA_PATH", "example", "json_schema", "reference", "schema_text", "write_reference"]

#: The JSON Schema of `build.toml`, for editors.
SCHEMA_PATH = Path(__file__).with_name("build.schema.json")

#: What is between these lines of the page is written here.
_BEGIN = "<!-- From here to the end, `make reference` writes this page. -->\n"

#: What stands for `<backend>` and `<name>` in the examples.
_EXAMPLE_BACKEND, _EXAMPLE_NAME = KernelKeys.backend.example, "my_relu"

#: The sections, in the order of the page.
_SECTIONS: tuple[type[Keys], ...] = (
    GeneralKeys,
    HubKeys,
    BackendNeedsKeys,
    KernelDependsKeys,
    *FRAMEWORKS.values(),
    KernelKeys,
)


def reference() -> str:
    """The description of every section and key, as Markdown.

    Example:
        >>> print(reference()[:15])
        ## `[general]`
        <BLANKLINE>
    """
    return "\n".join(line for keys in _SECTIONS for line in _section(keys))


def _section(keys: type[Keys]) -> Iterator[str]:
    # A list of tables has no heading of its own.
    yield f"## `{keys.header}`" if keys is KernelDependsKeys else f"## `[{keys.header}]`"
    yield ""
    yield " ".join((keys.__doc__ or "").split())
    yield ""
    if keys is not KernelDependsKeys:
        yield "```toml"
        yield from example(keys)
        yield "```"
        yield ""
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    yield from (f"| {' | '.join(_row(field))} |" for field in keys.fields())
    yield ""


def example(keys: type[Keys]) -> Iterator[str]:
    """The lines of an example of a section."""
    yield f"[{keys.header.replace('<backend>', _EXAMPLE_BACKEND).replace('<name>', _EXAMPLE_NAME)}]"
    own_backend = keys is KernelKeys
    for field in keys.fields():
        for key, value in field.examples().items():
            # A section for one backend has no keys of another's.
            if not own_backend or isinstance(field, Field) or key.startswith(_EXAMPLE_BACKEND):
                yield f"{key} = {_toml(value)}"


def _row(field: Field[Any] | ByBackend[Any]) -> tuple[str, str, str, str]:
    if isinstance(field, ByBackend):
        shown = ", ".join(f"`{key}`" for key in field.examples())
        return f"`{field.key}`", field.field.type_name, "none", f"{shown}: {field.about}"
    default = "required" if field.required else field.default or "none"
    return f"`{field.key}`", field.type_name, default, field.about


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_toml(each)}' for key, each in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)


def json_schema(backends: Iterable[str]) -> dict[str, Any]:
    """The JSON Schema of `build.toml`, for editors: the keys of edition 5, with their meaning.

    An editor completes and checks keys with it; what depends on the files of the source folder, only `kernels build`
    checks.

    Args:
        backends: The names of backends to complete; others are valid too, as vendors' packages add them.

    Example:
        >>> sorted(json_schema(["cpu"])["properties"])
        ['general', 'kernel', 'torch', 'torch-noarch', 'tvm-ffi']
    """
    file = FileKeys.schema()
    *_, definition = BACKEND_SCHEMA.split("/")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"build.toml, edition {EDITION}",
        **file,
        "oneOf": [{"required": [name]} for name in FRAMEWORKS],
        "$defs": {definition: {"anyOf": [{"enum": sorted(backends)}, {"type": "string"}]}},
    }


def schema_text() -> str:
    """The content of `SCHEMA_PATH`: the schema with the built-in backends."""
    built_in = (entry.name for entry in entries() if entry.origin.kind == "built-in")
    return json.dumps(json_schema(built_in), indent=2) + "\n"


def write_reference(page: Path) -> str:
    """A page with its generated part as it should be.

    Args:
        page: The page. What is before the line that begins the generated part stays.
    """
    before, begin, _ = page.read_text(encoding="utf-8").partition(_BEGIN)
    return f"{before}{begin or _BEGIN}\n{reference().rstrip()}\n"
