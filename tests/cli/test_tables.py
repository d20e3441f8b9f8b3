"""Tables: folded at spaces to a terminal's width, whole in a pipe, and no word is ever broken."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hub import TestHub
from terminal import each_on_a_terminal, on_a_terminal

from kernels.cli._tables import lay_out_fields, lay_out_table
from kernels.support.version import MajorMinor

#: As long as a repository's name may be: 96 characters.
LONG = "kernels-community-of-many-friends/" + "flash-attention-with-paged-key-value-cache-and-variable-length"
VARIANTS = [
    "torch-cpu",
    "torch-stable-abi29-cpu-x86_64-linux",
    "torch-stable-abi29-cu130-x86_64-linux",
    "torch212-cxx11-rocm71-x86_64-linux",
    "tvm-ffi01-cu130-x86_64-linux",
]


def lines_of(laid_out: Any) -> list[str]:
    return ["".join(text for text, _ in line) for line in laid_out]


ROWS = [["acme/relu", "torch-cpu", "for cpu, not cuda, and of an older Torch", "1 B"], ["acme/gelu", "x", "", "20 B"]]
COLUMNS = ["Repository", "Build", "Reason", ">Size"]


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (
            None,
            """\
Repository  Build      Reason                                    Size
acme/relu   torch-cpu  for cpu, not cuda, and of an older Torch   1 B
acme/gelu   x                                                    20 B""",
        ),
        (
            60,
            """\
Repository  Build      Reason                           Size
acme/relu   torch-cpu  for cpu, not cuda, and of an      1 B
                       older Torch
acme/gelu   x                                           20 B""",
        ),
        (
            40,
            """\
Repository  Build      Size
acme/relu   torch-cpu   1 B
  Reason: for cpu, not cuda, and of an
          older Torch
acme/gelu   x          20 B""",
        ),
        (
            20,
            """\
Repository
  Build      Size
acme/relu
  torch-cpu   1 B
    Reason: for cpu, not
            cuda, and of an
            older Torch
