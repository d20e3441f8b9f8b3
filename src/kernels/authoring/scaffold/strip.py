"""Remove from a kernel's Python sources what its backends forbid (`cuda_hacks_to_strip`)."""

from __future__ import annotations

import ast
import difflib
import io
import os
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from kernels.authoring.compile import read_source
from kernels.authoring.compile.sources.workspace import find_workspace
from kernels.authoring.python_syntax import parse_source
from kernels.backends import find
from kernels.support.files import read_bounded
from kernels.support.limited_call import LimitExceeded, call_limited

__all__ = ["Stripped", "StrippedFile", "strip_sources", "strip_text"]

_MAX_BYTES = 4 << 20
_PYTHON_FOLDERS = ("torch-ext", "tvm-ffi-ext")

#: Torch's name of the devices that the texts are written for: NVIDIA's, and AMD's too.
_CUDA_DEVICE = "cuda"


@dataclass(frozen=True)
class Stripped:
    """A Python source without what a backend forbids.

    Attributes:
        text: The source.
        left: What was found and not removed: the line in the original, counted from 1, and the reason.
    """

    text: str
    left: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class StrippedFile:
    """A file of a kernel's sources that has something that its backends forbid.

    Attributes:
        path: The file.
        diff: What removing changes, as a unified diff; empty if nothing can be removed.
        left: What was found and is not removed: the line, and the reason.
    """

    path: Path
    diff: str
    left: tuple[tuple[int, str], ...]


def strip_sources(folder: os.PathLike[str] | str, *, write: bool = False) -> list[StrippedFile]:
    """Find in a kernel's Python sources what its backends forbid, and remove it if asked.

    The backends of a source folder share its files. What is forbidden for one of them, and not for another whose Torch
    device is `cuda`, is reported and not removed.

    Args:
        folder: A source folder, or the parent of a kernel's source folders.
        write: Change the files.

    Returns:
        The files that have something forbidden.

    Raises:
        RequestError: The folder has no `build.toml`.
    """
    workspace = find_workspace(folder)
    sources = [read_source(folder)] if workspace is None else list(workspace.sources)
    found = []
    for source in sources:
        forbidden = {name: find(name).cuda_hacks_to_strip for name in source.backends}
        hacks = list(dict.fromkeys(hack for each in forbidden.values() for hack in each))
        on_cuda = [name for name in forbidden if find(name).device_type == _CUDA_DEVICE]
        allowed = {hack: ", ".join(name for name in on_cuda if hack not in forbidden[name]) for hack in hacks}
        needed = {hack: names for hack, names in allowed.items() if names}
        texts = {path: text for path in _python_files(source.folder) if (text := _text(path)) is not None}
        words = {path: set(re.findall(r"\w+", text)) for path, text in texts.items()}
        for path, text in texts.items() if hacks else ():
            used = {word for other, found_words in words.items() if other != path for word in found_words}
            stripped = strip_text(text, hacks, used, needed)
            if stripped.text == text and not stripped.left:
                continue
            name = path.relative_to(source.folder).as_posix()
            found.append(StrippedFile(path, _diff(text, stripped.text, name), stripped.left))
            if write and stripped.text != text:
                path.write_bytes(stripped.text.encode("utf-8"))
    return found


def strip_text(
    text: str, hacks: Iterable[str], used: Set[str] = frozenset(), needed: Mapping[str, str] = MappingProxyType({})
) -> Stripped:
    """Remove the statements of a Python source that have a forbidden text.

    The text is searched as it stands, line by line, as `kernels check` does; comments do not count, and a text that
    starts inside of a string is only reported. A statement is removed as a whole; a function if the
    forbidden text names it, as in `def fake_device`. What the rest needs is left, with the reason.

    Args:
        text: The source.
        hacks: Literal texts.
        used: Names that other files use.
        needed: Backends by the texts that they allow: a statement with such a text is left.

    Example:
        >>> strip_text("import torch\\ntorch.cuda.synchronize()\\nx = 1\\n", ["torch.cuda."]).text
        'import torch\\nx = 1\\n'
    """
    hacks = [hack for hack in hacks if hack]
    lines = text.splitlines(keepends=True)
    if "\f" in text or "\r" in text.replace("\r\n", ""):
        lines = io.StringIO(text, newline="").readlines()
    if not any(hack in line for line in lines for hack in hacks):
        return Stripped(text, ())
    try:
        return call_limited(_strip, lines, hacks, frozenset(used), dict(needed))
    except LimitExceeded as error:
        return Stripped(text, ((1, f"the file cannot be parsed: {error}"),))


def _strip(lines: Sequence[str], hacks: Sequence[str], used: Set[str], needed: Mapping[str, str]) -> Stripped:
    text = "".join(lines)
    try:
        module = parse_source(text)
        texts = list(_texts(text))
    except (SyntaxError, ValueError, RecursionError, tokenize.TokenError):
        return Stripped(text, ((1, "the file is not valid Python"),))
    statements = list(_statements(module))
    chosen: dict[ast.stmt, int] = {}
    kept: set[ast.stmt] = set()
    left: list[tuple[int, str]] = []
    for number, column, hack in _occurrences(lines, hacks):
        kind = next((kind for kind, start, end in texts if start <= (number, column) < end), "")
        if kind == "comment":
            continue
        holder = max(
            (each for each in statements if _first_line(each) <= number <= (each.end_lineno or number)),
            key=lambda each: (_first_line(each), -(each.end_lineno or 0)),
            default=None,
        )
        reason = _reason(holder, hack, statements) if not kind else f"{hack!r} is in a text"
        if not reason and hack in needed:
            reason = f"{hack!r} may be needed for {needed[hack]}; it must not run for the others"
        if holder is None or reason:
            left.append((number, reason or f"{hack!r} is in no statement"))
            if holder is not None and hack in needed:
                kept.add(holder)
        else:
            chosen.setdefault(holder, number)
    chosen = {statement: number for statement, number in chosen.items() if statement not in kept}
    for statement, name in _needed(module, chosen, used):
        left.append((chosen.pop(statement), f"`{name}`, which it sets, is used elsewhere"))
    return Stripped(_without(lines, module, chosen), tuple(sorted(set(left))))


