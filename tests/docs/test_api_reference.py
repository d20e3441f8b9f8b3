"""The pages of the Python API: every public name once, with all that its reader looks for."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from api_names import API, documented_names, summary

import kernels
from kernels import errors

PUBLIC = {f"kernels.{name}" for name in kernels.__all__} - {"kernels.__version__"}
PUBLIC |= {f"kernels.errors.{name}" for name in errors.__all__}


def test_every_public_name_is_documented_once() -> None:
    counted = Counter(name for name, _ in documented_names())
    assert set(counted) >= PUBLIC
    assert {name for name, times in counted.items() if times > 1} == set()


def test_every_documented_name_says_in_one_sentence_what_it_is() -> None:
    assert [name for name, _ in documented_names() if not summary(name).endswith(".")] == []


def test_every_page_is_in_the_menu_and_says_for_whom_it_is() -> None:
    assert {page for _, page in documented_names()} == {page for page in API.glob("*.md") if page.name != "index.md"}
    for page in API.glob("*.md"):
        assert re.match(r"(?:<!--.+-->\n\n)?# .+\n\nFor ", page.read_text(encoding="utf-8")), page.name


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("def call(size: int) -> None: ...", ["package.name.call has no docstring"]),
        (
            'def call(size: int) -> int:\n    """Do it.\n\n    Args:\n        sizes: How much.\n    """',
            [
                "package.name.call does not describe size under Args",
                "package.name.call describes sizes, which it does not take",
                "package.name.call does not say what it returns",
            ],
        ),
        (
            'class call:\n    """It.\n\n    Args:\n        a: One.\n    """\n'
            "    def __init__(self, a: int, b: int) -> None:\n        self.c = a\n\n    def run(self) -> None: ...",
            [
                "package.name.call.c has no docstring",
                "package.name.call.run has no docstring",
                "package.name.call does not describe b",
            ],
        ),
        (
            "from dataclasses import dataclass\n@dataclass\nclass call:\n"
            '    """It.\n\n    Attributes:\n        a: One.\n        gone: Not there.\n    """\n    a: int\n    b: int',
            [
                "package.name.call.b has no docstring",
                "package.name.call does not describe b",
                "package.name.call describes gone, which it does not have",
            ],
        ),
        ("call = int | str", ["package.name.call has no docstring"]),
        ('call = int | str\n"""A number."""', []),
    ],
)
def test_a_name_without_a_description_is_a_gap(source: str, missing: list[str], tmp_path: Path) -> None:
    griffe = pytest.importorskip("griffe")
    from api_docstrings import gaps

    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "name.py").write_text(source)
    package = griffe.load("package", search_paths=[tmp_path], docstring_parser="google")
    assert gaps("package.name.call", package) == missing