acme/gelu
  x          20 B""",
        ),
    ],
)
def test_the_widest_columns_leave_a_table_that_is_too_wide(width: int | None, expected: str) -> None:
    assert lines_of(lay_out_table(COLUMNS, ROWS, width)) == expected.splitlines()


def test_rows_of_one_name_have_it_once_where_it_is_above_them() -> None:
    rows = [["a" * 30, "1"], ["a" * 30, "2"], ["b" * 30, "3"]]
    expected = ["Name", "  Commit", "a" * 30, "  1", "  2", "b" * 30, "  3"]
    assert lines_of(lay_out_table(["Name", "Commit"], rows, 20)) == expected


def test_details_become_a_table_below_their_row() -> None:
    rows = [["acme/relu", "2026-11-22", "torch-cpu", "1 B"], ["", "", "torch-cuda", "2 B"], ["x", "-", "t", "3 B"]]
    columns = ["Repository", "Used", "Build", ">Size"]
    assert lines_of(lay_out_table(columns, rows, 80, details=[2, 3]))[1:3] == [
        "acme/relu   2026-11-22  torch-cpu    1 B",
        "                        torch-cuda   2 B",
    ]
    assert lines_of(lay_out_table(columns, rows, 30, details=[2, 3])) == [
        "Repository  Used",
        "  Build       Size",
        "acme/relu   2026-11-22",
        "  torch-cpu    1 B",
        "  torch-cuda   2 B",
        "x           -",
        "  t            3 B",
    ]


def test_wide_characters_take_two_columns() -> None:
    assert lines_of(lay_out_table(["Name", "x"], [["\u6838", "y"], ["abcd", "z"]], None))[1:] == [
        "\u6838    y",
        "abcd  z",
    ]


def test_values_are_folded_beside_their_names() -> None:
    fields = [("notes", "one two three four five"), ("path", "/a/very/long/path/without/spaces"), ("", "more")]
    assert lines_of(lay_out_fields(fields, 23)) == [
        "notes  one two three",
        "       four five",
        "path   /a/very/long/path/without/spaces",
        "       more",
    ]


@pytest.fixture
def long_names(hub: TestHub) -> TestHub:
    hub.trusted.add("kernels-community-of-many-friends")
    for version in (1, 2):
        hub.make_repo(LONG, version=version, variants=VARIANTS)
    hub.make_repo("acme/relu", archs=["7.5", "8.0", "8.6", "8.9", "9.0a", "10.0a"], variants=["torch-cuda"])
    return hub


#: Each command that prints a table of kernels, in an order in which the cache fills.
EACH = [
    ["versions", LONG],
    ["info", LONG, "--version", "1"],
    ["explain", LONG, "--version", "1"],
    ["explain", LONG, "--version", "1", "--target", "torch2.13-cu130-x86_64-linux+sm_75"],
    ["download", LONG, "--version", "1"],
    ["cache", "list"],
    ["cache", "size"],
    ["cache", "verify"],
    ["cache", "prune"],
    ["verify", LONG, "--version", "1", "--all-variants"],
    ["info", "acme/relu", "--version", "1"],
    ["backends"],
    ["doctor"],
]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_no_command_breaks_a_word_on_a_terminal(long_names: TestHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for command, shown in zip(EACH, each_on_a_terminal(EACH, own_cache=False, columns=80), strict=True):
        assert "\x1b" not in shown  # NO_COLOR
        words = set(shown.split())
        for name in [LONG, LONG.partition("/")[2], *VARIANTS]:
            # A name's beginning stands alone only where the name was broken.
            assert not {word for word in words if len(word) > 18 and name.startswith(word)} - {name, *VARIANTS}, shown
        for line in shown.splitlines():
            # Only a line of one word, perhaps with a title, is longer: the terminal folds it, and it can be copied.
            sentence = re.match(r"Warning|Downloaded|Nothing|Standard|\d+ (commit|build)", line)
            assert len(line) <= 80 or sentence or len(line.split()) <= 2, (command, line)
        if command[0] in ("info", "explain") and LONG in command:
            assert {LONG, *VARIANTS} <= words


def test_a_pipe_gets_no_escapes_and_no_frames(long_names: TestHub, kernels_process: Callable[..., Any]) -> None:
    for command in (["explain", LONG, "--version", "1"], ["explain", "--help"], ["--help"]):
        done = kernels_process(*command, COLUMNS="40", FORCE_COLOR="", TERM="xterm-256color")
        assert done.returncode == 0
        assert not set(done.stdout) & set("\x1b\u2502\u2500\u256d")
    if MajorMinor.parse(torch.__version__) >= MajorMinor(2, 9):
        assert "fits, but torch-stable-abi29-cpu-x86_64-linux is preferred" in kernels_process(*EACH[2]).stdout


@pytest.mark.parametrize(
    "env", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONIOENCODING": "ascii"}]
)
def test_a_locale_without_these_characters_gets_others(
    long_names: TestHub, kernels_process: Callable[..., Any], env: dict[str, str]
) -> None:
    for command in (["serve", "--help"], ["info", LONG, "--version", "1"], ["info", "\u6838/\u6838"]):
        done = kernels_process(*command, **env)
        assert done.returncode in (0, 1)
        assert "Traceback" not in done.stderr
        assert (done.stdout + done.stderr).isascii()
    assert "ROOT/<org>/<name>/<version>/..." in kernels_process("serve", "--help", **env).stdout


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.parametrize("arguments", [["explain", "-h"], ["cache", "-h"], ["-h"]])
def test_help_fits_a_narrow_terminal(arguments: list[str]) -> None:
    status, shown = on_a_terminal(*arguments, COLUMNS="60")
    assert status == 0
    assert "Usage: kernels" in shown
    assert all(len(line) <= 60 for line in shown.splitlines())
