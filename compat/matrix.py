"""Run the tests with the oldest and the newest versions of what pyproject.toml allows, and write the table of results.

    python compat/matrix.py [ROW...] [--tests PATH...] [--write] [--list]

Each row is an environment of its own in `.venv-matrix-ROW`; `uv` makes it. A row whose Python is not installed is
skipped, and the table says so. `--write` puts the results into docs/compatibility.md, where rows that did not run keep
their line.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from environment import ROOT, EnvironmentFailed, make_environment
from page import write_section

#: What the suite needs beside the extras of users. Its linters and type checkers say nothing about versions.
_TOOLS = (
    *("apache-tvm-ffi>=0.1.6", "editables>=0.5", "hatchling>=1.26", "hypothesis>=6.100", "jsonschema>=4.20"),
    *("numpy>=1.26", "pytest>=8.3", "pytest-xdist>=3.6"),
)
_EXTRAS = ("torch", "serve", "build", "bench", "sign")
#: What the table shows; the versions come from the environment, not from the row.
_SHOWN = ("huggingface-hub", "torch", "transformers", "typer", "msgspec", "filelock")

#: The main job end to end, and the modules that talk to a dependency.
_TESTS = (
    *(f"tests/{name}" for name in ("cli", "layer", "loader", "models", "resolver", "sources", "trust")),
    *(f"tests/integration/test_{name}.py" for name in ("faults", "locked", "logs", "requests", "versions")),
    "tests/test_public_api.py",
    "tests/test_settings.py",
)
_TRANSFORMERS_TESTS = ("tests/integration/test_transformers.py", "tests/layer/test_swap.py")


@dataclass(frozen=True)
class Row:
    """One combination of versions.

    Attributes:
        name: Of the row and of its environment.
        python: The version of Python.
        versions: Requirements that narrow what pyproject.toml allows.
        lowest: Whether every dependency that `versions` does not name has the lowest version that is allowed.
        tests: What to run.
    """

    name: str
    python: str
    versions: tuple[str, ...] = ()
    lowest: bool = False
    tests: tuple[str, ...] = field(default=_TESTS, repr=False)


#: transformers 5.13 to 5.22 refuse this version of `kernels`, by their own KERNELS_MAX_VERSION.
ROWS = (
    Row("oldest", "3.10", lowest=True),
    Row("python3.10", "3.10"),
    Row("hub-1.x", "3.11", ("huggingface-hub<2", "torch==2.13.0")),
    Row("hub-2.x", "3.11", ("huggingface-hub>=2", "torch==2.13.0")),
    Row("python3.12", "3.12"),
    Row("python3.13", "3.13"),
    Row("python3.14", "3.14"),
    *(
        Row(f"transformers-{version}", "3.11", (f"transformers=={version}", "torch==2.13.0"), tests=_TRANSFORMERS_TESTS)
        for version in ("5.0.0", "5.5.4", "5.12.1", "5.23.0")
    ),
)


@dataclass(frozen=True)
class Result:
    """What a row gave.

    Attributes:
        versions: The version of each distribution in the environment, by name.
        outcome: pytest's summary, or why the row did not run.
        passed: Whether it ran and every test passed; None if it was skipped.
    """

    versions: dict[str, str]
    outcome: str
    passed: bool | None


def run(row: Row, tests: Sequence[str] = ()) -> Result:
    """Make a row's environment and run the tests in it.

    Args:
        row: The row.
        tests: Files or folders of tests, in place of the row's own.
    """
    interpreter = _interpreter(row.python)
    if interpreter is None:
        return Result({}, "not tested", None)
    try:
        python = make_environment(
            f"matrix-{row.name}",
            _requirements(row),
            python=interpreter,
            options=("--resolution=lowest-direct",) if row.lowest else (),
        )
    except EnvironmentFailed as failure:
        return Result({}, f"cannot be installed: {str(failure).strip().splitlines()[-1]}", False)
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    path = os.pathsep.join([str(python.parent), clean.get("PATH", os.defpath)])
    command = [
        str(python),
        "-m",
        "pytest",
        "-q",
        "-n",
        str(os.cpu_count() or 1),
        "-m",
        "not gpu",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, *(tests or row.tests)], cwd=ROOT, env={**clean, "PATH": path}, stdout=subprocess.PIPE, text=True
    )
    lines = done.stdout.strip().splitlines()
    for line in lines:
        if line.startswith(("FAILED", "ERROR")):
            print(f"  {line}")
    return Result(_installed(python), _summary(lines), done.returncode == 0)


def _requirements(row: Row) -> list[str]:
    return [f"--editable={ROOT}[{','.join(_EXTRAS)}]", *_TOOLS, *row.versions]


def _interpreter(version: str) -> str | None:
    """A Python that pyenv has, where it has one, as its commands are not on PATH under their versions; else of PATH."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = sorted(root.glob(f"{version}.*/bin/python"))
    return str(found[-1]) if found else shutil.which(f"python{version}")


