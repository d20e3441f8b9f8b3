"""A YAML file becomes plain values, or an error that names the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernels.errors import RequestError
from kernels.support.yaml import read_yaml


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "some.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_plain_values_are_read(tmp_path: Path) -> None:
    assert read_yaml(written(tmp_path, "\ufeffa: &one [1, ü]\nb: {c: *one}\n")) == {"a": [1, "ü"], "b": {"c": [1, "ü"]}}
    assert read_yaml(written(tmp_path, "# nothing\n")) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: " + "[" * 50_000, "recursion"),
        ("a: " + "{b: " * 20_000, "recursion"),
        ("- " * 50_000, "recursion"),
        ("mm: !mine 4\n", "tag '!mine'"),
        ("mm: *unknown\n", "found undefined alias"),
        ("a: 1\n---\nb: 2\n", "but found another document"),
        ("a: 0b_\n", "invalid literal"),
        ("a: 1\n? [b]\n: 2\n", "unhashable key"),
        ("a: [1\n", "line 2, column 1"),
        (b"a: 1\nb: \xff\n", "can't decode byte 0xff"),
        ("#" * (128 * 1024 + 1), "more than 131072 bytes"),
    ],
    ids=lambda value: repr(value[:12]),
)
def test_what_is_not_plain_values_is_refused(tmp_path: Path, text: str | bytes, why: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(RequestError, match=why) as refused:
        read_yaml(path)
    assert str(refused.value).startswith(str(path))
    assert len(str(refused.value)) < 600


def test_nothing_is_run(tmp_path: Path) -> None:
    made = tmp_path / "made"
    with pytest.raises(RequestError, match="python/object/apply"):
        read_yaml(written(tmp_path, f"mm: !!python/object/apply:pathlib.Path.touch [{made}]\n"))
    assert not made.exists()


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read: No such file"):
        read_yaml(tmp_path / "nowhere.yaml")
    with pytest.raises(RequestError, match="is not a file; expected a YAML file"):
        read_yaml(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(RequestError, match="is not a file"):
        read_yaml(tmp_path / "pipe.yaml")
