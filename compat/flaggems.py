"""How many functions of FlagGems' vendor folders find their operators here: docs/compatibility.md.

    python compat/flaggems.py [--wheels FOLDER] [VERSION …]

downloads wheels of FlagGems and reads its vendors' folders without running them: each function of an `__all__` gets a
stand-in with its signature, for which the operators are looked up. The result is compared with FlagGems' own table of
registrations, and written into the page.
"""

from __future__ import annotations

import argparse
import ast
import copy
import datetime
import itertools
import linecache
import subprocess
import sys
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from page import write_section

from kernels.errors import RequestError
from kernels.operators.aten import operator_names
from kernels.operators.matching import operators_of
from kernels.operators.schema import check_function

PAGE = Path(__file__).resolve().parents[1] / "docs" / "compatibility.md"
VERSIONS = ("4.2.0", "5.0.0", "5.0.2")
_numbers = itertools.count()


@dataclass
class Counts:
    """The names of one folder, by what became of them."""

    names: int = 0
    found: int = 0
    used: int = 0
    no_operator: list[str] = field(default_factory=list)
    not_usable: list[str] = field(default_factory=list)
    otherwise: list[str] = field(default_factory=list)


def download(version: str, folder: Path) -> Path:
    """The package's folder, from its wheel."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*command, f"--dest={folder}", f"flag-gems=={version}"], check=True)
    [wheel] = folder.glob(f"flag_gems-{version}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / version)
    return folder / version / "flag_gems"


def registrations(package: Path) -> dict[str, list[str]]:
    """FlagGems' own table: the operators of each function."""
    found: dict[str, list[str]] = defaultdict(list)
    for node in ast.walk(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_FULL_CONFIG":
            assert isinstance(node.value, ast.Tuple)
            for each in node.value.elts:
                assert isinstance(each, ast.Tuple)
                found[ast.unparse(each.elts[1])].append(ast.literal_eval(each.elts[0]))
    return found


def listed(init: Path) -> list[str]:
    """The names in the `__all__` of a module, each once."""
    for node in ast.parse(init.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(dict.fromkeys(ast.literal_eval(node.value)))
    return []


def functions(ops: Path) -> dict[str, Callable[..., Any]]:
    """A stand-in for each function that the modules of a folder define."""
    found: dict[str, Callable[..., Any]] = {}
    for file in sorted(ops.rglob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                found.setdefault(node.name, stand_in(node))
    return found


def stand_in(node: ast.FunctionDef) -> Callable[..., Any]:
    """A function with the parameters and the source of another one, which is never run."""
    node = copy.deepcopy(node)
    node.decorator_list, node.returns = [], None
    arguments = node.args
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if each is not None:
            each.annotation = None
    arguments.defaults = [_literal(each) for each in arguments.defaults]
    arguments.kw_defaults = [None if each is None else _literal(each) for each in arguments.kw_defaults]
    source = f"{ast.unparse(ast.fix_missing_locations(node))}\n"
    name = f"<function {next(_numbers)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    names: dict[str, Any] = {}
    exec(compile(source, name, "exec"), names)  # defines the function, and runs nothing of it
    function: Callable[..., Any] = names[node.name]
    return function


def _literal(value: ast.expr) -> ast.expr:
    try:
        ast.literal_eval(value)
    except ValueError:
        return ast.Name("object", ast.Load())
    return value


def count(init: Path, table: dict[str, list[str]], names: dict[str, list[str]]) -> Counts:
    """What becomes of the names of a folder's `ops`."""
    counts, there = Counts(), functions(init.parent)
    for name in listed(init):
        counts.names += 1
        try:
            operators = operators_of(name, there[name], names)
        except (KeyError, RequestError):
            counts.no_operator.append(name)
            continue
        counts.found += 1
        # FlagGems' table also has overloads that Torch does not have; no function can be for those.
        known = {
            each for each in table.get(name, ()) if each.partition(".")[2] in names.get(each.partition(".")[0], ())
        }
        if known and not known & {each.qualified for each in operators}:
            counts.otherwise.append(f"{name}: {', '.join(each.qualified for each in operators)}")
        usable = [each for each in operators if _is_usable(each, there[name])]
        counts.used += bool(usable)
        counts.not_usable += [] if usable else [name]
    return counts


def _is_usable(operator: Any, function: Any) -> bool:
    try:
        check_function(operator, function, "", partial=True)
    except RequestError:
        return False
    return True


def rows(version: str, package: Path, missing: set[str], otherwise: set[str], unusable: set[str]) -> Iterator[str]:
    """The rows of a version, and what is to be said below the table."""
    table, names, all_counts = registrations(package), operator_names(), []
    for init in sorted((package / "runtime" / "backend").glob("_*/ops/__init__.py")):
        counts = count(init, table, names)
        all_counts.append(counts)
        missing.update(counts.no_operator)
        otherwise.update(counts.otherwise)
        unusable.update(counts.not_usable)
        if counts.names:
            yield f"| {version} | `{init.parts[-3]}` | {counts.names} | {counts.found} | {counts.used} |"
    total = [sum(getattr(each, name) for each in all_counts) for name in ("names", "found", "used")]
    share = f"{total[1] / total[0]:.1%}"
    yield f"| {version} | all | {total[0]} | {total[1]} ({share}) | {total[2]} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--wheels", type=Path, default=Path(".venv-wheels"))
    arguments = parser.parse_args()
    arguments.wheels.mkdir(parents=True, exist_ok=True)
    missing: set[str] = set()
    otherwise: set[str] = set()
    unusable: set[str] = set()
    lines = ["| FlagGems | folder | names | with an operator | used |", "|---|---|---|---|---|"]
    for version in arguments.versions:
        lines += rows(version, download(version, arguments.wheels), missing, otherwise, unusable)
    import torch

    said = {
        "Names that mean no operator of ATen": missing,
        "Functions that are left out (views, other arguments or defaults)": unusable,
        "Operators other than in FlagGems' table": otherwise,
    }
    lines += ["", f"Torch {torch.__version__.partition('+')[0]}, {datetime.date.today().isoformat()}."]
    for what, which in said.items():
        lines += ["", f"{what}: {', '.join(f'`{each}`' for each in sorted(which)) or 'none'}."]
    print("\n".join(lines))
    write_section(PAGE, "flaggems", lambda before: "\n".join(lines))


if __name__ == "__main__":
    main()
