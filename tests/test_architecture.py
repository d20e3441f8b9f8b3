"""The packages import downward only, as docs/design.md lists them, and the tests lie where their modules do."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import kernels

ROOT = Path(__file__).parents[1]
SOURCE = Path(kernels.__file__).parent

#: Every module by its dotted name, with its syntax tree.
MODULES = {
    ".".join(("kernels", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"): ast.parse(
        path.read_text(encoding="utf-8")
    )
    for path in SOURCE.rglob("*.py")
}


def documented_order() -> list[str]:
    """The packages and top-level modules of docs/design.md, from the bottom up."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    table = text.partition("## The packages")[2].partition("\n## ")[0]
    names = re.findall(r"^\| `([a-z_]+)(?:/|\.py)` \|", table, re.M)
    return names[::-1] if names[0] == "cli" else names


def imports(tree: ast.AST, *, types: bool = True) -> set[str]:
    """The modules of this package that a module imports, wherever in it.

    Args:
        tree: The module.
        types: Also those that only type checkers import.
    """
    only_types = {
        id(each)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for each in ast.walk(statement)
    }
    found = set()
    for node in ast.walk(tree):
        if not types and id(node) in only_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return {name for name in found if name in MODULES}


def package(module: str) -> str:
    """The top-level package or module that a module belongs to."""
    return module.split(".")[1] if "." in module else ""


def test_every_package_is_documented_once() -> None:
    here = {package(module) for module in MODULES} - {"", "__main__"}
    order = documented_order()
    assert sorted(order) == sorted(here)


@pytest.mark.parametrize("module", sorted(set(MODULES) - {"kernels", "kernels.__main__"}))
def test_a_module_imports_nothing_above_its_package(module: str) -> None:
    order = documented_order()
    above = order[order.index(package(module)) + 1 :]
    assert {name for name in imports(MODULES[module]) if package(name) in above or name == "kernels"} == set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {module: imports(tree, types=False) - {module, "kernels"} for module, tree in MODULES.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_a_test_lies_where_its_module_does() -> None:
    modules = {path.relative_to(SOURCE).with_suffix("").as_posix() for path in SOURCE.rglob("*.py")}
    folders = {path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
    own = {"fixtures", "gpu", "integration", "security", "examples", "vendors", "typing"}
    strays = {
        path.relative_to(ROOT / "tests").as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        for folder in [path.parent.relative_to(ROOT / "tests").as_posix()]
        if folder.split("/")[0] not in own and folder not in folders
    }
    assert strays == set()
    assert modules
