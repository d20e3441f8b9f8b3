"""Bounds on documents, checked before they are parsed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.support.documents import (
    MAX_DEPTH,
    MAX_DIGITS,
    TooComplex,
    check_json,
    check_source,
    check_toml,
    load_json,
    load_toml,
    toml_tokens,
)


def depth(value: Any) -> int:
    if isinstance(value, (dict, list)):
        inside = value.values() if isinstance(value, dict) else value
        return 1 + max(map(depth, inside), default=0)
    return 0


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('[]{}",\\a é', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('[{",\\', max_size=3), inner, max_size=3),
    max_leaves=12,
)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(VALUES, st.sampled_from([None, 1]), st.booleans())
def test_the_depth_of_json_is_exact_whatever_its_strings_hold(value: Any, indent: int | None, ascii_only: bool) -> None:
    data = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    nested = depth(value)
    check_json(data, depth=nested)
    assert load_json(data, depth=nested) == value
    if nested:
        with pytest.raises(TooComplex, match="nested too deep"):
            check_json(data, depth=nested - 1)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"[" * 10_000, "nested too deep, with more than 32"),
        (b'{"a":' * 10_000, "nested too deep"),
        (b'["\\\\", ' + b"[" * 40, "nested too deep"),
        (b'["\\"", ' + b"[" * 40, "nested too deep"),
        ('["😀", ' + "[" * 40, "nested too deep"),
        ('["\ud800", ' + "[" * 40, "nested too deep"),
        (b"[" + b"{}," * 1_000_000 + b"{}]", "more than 1000000 values"),
        (b"[" + b"0," * 1_000_000 + b"0]", "more than 1000000 values"),
        (b'{"a": ' + b"9" * (MAX_DIGITS + 1) + b"}", "a number has more than 1000 digits"),
        (b'{"a": -' + b"9" * 10_000_000 + b"}", "a number has more than 1000 digits"),
    ],
    ids=lambda value: repr(value[:12]),
)
def test_json_that_costs_too_much_is_refused(data: bytes | str, says: str) -> None:
    with pytest.raises(TooComplex, match=says):
        load_json(data)


@pytest.mark.parametrize("data", [b"]" * 100, b"[}" * 100, b'["' + b"[" * 100, b"", b"\\[", b'"\\'])
def test_what_is_no_json_is_left_to_the_parser(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        load_json(data)


@pytest.mark.parametrize("data", [b"[NaN]", b"[-Infinity]"])
def test_numbers_are_numbers(data: bytes) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        load_json(data)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("a.b = 1", ["a", ".", "b", "=", "1"]),
        ('"a.b" . \'c\' = "d\\"e"', ['"a.b"', ".", "'c'", "=", '"d\\"e"']),
        ('a = """x"" \\""" y"""""\nb = 1', ["a", "=", '"""x"" \\""" y"""""', "\n", "b", "=", "1"]),
        ("a = '''x\n'' # y'''''", ["a", "=", "'''x\n'' # y'''''"]),
        ("a = 1 # [[[[\r\n# '\nb = 2", ["a", "=", "1", "\n", "\n", "b", "=", "2"]),
        ('a = ""', ["a", "=", '""']),
        ("a = '\\'", ["a", "=", "'\\'"]),
        ("[[a]]\n[b.c]", ["[", "[", "a", "]", "]", "\n", "[", "b", ".", "c", "]"]),
        # Where a parser stops, so do the tokens.
        ('a = "b\nc = 1', ["a", "="]),
        ("a = '''b", ["a", "="]),
    ],
)
def test_the_tokens_of_toml(text: str, tokens: list[str]) -> None:
    assert [token for token, _ in toml_tokens(text)] == tokens
    assert all(text.startswith(token, start) for token, start in toml_tokens(text))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (".".join("a" * 40) + " = 1", 1),
        ("\n" + " . ".join(['"a"'] * 40) + " = 1", 2),
        ("\n\n" + "\t.'a'" * 40 + " = 1", 3),
        ("[" + "a." * 40 + "a]", 1),
        ("[[" + "a." * 40 + "a]]", 1),
        ("a = {b." + "a." * 40 + "a = 1}", 1),
        ("a = " + "[" * 40, 1),
        ("a = " + "{a=" * 40, 1),
        ("a = " + "[{a=" * 20, 1),
        # A table, a key and what is in it count together.
        ("[" + "a." * 14 + "a]\n" + "b." * 14 + "b = [[[[[0]]]]]", 2),
        # Nothing that only looks like a string or a comment hides it.
        ('a = "#"\n' + "a." * 40 + "b = 1", 2),
        ('a = """\\"""" # "\n' + "a." * 40 + "b = 1", 2),
        ("a = '\\'\n" + "a." * 40 + "b = 1", 2),
        ("# \"\"\" '''\n" + "a." * 40 + "b = 1", 2),
        ("a = '''''''\n" + "a." * 40 + "b = 1", 2),
        ("a = [\n'#',\n" + "[" * 40, 3),
        ("a = 1\r\n" + "a." * 40 + "b = 1", 2),
    ],
)
def test_toml_that_nests_too_deep_is_refused_at_its_line(text: str, line: int) -> None:
    with pytest.raises(TooComplex, match=f"nested too deep, with more than {MAX_DEPTH} levels") as refused:
        check_toml(text)
    assert refused.value.line == line


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a = " + "9" * 2000, "a name or number has more than 1000"),
        ("a" * 2000 + " = 1", "a name or number has more than 1000"),
        ("'" + "a" * 2000 + "' = 1", "a key has more than 1000"),
        ('["' + "a" * 2000 + '".b]', "a key has more than 1000"),
        ("a = [" + "1," * 200_000 + "]", "more than 200000 names"),
        ("#\n" * 300_000, "more than 200000 names"),
    ],
    ids=lambda value: value[:8],
)
def test_toml_with_parts_that_are_too_long_or_too_many_is_refused(text: str, says: str) -> None:
    with pytest.raises(TooComplex, match=says):
        load_toml(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" + ".".join("a" * 20) + "]\nb = 1",
        "\n".join(f"[[a]]\nb.c = {number}.5" for number in range(100)),
        "a = [" + "{b.c = [1.5, 2.5]}," * 100 + "]",
        "a = [\n" + "  [1, 2],\n" * 100 + "]\nb = 1979-05-27T07:32:00.999Z",
        "a = '" + "." * 5000 + "'",
        'a = """' + "[" * 5000 + '"""',
        "a = {b = {c = {}}}\n" * 1,
    ],
)
def test_usual_toml_is_read(text: str) -> None:
    assert load_toml(text)


def test_python_with_too_many_signs_is_refused() -> None:
    check_source(b"name = 'text with words'\n" * 10_000)
    with pytest.raises(TooComplex, match="more than 250000 signs"):
        check_source(b"a;" * 300_000)
