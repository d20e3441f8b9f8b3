"""An untrusted YAML file becomes plain values with their lines, or an error with the file, the line and the value."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from kernels.errors import RequestError
from kernels.support.yaml import Node, read_yaml


@pytest.fixture
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyYAML with libyaml, and as it is where that is missing."""
    if request.param == "Python":
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    elif not hasattr(yaml, "CSafeLoader"):
        pytest.skip("this PyYAML has no libyaml")


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "some.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def plain(node: Node | None) -> Any:
    """A node as `yaml.safe_load` would give it."""
    value = None if node is None else node.value
    if isinstance(value, list):
        return [plain(each) for each in value]
    return {key: plain(each) for key, each in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("parser", ["libyaml", "Python"], indirect=True)
@pytest.mark.parametrize(
    "text",
    [
        "mm:\n  - META: {BLOCK_M: 64, PRE: true, SCALE: 0.5, KIND: fp16}\n    num_warps: 4\n",
        "a: [1, -2, 0x10, 0b11, 017, 1_000, 1e3, 1.5, .inf, yes, off, ~, null, text, 'quoted', \"1\", '']\n",
        "a: &one [1, 2]\nb: *one\nc: [*one, *one]\n",
        "base: &base {x: 1, y: 2}\nother: &other {y: 3, z: 4}\nmm:\n  <<: [*base, *other]\n  x: 5\n",
        "base: &base {x: 1}\nmm: {<<: *base, y: 2}\n",
        "a: |\n  two\n  lines\nb: >\n  folded\n  text\n",
        "# only a comment\n",
        "",
        "%YAML 1.1\n---\na: 1\n...\n",
        "\ufeffa: ü\n",
        "? plain\n: 1\n",
        "a: 'x'\n'<<': 4\n",
        "a: <<\nb: =\n",
    ],
)
def test_what_is_read_is_what_the_safe_loader_reads(parser: None, tmp_path: Path, text: str) -> None:
    if "=" in text:  # this one it does not construct
        assert plain(read_yaml(written(tmp_path, text))) == {"a": "<<", "b": "="}
        return
    assert plain(read_yaml(written(tmp_path, text))) == yaml.safe_load(text)


def test_every_value_knows_its_line(tmp_path: Path) -> None:
    root = read_yaml(written(tmp_path, "# comment\nmm:\n\n  - META:\n      BLOCK: 4\n"))
    assert root is not None
    assert isinstance(root.value, dict)
    [entry] = root.value["mm"].value  # type: ignore[misc,union-attr]
    assert (root.line, entry.line, entry.value["META"].value["BLOCK"].line) == (2, 4, 5)


def test_a_key_is_the_text_that_was_written(tmp_path: Path) -> None:
    text = "9.0: 1\n10.0: 2\non: 3\nnull: 4\n0x10: 5\n"
    assert plain(read_yaml(written(tmp_path, text))) == {"9.0": 1, "10.0": 2, "on": 3, "null": 4, "0x10": 5}


LAUGHS = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefghijk", "bcdefghijkl", strict=True)
)


@pytest.mark.parametrize("parser", ["libyaml", "Python"], indirect=True)
@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        (LAUGHS, 5, "more than 100000 values"),
        ("a: [" + "1," * 120_000 + "]", 1, "more than 100000 values"),
        ("a: " + "[" * 50_000, 1, "nested more than 20"),
        ("a: " + "{b: " * 50_000, 1, "nested more than 20"),
        ("- " * 50_000, 1, "nested more than 20"),
        ("\n".join(" " * depth + "a:" for depth in range(500)), 21, "nested more than 20"),
        ("mm: []\nadd: []\nmm: []\n", 3, "'mm' is already in line 1"),
        ("mm: {x: 1, 'x': 2}\n", 1, "'x' is already in line 1"),
        ("mm: {<<: {x: 1}, <<: {y: 1}}\n", 1, "'<<' is already in line 1"),
        ("mm: !!python/object/apply:os.system ['touch x']\n", 1, "python/object/apply:os.system"),
        ("mm: !!python/name:os.system\n", 1, "python/name:os.system"),
        ("mm:\n  x: !mine 4\n", 2, "'!mine'"),
        ("mm: !!int '4'\n", 1, "the tag"),
        ("mm: &a [1, *a]\n", 1, "an alias .* is inside the value"),
        ("mm: &a {b: {c: *a}}\n", 1, "an alias .* is inside the value"),
        ("mm: &a {<<: *a}\n", 1, "an alias .* is inside the value"),
        ("mm: *unknown\n", 1, "found undefined alias"),
        ("a: &k 1\nb: &k 2\n", 2, "found duplicate anchor"),
        ("a: 1\n? [b]\n: 2\n", 2, "a key is a list or a mapping"),
        ("a: 1\n? {b: 1}\n: 2\n", 2, "a key is a list or a mapping"),
        ("mm:\n  <<: 4\n", 2, "`<<` is 4"),
        ("mm:\n  <<: []\n", 2, "`<<` is a list"),
        ("a: 1\n---\nb: 2\n", 2, "a second document"),
        ("a: 1\nb:\n", 3, "a value is missing"),
        ("a: 1\nb: 2024-01-31\n", 2, "2024-01-31 is a date"),
        ("a: 0b_\n", 1, "not a number"),
        ("a: " + "9" * 5000, 1, "more than 1000 characters"),
        ("a: 1\n" + "k" * 1001 + ": 1\n", 2, "not YAML|more than 1000 characters"),
        ("a: 1\n\tb: 2\n", 2, "not YAML"),
        ("a: [1\n", 2, "not YAML"),
        ("a: 1\nb: \x00\n", 2, "not YAML"),
        ("a: 1\nb: 'open\n", 3, "not YAML"),
        ("a: 'x'\n? '" + "k" * 1001 + "'\n: 1\n", 2, "more than 1000 characters"),
    ],
)
def test_what_is_not_plain_values_is_refused_with_its_line(
    parser: None, tmp_path: Path, text: str, line: int, why: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(RequestError, match=why) as refused:
        read_yaml(path)
    found = str(refused.value).removeprefix(f"{path}, line ").partition(":")[0]
    # Where nothing follows, the two parsers differ by a line.
    assert abs(int(found) - line) <= 1
    assert len(str(refused.value)) < 500 + len(str(path))


def test_a_tag_makes_no_object(tmp_path: Path) -> None:
    made = tmp_path / "made"
    with pytest.raises(RequestError):
        read_yaml(written(tmp_path, f"mm: !!python/object/apply:pathlib.Path.touch [{made}]\n"))
    assert not made.exists()


def test_a_byte_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="line 2: the byte 0xff is not UTF-8"):
        read_yaml(written(tmp_path, b"a: 1\nb: \xff\n"))


def test_a_file_of_more_than_a_mebibyte_is_refused(tmp_path: Path) -> None:
    fits = b"#" * (2**20 - 1) + b"\n"
    assert read_yaml(written(tmp_path, fits)) is None
    with pytest.raises(RequestError, match="more than 1048576 bytes"):
        read_yaml(written(tmp_path, fits + b"\n"))


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="does not exist"):
        read_yaml(tmp_path / "nowhere.yaml")
    with pytest.raises(RequestError, match="is not a file"):
        read_yaml(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(RequestError, match="is not a file"):
        read_yaml(tmp_path / "pipe.yaml")


def test_a_path_that_the_system_refuses_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"cannot be read|does not exist"):
        read_yaml(tmp_path / ("x" * 5000))
