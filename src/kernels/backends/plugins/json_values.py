"""The JSON Schema of files that declare backends, and what a file's content has that it does not allow.

The schema that ships is the rule itself: it is what a file is checked against, and its titles are what errors allow.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kernels.support.text import one_line

__all__ = ["SCHEMA_PATH", "Wrong", "below", "schema", "short", "wrong_values"]

#: The schema's file, for editors.
SCHEMA_PATH = Path(__file__).with_name("backends.schema.json")

#: Characters of a value, and of its path, that a message shows.
_SHOWN, _PATH = 80, 200

_TYPES: dict[str, type] = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


class Wrong(NamedTuple):
    """A value that may not stand where it stands: its path (`acme.version.pattern`), and what is wrong."""

    path: str
    why: str


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of files that declare backends.

    Example:
        >>> schema()["$defs"]["backend"]["properties"]["device_string"]["title"]
        "Torch's name of a device type"
    """
    loaded: dict[str, Any] = json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))
    return loaded


def wrong_values(content: object) -> Iterator[Wrong]:
    """Each value of a file's content that the schema does not allow.

    Args:
        content: What the file's JSON decodes to.

    Example:
        >>> [str(wrong.path) for wrong in wrong_values({"acme": {"device_string": 7, "vendor": "Acme"}})]
        ['acme.device_string']
    """
    return _check(content, _rules(), "")


@functools.cache
def _rules() -> dict[str, Any]:
    return schema()


def _check(value: Any, rule: dict[str, Any], path: str) -> Iterator[Wrong]:
    """The keywords of JSON Schema that the schema uses; a test compares the answers with a complete validator's."""
    if "$ref" in rule:
        rule = {**_rules()["$defs"][rule["$ref"].rpartition("/")[2]], **rule}
        del rule["$ref"]
    if "anyOf" in rule:
        yield from _any_of(value, rule, path)
    elif not _is_type(value, rule) or value not in rule.get("enum", [value]):
        yield Wrong(path, f"is {short(value)}; allowed is {rule['title']}.")
    elif isinstance(value, str):
        yield from _text(value, rule, path)
    elif isinstance(value, list):
        yield from _list(value, rule, path)
    elif isinstance(value, dict):
        yield from _object(value, rule, path)


def _is_type(value: object, rule: dict[str, Any]) -> bool:
    return "type" not in rule or isinstance(value, _TYPES[rule["type"]])


def _any_of(value: Any, rule: dict[str, Any], path: str) -> Iterator[Wrong]:
    """What is wrong with the one of several forms that was meant: that of the value's type which has its keys."""
    forms = [{**_resolved(form)} for form in rule["anyOf"]]
    forms = [form for form in forms if _is_type(value, form)]
    if isinstance(value, dict):
        shared = [len(value.keys() & form["properties"].keys()) for form in forms]
        forms = [form for form, count in zip(forms, shared, strict=True) if count and count == max(shared)]
    if not forms:
        yield Wrong(path, f"is {short(value)}; allowed is {rule['title']}.")
    else:
        yield from _check(value, forms[0], path)


def _resolved(rule: dict[str, Any]) -> dict[str, Any]:
    return {**_rules()["$defs"][rule["$ref"].rpartition("/")[2]], **rule} if "$ref" in rule else rule


def _text(value: str, rule: dict[str, Any], path: str) -> Iterator[Wrong]:
    # ECMAScript's `$`, which the schema has, is the end; Python's also stands before a last line break.
    pattern = re.sub(r"\$$", r"\\Z", rule.get("pattern", ""))
    longest = rule.get("maxLength", len(value))
    if not rule.get("minLength", 0) <= len(value) <= longest or re.search(pattern, value) is None:
        most = f" of at most {longest} characters" if len(value) > longest else ""
        yield Wrong(path, f"is {short(value)}; allowed is {rule['title']}{most}.")


def _list(value: list[Any], rule: dict[str, Any], path: str) -> Iterator[Wrong]:
    most = rule.get("maxItems", len(value))
    if not rule.get("minItems", 0) <= len(value) <= most:
        yield Wrong(path, f"has {len(value)} items; allowed is {rule['title']}, at most {max(most, 1)}.")
        return
    for index, item in enumerate(value):
        yield from _check(item, rule["items"], f"{path}[{index}]")


def _object(value: dict[str, Any], rule: dict[str, Any], path: str) -> Iterator[Wrong]:
    properties: dict[str, Any] = rule.get("properties", {})
    others = rule["additionalProperties"]
    for key in rule.get("required", ()):
        if key not in value:
            yield Wrong(path, f"is {short(value)}, without `{key}`; allowed is {rule['title']}.")
    for key, each in value.items():
        place = below(path, key)
        if key in properties:
            yield from _check(each, properties[key], place)
        elif others is False:
            yield Wrong(place, f"is {short(each)}, an unknown key; allowed are {', '.join(properties)}.")
        elif list(_check(key, rule["propertyNames"], path)):
            yield Wrong(path, f"has the key {short(key)}; allowed is {rule['propertyNames']['title']}.")
        else:
            yield from _check(each, others, place)


def below(path: str, key: str) -> str:
    """The path of a key's value, as a message shows it: a key is a stranger's text of any length.

    Example:
        >>> below("acme", "vendor"), below("", "k" * 100)[-3:]
        ('acme.vendor', 'kk…')
    """
    shown = key if len(key) <= _SHOWN and one_line(key) == key else short(key)
    return f"{path}.{shown}"[-_PATH:] if path else shown


def short(value: object) -> str:
    """A value as a message shows it.

    Example:
        >>> short("a" * 100)[-5:], short({"a": None})
        ('aaaa…', '{"a": null}')
    """
    try:
        text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    except RecursionError:
        text = f"{type(value).__name__} in {type(value).__name__} in …"
    text = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return one_line(text)