def _python_files(folder: Path) -> list[Path]:
    """The Python files of a kernel's package; no links, which may lead elsewhere."""
    found = [path for name in _PYTHON_FOLDERS for path in (folder / name).rglob("*.py")]
    return sorted(path for path in found if path.is_file() and Path(os.path.realpath(path)) == _real(folder, path))


def _text(path: Path) -> str | None:
    try:
        return read_bounded(path, _MAX_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        return None


def _real(folder: Path, path: Path) -> Path:
    return Path(os.path.realpath(folder)) / path.relative_to(folder)


def _diff(before: str, after: str, name: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(lines)


def _texts(text: str) -> Iterator[tuple[str, tuple[int, int], tuple[int, int]]]:
    """The comments and strings: where they start and end. The parts of a formatted string are its own."""
    kinds = {tokenize.COMMENT: "comment", tokenize.STRING: "string"}
    kinds.update({getattr(tokenize, name): "string" for name in ("FSTRING_MIDDLE",) if hasattr(tokenize, name)})
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds:
            yield kinds[token.type], token.start, token.end


def _occurrences(lines: Sequence[str], hacks: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    for number, line in enumerate(lines, 1):
        for hack in hacks:
            column = line.find(hack)
            while column >= 0:
                yield number, column, hack
                column = line.find(hack, column + 1)


def _statements(module: ast.Module) -> Iterator[ast.stmt]:
    return (node for node in ast.walk(module) if isinstance(node, ast.stmt))


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


def _reason(holder: ast.stmt | None, hack: str, statements: Sequence[ast.stmt]) -> str:
    """Why a statement cannot be removed; empty if it can."""
    if isinstance(holder, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return "" if f"def {holder.name}".startswith(hack.rstrip("(:")) else "it is in the head of a function"
    if not isinstance(
        holder, (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Import, ast.ImportFrom, ast.Delete)
    ):
        what = type(holder).__name__.lower() if holder is not None else "statement"
        return f"the statement `{what}` around it decides what the code does"
    on_line = {_first_line(holder), holder.end_lineno}
    if any(
        each is not holder and {_first_line(each), each.end_lineno} & on_line and not _holds(each, holder)
        for each in statements
    ):
        return "another statement is on the same line"
    return ""


def _holds(outer: ast.stmt, inner: ast.stmt) -> bool:
    """Whether a statement is around another, and starts on a line of its own."""
    return _first_line(outer) < _first_line(inner) and (outer.end_lineno or 0) >= (inner.end_lineno or 0)


def _needed(module: ast.Module, chosen: dict[ast.stmt, int], elsewhere: Set[str]) -> list[tuple[ast.stmt, str]]:
    """The chosen statements that bind a name which is used outside of all that are removed."""
    kept: list[tuple[ast.stmt, str]] = []
    left = set(chosen)
    while True:
        used = _used(module, left) | elsewhere
        more = [(each, name) for each in left for name in sorted(_bound(each)) if name in used]
        if not more:
            return kept
        for statement, name in more:
            if statement in left:
                left.remove(statement)
                kept.append((statement, name))


def _used(node: ast.AST, removed: set[ast.stmt]) -> set[str]:
    found: set[str] = set()
    pending: list[ast.AST] = [node]
    while pending:
        each = pending.pop()
        if each in removed:
            continue
        if isinstance(each, ast.Name) and isinstance(each.ctx, (ast.Load, ast.Del)):
            found.add(each.id)
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            found.add(each.value)  # `__all__`, `getattr`
        pending.extend(ast.iter_child_nodes(each))
    return found


def _bound(statement: ast.stmt) -> set[str]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {(each.asname or each.name).partition(".")[0] for each in statement.names}
    return {each.id for each in ast.walk(statement) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


def _without(lines: Sequence[str], module: ast.Module, chosen: dict[ast.stmt, int]) -> str:
    kept = dict(enumerate(lines, 1))
    blocks = [
        block
        for node in ast.walk(module)
        for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody"))
        if isinstance(block, list)
    ]
    for block in blocks:
        gone = [each for each in block if each in chosen]
        for statement in gone:
            for number in range(_first_line(statement), (statement.end_lineno or statement.lineno) + 1):
                kept.pop(number, None)
        if gone and len(gone) == len(block) and block is not module.body:
            line = lines[_first_line(gone[0]) - 1]
            ending = line[len(line.rstrip("\r\n")) :] or "\n"
            kept[_first_line(gone[0])] = f"{line[: len(line) - len(line.lstrip())]}pass{ending}"
    return "".join(kept[number] for number in sorted(kept))
