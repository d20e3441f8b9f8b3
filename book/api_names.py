"""The names that the pages of the Python API document, and the index of these pages, with a line on each name.

A page names what it documents in lines such as `::: kernels.get_kernel`; mkdocstrings puts the docstring there. On
GitHub, only the line is seen, so the index says what each name is.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

__all__ = ["API", "INDEX", "documented_names", "index", "summary"]

ROOT = Path(__file__).parents[1]
API = ROOT / "docs" / "api"
INDEX = API / "index.md"

_DIRECTIVE = re.compile(r"^::: (kernels\.\S+)$", re.MULTILINE)

_HEAD = """\
<!-- Written by `make reference` from the pages beside it and the docstrings. -->

# Python API

For everyone who calls `kernels` from Python: every public name, what it is, and the page with its arguments, results,
errors and examples. `help(kernels.get_kernel)` shows the same text.

Import a name from `kernels`, unless its line or its table says another module. What is imported from `kernels` is
stable; the rest is documented and tested, but may still change.
"""


def documented_names() -> Iterator[tuple[str, Path]]:
    """The dotted names that the pages document, each with its page, in the order of the site's menu.

    A module stands for all that its `__all__` lists.
    """
    for uri in re.findall(r"- (?:.+: )?(api/[a-z-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE):
        page = ROOT / "docs" / uri
        for name in _DIRECTIVE.findall(page.read_text(encoding="utf-8")):
            if _is_module(name):
                yield from ((f"{name}.{each}", page) for each in importlib.import_module(name).__all__)
            else:
                yield name, page


def index() -> str:
    """The text of the index."""
    parts = [_HEAD]
    for page, found in groupby(documented_names(), key=lambda each: each[1]):
        names = [name for name, _ in found]
        modules = {name.rpartition(".")[0] for name in names}
        title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        # Said once, if it holds for all.
        of_all = f"From `{min(modules)}`:\n\n" if len(modules) == 1 and modules != {"kernels"} else ""
        parts.append(f"\n## [{title}]({page.name})\n\n{of_all}| name | what it is |\n|---|---|\n")
        for dotted in names:
            module, _, name = dotted.rpartition(".")
            where = "" if module == "kernels" or of_all else f" From `{module}`."
            what = summary(dotted).replace("|", "\\|")
            parts.append(f"| [`{name}`]({page.name}#{dotted}) | {what}{where} |\n")
    return "".join(parts)


def summary(name: str) -> str:
    """The first sentence of the docstring of a dotted name.

    Raises:
        LookupError: It has none.
    """
    owner, _, last = name.rpartition(".")
    value = getattr(importlib.import_module(owner), last)
    is_own = (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__.startswith("kernels.")
    text = inspect.getdoc(value) if is_own else _docstring_of_value(owner, last)
    if not text:
        raise LookupError(f"{name} has no docstring")
    found = re.match(r"(.+?\.)(?:\s|$)", " ".join(text.partition("\n\n")[0].split()))
    return text if found is None else found[1]


def _is_module(name: str) -> bool:
    owner, _, last = name.rpartition(".")
    return not hasattr(importlib.import_module(owner), last) or inspect.ismodule(
        getattr(importlib.import_module(owner), last)
    )


def _docstring_of_value(module: str, name: str) -> str | None:
    """The text below an assignment, in the module that makes it: a value has no docstring of its own at run time."""
    body = _statements(module)
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.ImportFrom) and statement.module:
            for alias in statement.names:
                if (alias.asname or alias.name) == name:
                    return _docstring_of_value(statement.module, alias.name)
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            return inspect.cleandoc(str(following.value.value)) if is_text else None  # type: ignore[union-attr]
    return None


@cache
def _statements(module: str) -> list[ast.stmt]:
    """The statements of a module, with those that type checkers alone see."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    body: list[ast.stmt] = []
    for statement in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        is_typing = isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"
        body += statement.body if is_typing else [statement]  # type: ignore[attr-defined]
    return body
