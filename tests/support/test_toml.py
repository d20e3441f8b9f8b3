"""Every table, key and list element of a TOML file has a line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.errors import RequestError
from kernels.support.files import NotRegularFile
from kernels.support.toml import MAX_TOML_BYTES, Section, TomlPath, locate, parse_toml, read_toml

TEXT = '''\
# [comment] = 1
a = "# no comment" # [nor.this]
b.c = 1.5
"quoted key"."d.e" = [1, [2,
  3], { x = """
many
lines"""" }]

[ table . 'sub' ]   # why
date = 1979-05-27 07:32:00Z
lists = [
  # first
  "a", # [b]

  \'\'\'
b]\'\'\', "c",
]
inline = { y = { z = "}" }, w = [] }
empty = """"""

[[each]]
n = 1
[each.inner]
m = 2
[[each]]
n = 3
'''


def test_comments_strings_and_nesting_are_no_obstacle() -> None:
    lines = locate(TEXT)
    expected: dict[TomlPath, int] = {
        ("a",): 2,
        ("b",): 3,
        ("b", "c"): 3,
        ("quoted key", "d.e"): 4,
        ("quoted key", "d.e", 0): 4,
        ("quoted key", "d.e", 1, 1): 5,
        ("quoted key", "d.e", 2, "x"): 5,
        ("table", "sub"): 9,
        ("table", "sub", "date"): 10,
        ("table", "sub", "lists", 0): 13,
        ("table", "sub", "lists", 1): 15,
        ("table", "sub", "lists", 2): 16,
        ("table", "sub", "inline", "y", "z"): 18,
        ("table", "sub", "inline", "w"): 18,
        ("each",): 21,
        ("each", 0, "n"): 22,
        ("each", 0, "inner", "m"): 24,
        ("each", 1): 25,
        ("each", 1, "n"): 26,
    }
    assert {path: lines[path] for path in expected} == expected


def paths(value: Any, at: TomlPath = ()) -> Iterator[TomlPath]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield (*at, key)
        yield from paths(part, (*at, key))


def test_all_that_is_parsed_is_located() -> None:
    file = parse_toml(TEXT, Path("a.toml"))
    assert set(paths(file.data)) == set(file.lines)


KEYS = st.text(st.sampled_from("ab-_ .#='[]"), min_size=1, max_size=4)
VALUES = st.recursive(
    st.integers(-5, 5) | st.booleans() | st.floats(-2, 2) | st.text(st.sampled_from("a#[]{},= '.\n\"\\"), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_whatever_is_written_is_located(data: dict[str, Any]) -> None:
    import tomlkit

    text = tomlkit.dumps(data)
    file = parse_toml(text, Path("a.toml"))
    assert file.data == data
    assert set(paths(data)) == set(file.lines)
    for path, line in file.lines.items():
        assert 1 <= line <= text.count("\n") + 1, path


def test_an_error_falls_back_to_the_section_that_is_there() -> None:
    file = parse_toml("\n[a]\nb = 1\n", Path("a.toml"))
    assert [str(file.error(at, "no")) for at in [("a", "b"), ("a", "x"), ("y", "z")]] == [
        "a.toml:3: no",
        "a.toml:2: no",
        "a.toml:1: no",
    ]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"a = 1\nb = \xff\n", r"a\.toml:2: not valid TOML: a byte that is not UTF-8"),
        (b"a = 1\nb = [\n", r"a\.toml:3: not valid TOML"),
        (b"# " + b"x" * MAX_TOML_BYTES, "larger than 1 MiB"),
        (b"a = " + b"[" * 100_000, r"a\.toml:1: not read, because it is nested too deep, with more than 32"),
        (b"a." * 200_000 + b"a = 1\n", r"a\.toml:1: not read, because it is nested too deep, with more than 32"),
        (b"[" + b"'a' . " * 150_000 + b"a]\n", r"a\.toml:1: not read, because it is nested too deep"),
    ],
)
def test_what_is_no_toml_is_refused(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "a.toml").write_bytes(data)
    with pytest.raises(RequestError, match=says):
        read_toml(tmp_path / "a.toml")


def test_a_long_key_is_not_shown_whole() -> None:
    file = parse_toml("k" * 1000 + " = 1\n", Path("a.toml"))
    with pytest.raises(RequestError, match=r"a\.toml:1: .*unknown key `k{200}`") as caught:
        Section(file, (), file.data).refuse_unknown()
    assert len(str(caught.value)) < 500


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.toml")
    with pytest.raises(NotRegularFile):
        read_toml(tmp_path / "a.toml")
