"""A mistake in a TOML file is found by its line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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


def test_each_table_and_each_key_at_the_begin_of_a_line_has_one() -> None:
    lines = locate(TEXT)
    expected: dict[TomlPath, int] = {
        ("a",): 2,
        ("b",): 3,
        ("b", "c"): 3,
        ("quoted key", "d.e"): 4,
        ("table", "sub"): 9,
        ("table", "sub", "date"): 10,
        ("table", "sub", "lists"): 11,
        ("table", "sub", "inline"): 18,
        ("each",): 21,
        ("each", 0, "n"): 22,
        ("each", 0, "inner", "m"): 24,
        ("each", 1): 25,
        ("each", 1, "n"): 26,
    }
    assert {path: lines[path] for path in expected} == expected


def test_an_error_falls_back_to_the_section_that_is_there() -> None:
    file = parse_toml("\n[a]\nb = [\n1]\n", Path("a.toml"))
    assert [str(file.error(at, "no")) for at in [("a", "b"), ("a", "b", 0), ("a", "x"), ("y", "z")]] == [
        "a.toml:3: no",
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
        (b"a = " + b"[" * 100_000, r"a\.toml was not read: it is nested too deep"),
        (b"a." * 200_000 + b"a = 1\n", r"a\.toml was not read: .*: a key in line 1 has more than 32 parts"),
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
