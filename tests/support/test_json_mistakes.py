"""What is wrong with a JSON document, in words that are no parser's, with the line."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kernels.support.json_mistakes import describe_mistake, line_of


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    sizes: list[int] | None = None


class Outer(msgspec.Struct):
    items: list[Inner]
    version: int | None = None
    table: dict[str, int] = {}


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("[]", "expected an object, got a list"),
        ("{}", "`items` is missing"),
        ('{"items": [],\n "version": "1"}', "line 2: `version`: expected an integer or null, got a string"),
        (
            '{"other": {"a": [1, "}"]},\n"items": [{"name": "\\"x"},\n {"name": "y",\n "sizes": [1, true]}]}',
            "line 4: `items[1].sizes[1]`: expected an integer, got true or false",
        ),
        ('{"items": [{}]}', "line 1: `items[0].name` is missing"),
        ('{"items":\n[{"name": "x", "colour": 1}]}', "line 2: `items[0].colour` is not a known field"),
        ('{"items": [],\n "table": {"a b": "x"}}', "`table[...]`: expected an integer, got a string"),
        ('{"items": [', "line 1, column 12: it is not JSON: Expecting value"),
        ('{"items": [],\n}', "line 2, column 1: it is not JSON: Expecting property name enclosed in double quotes"),
        ("", "line 1, column 1: it is not JSON: Expecting value"),
    ],
)
@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_mistake_is_described_with_its_line(document: str, says: str, as_bytes: bool) -> None:
    data: Any = document.encode() if as_bytes else document
    with pytest.raises(msgspec.DecodeError) as caught:
        msgspec.json.decode(data, type=Outer)
    described = describe_mistake(caught.value, data)
    assert described == says
    if described.startswith("line") and "column" not in described:
        assert line_of(caught.value, data) == f" ({described.partition(':')[0]})"
