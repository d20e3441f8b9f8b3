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
    """The packages and top-level modules that docs/design.md lists, from the bottom up."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    table = text.partition("## The packages")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([a-z_]+)(?:/|\.py)` \|", table, re.M)


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
    assert sorted(documented_order()) == sorted({package(module) for module in MODULES} - {"", "__main__"})


#: The errors clean their text, and what supports everything raises errors: the two are one layer.
GROUND = {"support", "errors"}


@pytest.mark.parametrize("name", sorted({package(module) for module in MODULES} - {"", "__main__"}))
def test_a_package_imports_none_above_it(name: str) -> None:
    order = documented_order()
    above = {*order[order.index(name) + 1 :], ""} - (GROUND if name in GROUND else set())
    wrong = {
        f"{module} imports {imported}"
        for module, tree in MODULES.items()
        if package(module) == name
        for imported in imports(tree)
        if package(imported) in above
    }
    assert wrong == set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {module: imports(tree, types=False) - {module, "kernels"} for module, tree in MODULES.items()}
    # The registry starts the discovery of plugins when it is first used, and discovery fills the registry.
    graph["kernels.backends.registry"].remove("kernels.backends.plugins.discovery")
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


#: Folders of tests of whole calls, and of what tests share.
OWN = {"compat", "docs", "examples", "fixtures", "gpu", "integration", "security", "typing", "vendors"}


def test_a_test_lies_where_its_module_does() -> None:
    packages = {path.parent.relative_to(SOURCE) for path in SOURCE.rglob("*.py")}
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    assert {folder for folder in folders - packages if not folder.parts or folder.parts[0] not in OWN} == set()


def test_no_two_classes_have_the_same_name() -> None:
    defined: dict[str, list[str]] = {}
    for module, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined.setdefault(node.name, []).append(module)
    # A device of a target, and the public one of a kernel mapping.
    assert defined.pop("Device") == ["kernels.layer.device", "kernels.backends.base"] or "Device" not in defined
    assert {name: modules for name, modules in defined.items() if len(modules) > 1} == {}
