"""The versions of a kernel that its tests load, read from their sources."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from kernels.support.files import FileTooLarge, read_bounded

__all__ = ["MAX_TEST_BYTES", "other_versions"]

#: The most bytes of a test file that are read: a larger one is left out.
MAX_TEST_BYTES = 1024 * 1024


def other_versions(files: Iterable[Path], repo_ids: Collection[str], version: int) -> Iterator[tuple[Path, int, int]]:
    """Where tests load another version of a kernel than the one that is tested in its place.

    Args:
        files: The tests. Their sources are parsed, not run.
        repo_ids: The names of the kernel's repository.
        version: The version that `build.toml` has.

    Yields:
        The file, the line, and the version there: of calls with a repository, as text or as a constant of the file,
        and a number for `version`.
    """
    for file in files:
        with suppress(OSError, FileTooLarge, ValueError, SyntaxError, RecursionError):
            tree = ast.parse(read_bounded(file, MAX_TEST_BYTES))
            constants = _constants(tree)
            for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
                given = {each.arg: each.value for each in call.keywords}
                repository = call.args[0] if call.args else given.get("repo_id")
                requested = _value(given.get("version"), constants)
                if _value(repository, constants) in repo_ids and type(requested) is int and requested != version:
                    yield file, call.lineno, requested


def _constants(tree: ast.Module) -> dict[str, object]:
    """The constants that a file assigns, by name."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _value(node: ast.expr | None, constants: dict[str, object]) -> object:
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    return node.value if isinstance(node, ast.Constant) else None
