"""The messages and loggers on the pages for those who look for what is wrong are in the code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from doc_pages import ROOT, names, table, tables

import kernels

#: What the system, Python or Triton says, not this package.
FOREIGN = ("GLIBC", "undefined symbol", "No module named", "Failed to find C compiler")

MESSAGES = [
    row[0].strip("`")
    for rows in tables(ROOT / "docs" / "troubleshooting.md")
    for row in rows
    if len(row) == 3 and row[0].startswith("`") and "…" in row[0] and not any(word in row[0] for word in FOREIGN)
]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """The texts in the code, each with `…` where a value is."""
    found = []
    for file in Path(kernels.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(str(each.value) if isinstance(each, ast.Constant) else "…" for each in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_on_the_page_is_in_the_code(message: str, texts: list[str]) -> None:
    parts = [part.strip() for part in message.split("…") if part.strip(" .")]
    assert any(all(part in text for part in parts) for text in texts)


LOGGERS = [names(row[0])[0] for row in table("logging.md", "`kernels.status`")]


@pytest.mark.parametrize("name", LOGGERS)
def test_a_logger_on_the_page_is_named_in_the_code_or_after_a_module(name: str, texts: list[str]) -> None:
    path = Path(kernels.__file__).parents[1].joinpath(*name.split("."))
    assert name in texts or path.is_dir() or path.with_suffix(".py").is_file()