def _installed(python: Path) -> dict[str, str]:
    code = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    found = json.loads(subprocess.run([python, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout)
    version = subprocess.run([python, "-V"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[-1]
    return {"python": version, **{name.lower().replace("_", "-"): text for name, text in found.items()}}


def _summary(lines: Iterable[str]) -> str:
    """pytest's last line without its time: `7302 passed, 3 skipped`."""
    counts = [line for line in lines if re.search(r"\d+ (passed|failed|error)", line)]
    return re.sub(r"\s+in [0-9.]+s.*|=+", "", counts[-1]).strip() if counts else "pytest did not run"


def _table(results: dict[str, Result], before: str) -> str:
    """The table in Markdown; a row without a result keeps its line."""
    kept = dict(_lines_by_row(before))
    lines = ["| row | versions | tests |", "|---|---|---|"]
    for row in ROWS:
        result = results.get(row.name)
        if result is None:
            lines.append(kept.get(row.name, f"| `{row.name}` | Python {row.python} | not run |"))
            continue
        versions = {"Python": result.versions.get("python", row.python), **result.versions}
        shown = ", ".join(f"{name} {versions[name]}" for name in ("Python", *_SHOWN) if name in versions)
        lines.append(f"| `{row.name}` | {shown} | {result.outcome} |")
    return "\n".join([f"Last run: {datetime.date.today().isoformat()}.", "", *lines])


def _lines_by_row(text: str) -> list[tuple[str, str]]:
    return [(name, line) for line, name in re.findall(r"^(\| `([^`]+)` .*)$", text, re.MULTILINE)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="which rows; all of them by default")
    parser.add_argument(
        "--tests", nargs="+", default=(), metavar="PATH", help="what to run in place of the row's tests"
    )
    parser.add_argument("--write", action="store_true", help="write the results into docs/compatibility.md")
    parser.add_argument("--list", action="store_true", help="print the rows and what they install")
    arguments = parser.parse_args()
    by_name = {row.name: row for row in ROWS}
    if unknown := [name for name in arguments.rows if name not in by_name]:
        parser.error(f"unknown row {unknown[0]!r}; expected one of {', '.join(by_name)}")
    rows = [by_name[name] for name in arguments.rows or by_name]
    if arguments.list:
        for row in rows:
            print(f"{row.name}: Python {row.python}; {', '.join(_requirements(row))}")
        return
    results = {}
    for row in rows:
        print(
            f"{row.name}: Python {row.python}, {', '.join(row.versions)}{', lowest versions' * row.lowest}", flush=True
        )
        results[row.name] = run(row, arguments.tests)
        print(f"  {results[row.name].outcome}", flush=True)
    if arguments.write:
        write_section(ROOT / "docs" / "compatibility.md", "versions", lambda before: _table(results, before))
    if any(result.passed is False for result in results.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
