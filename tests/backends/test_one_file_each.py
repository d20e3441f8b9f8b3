"""A backend is one file: no module outside `backends/` may name one in a branch or a table."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import kernels
from kernels import backends

PACKAGE = Path(kernels.__file__).parent
NAMES = {name for each in backends.all_backends() for name in (*each.device_names(), each.mapping_device)} - {
    "universal"
}
#: A compiler's module names its language and its libraries, which are spelled as a backend that has them.
EXEMPT = {PACKAGE / "backends", PACKAGE / "authoring" / "compile" / "toolchains"}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if not EXEMPT & set(path.parents))


def named_in_a_decision(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Backend names that are compared, matched, looked up, or stand in a table; an `example=` decides nothing."""
    examples = {
        id(each)
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "example"
        for each in ast.walk(node.value)
    }
    for node in ast.walk(tree):
        if id(node) in examples:
            continue
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
        elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            operands = list(node.elts)
        elif isinstance(node, ast.Dict):
            operands = [*(key for key in node.keys if key is not None), *node.values]
        elif isinstance(node, ast.Subscript):
            operands = [node.slice]
        elif isinstance(node, ast.MatchValue):
            operands = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            operands = list(node.args) if node.func.attr in ("startswith", "endswith", "get", "find") else []
        else:
            continue
        for operand in operands:
            if isinstance(operand, ast.Constant) and operand.value in NAMES:
                yield operand.lineno, operand.value


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_other_module_decides_by_a_backends_name(path: Path) -> None:
    assert list(named_in_a_decision(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    "source",
    [
        "if backend == 'cuda': pass",
        "x in ('rocm', 'other')",
        "table = {'npu': 1}",
        "table = {1: 'mps'}",
        "table['xpu']",
        "name.startswith('cu')",
        "match name:\n    case 'tpu': pass",
        "match name:\n    case 'tpu' | 'neuron': pass",
    ],
)
def test_the_check_finds_what_it_looks_for(source: str) -> None:
    assert list(named_in_a_decision(ast.parse(source)))


def test_each_backend_has_a_file_of_its_own() -> None:
    files = {type(each).__module__ for each in backends.all_backends()}
    assert files == {f"kernels.backends.builtin.{each.name}" for each in backends.all_backends()}
