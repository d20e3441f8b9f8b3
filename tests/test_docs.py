"""The documentation is true: its links lead somewhere, its examples run, its tables are those of the code."""

from __future__ import annotations

import builtins
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import msgspec
import pytest
import typer
import yaml
from example_kernels import example_builder
from forked import Interpreter, started
from typer.testing import CliRunner

import kernels
from kernels import backends, errors
from kernels.cli import app
from kernels.diagnosis import variable_table
from kernels.layer.mode import KernelizeFallback, Mode, serving_modes
from kernels.models import mirror
from kernels.server import HubServer

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# Before a block: `<!-- not run: why -->`, `<!-- needs: module -->`, or `<!-- file: its name -->`.
_MARK = re.compile(r"<!-- (not run|needs|file): (.+) -->")

#: Runs the blocks of a file of JSON in one namespace, and prints what each printed, as JSON.
_RUN = """
import contextlib, io, json, sys, types

page = sys.modules["__main__"] = types.ModuleType("__main__")
with open(sys.argv[1], encoding="utf-8") as file:
    blocks = json.load(file)
printed = []
for file, line, code in blocks:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile("\\n" * line + code, file, "exec", dont_inherit=True), vars(page))
    printed.append(out.getvalue())
print(json.dumps(printed))
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    line: int
    text: str
    mark: str | None = None
    reason: str = ""

    @property
    def runs(self) -> bool:
        if self.mark == "needs":
            return importlib.util.find_spec(self.reason) is not None
        return self.mark is None


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    mark: re.Match[str] | None = None
    fence: tuple[str, int, list[str]] | None = None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if fence is not None and line == "```":
            kind, reason = mark.groups() if mark else (None, "")
            found.append(Block(fence[0], fence[1], "\n".join(fence[2]) + "\n", kind, reason))
            fence = mark = None
        elif fence is not None:
            fence[2].append(line)
        elif line.startswith("```"):
            fence = (line.removeprefix("```"), number, [])
        elif line:
            mark = _MARK.fullmatch(line)
    assert fence is None, f"{page.name} has a block without an end"
    return found


def write_files(page: Path, folder: Path) -> None:
    """Write the files that a page shows, as its reader does."""
    for block in blocks(page):
        if block.mark == "file":
            path = folder / block.reason
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")


def python_blocks(page: Path) -> list[tuple[Block, Block | None]]:
    """The Python blocks of a page, each with the block of output that follows it, if one does."""
    text = page.read_text(encoding="utf-8").splitlines()
    found = blocks(page)
    pairs = []
    for block, following in zip(found, [*found[1:], None], strict=False):
        if block.language != "python":
            continue
        end = block.line + block.text.count("\n") + 1
        is_output = (
            following is not None
            and following.language == "text"
            and not any(line for line in text[end : following.line - 1])
        )
        pairs.append((block, following if is_output else None))
    return pairs


def commands(page: Path) -> Iterator[tuple[Block, str, str]]:
    """The `kernels` commands of a page's console blocks, each with what stands below it."""
    for block in blocks(page):
        if block.language == "console":
            for shown in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                command, _, output = shown.partition("\n")
                command = command.removeprefix(".venv/bin/").partition("  #")[0].strip()
                if command.split()[0] == "kernels":
                    yield block, command, output


def tables(page: Path) -> list[list[list[str]]]:
    """The tables of a page: rows of cells, without the headings."""
    found: list[list[list[str]]] = []
    inside = False
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            if not inside:
                found.append([])
            found[-1].append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        inside = line.startswith("|")
    return [rows[2:] for rows in found]


def table(page: str, first_cell: str) -> list[list[str]]:
    """The one table of a page that has a row starting with that cell."""
    [found] = [rows for rows in tables(ROOT / "docs" / page) if any(row[0] == first_cell for row in rows)]
    return found


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def same_everywhere(text: str) -> str:
    """Output without what differs from build to build: commits, sizes, times, dates, ports, the width of columns."""
    for pattern, word in (
        (r"(?<![0-9a-zA-Z])[0-9a-f]{7,64}(?![0-9a-zA-Z])", "<commit>"),
        (r"[0-9.]+ (B|kB|MB|bytes)\b", "<size>"),
        (r"\b[0-9.]+ s\b", "<time>"),
        (r"\b20\d\d-\d\d-\d\d\b", "<date>"),
        (r"http://127\.0\.0\.1:\d+", "<hub>"),
        (r"[ \t]+", " "),
    ):
        text = re.sub(pattern, word, text)
    lines = [line.strip() for line in text.strip().splitlines()]
    # What is done side by side is logged in any order.
    runs = groupby(lines, key=lambda line: line.startswith("DEBUG "))
    return "\n".join(line for logged, run in runs for line in (sorted(run) if logged else run))


# Links


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_link_leads_to_a_file_and_a_heading_that_exist(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES[1:] if page.name != "README.md" and f"({page.name}" not in index] == []


# Examples


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Hub with the example kernels, as the documentation has its readers start one."""
    folder = tmp_path_factory.mktemp("docs") / "examples"
    builder = example_builder()
    builder.build_examples(folder, noarch_only=True)
    with HubServer(folder, trusted=[builder.PUBLISHER]) as hub:
        yield hub.url


@pytest.fixture
def reader(served: str, isolated_env: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A reader's environment: the example Hub, an empty cache, and an empty folder to work in."""
    monkeypatch.setenv("KERNELS_HUB", served)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    with started("import torch") as interpreter:
        yield interpreter


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=page_id)
def test_the_examples_of_a_page_run_and_print_what_the_page_shows(
    page: Path, reader: Path, interpreter: Interpreter, tmp_path: Path
) -> None:
    pairs = [(block, output) for block, output in python_blocks(page) if block.runs]
    write_files(page, reader)
    given = tmp_path / "blocks.json"
    given.write_text(json.dumps([(str(page), block.line, block.text) for block, _ in pairs]), encoding="utf-8")
    if any(
        "sys.modules" in block.text for block, _ in pairs
    ):  # it shows what an import loads: nothing is loaded before
        with started("") as interpreter:
            done = interpreter.run(_RUN, tmp_path, given, cwd=reader)
    else:
        done = interpreter.run(_RUN, tmp_path, given, cwd=reader)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    assert {
        f"line {block.line}": same_everywhere(text)
        for (block, output), text in zip(pairs, printed, strict=True)
        if output
    } == {f"line {block.line}": same_everywhere(output.text) for block, output in pairs if output}


def test_a_block_that_is_a_file_stands_below_its_name() -> None:
    """The mark is a comment, which a rendered page does not show."""
    for page in PAGES:
        lines = page.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            mark = _MARK.fullmatch(line)
            if mark is not None and mark[1] == "file":
                assert lines[number - 2] == f"`{mark[2]}`:", f"{page.name}: {line}"


def test_a_block_that_does_not_run_says_why() -> None:
    not_run = [block for page in PAGES for block in blocks(page) if block.mark == "not run"]
    assert not_run
    assert all(len(block.reason) > 10 for block in not_run)


SHOWN = [(page, block, command, output) for page in PAGES for block, command, output in commands(page)]


@pytest.mark.parametrize("command", sorted({command for _, _, command, _ in SHOWN}))
def test_a_command_that_is_shown_is_one_that_kernels_has(command: str) -> None:
    group = typer.main.get_command(app)
    name, *arguments = [argument for argument in shlex.split(command)[1:] if argument not in ("--debug", "-v", "-vv")]
    # Parses the arguments as the command would, and runs nothing.
    single = group.get_command(group.make_context("kernels", ["--help"], resilient_parsing=True), name)
    assert single is not None
    single.make_context(name, arguments)


@pytest.mark.parametrize(
    ("page", "command", "output"),
    [
        pytest.param(page, command, output, id=f"{page_id(page)}: {command}")
        for page, block, command, output in SHOWN
        if output.strip() and block.runs
    ],
)
def test_a_command_prints_what_the_page_shows(page: Path, command: str, output: str, reader: Path) -> None:
    write_files(page, reader)
    result = CliRunner().invoke(app, shlex.split(command)[1:], prog_name="kernels")
    assert same_everywhere(result.output) == same_everywhere(output)


YAML = [(page, block) for page in PAGES for block in blocks(page) if block.language == "yaml"]


@pytest.mark.parametrize(("page", "block"), YAML, ids=[f"{page_id(page)}:{block.line}" for page, block in YAML])
def test_yaml_is_valid_and_a_workflow_can_run(page: Path, block: Block) -> None:
    content = yaml.safe_load(block.text)
    if not block.reason.startswith(".github/workflows/"):
        return
    jobs = content["jobs"]
    for job in jobs.values():
        needs = job.get("needs", [])
        assert {needs} <= set(jobs) if isinstance(needs, str) else set(needs) <= set(jobs)
        assert job["runs-on"]
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            # A tag can be moved to other code, a commit cannot.
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step.get("uses", f"a/b@{0:040}"))
        # Outside of `with` and `env`, an expression would become a part of a script.
        assert not any("${{" in step.get("run", "") for step in job["steps"])


def test_every_command_is_documented() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert [name for name in typer.main.get_command(app).list_commands(None) if f"`kernels {name}" not in text] == []


def test_every_public_name_is_documented() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in kernels.__all__ if name != "__version__" and not re.search(rf"\b{name}\b", text)] == []


# Tables


def test_the_table_of_variables_is_that_of_the_code() -> None:
    rows = [[cell.replace("`", "") for cell in row] for row in table("where-from.md", "`KERNELS_CACHE`")]
    assert rows == [[variable.name, variable.meaning, variable.default] for variable in variable_table.VARIABLES]


def test_the_format_of_mirrors_has_every_key() -> None:
    text = (ROOT / "docs" / "mirror-format.md").read_text(encoding="utf-8")
    forms = [mirror.MirrorIndex, mirror.RepositoryIndex, mirror.MirrorCommit, mirror.MirrorBuild, mirror.MirrorFile]
    forms += [mirror.MirrorArchive, mirror.MirrorOrigin, mirror.MirrorPublisher, mirror.MirrorSignature]
    for key in (field.encode_name for form in forms for field in msgspec.structs.fields(form)):
        assert f"`{key}`" in text, key


def test_the_table_of_errors_has_each_with_the_built_ins_it_also_is() -> None:
    def built_ins(error: type) -> set[str]:
        bases = [base for base in error.__mro__ if vars(builtins).get(base.__name__) is base]
        return {
            base.__name__ for base in bases if not any(other is not base and issubclass(other, base) for other in bases)
        }

    rows = table("get-a-kernel.md", "`RequestError`")
    assert {names(row[0])[0]: set(names(row[1])) for row in rows} == {
        name: built_ins(getattr(errors, name)) for name in errors.__all__ if name != "KernelsError"
    }


def test_the_table_of_backends_is_the_registry() -> None:
    def cells(backend: backends.Backend) -> list[str]:
        token = f"{backend.token}<version>" if backend.versioned else backend.token
        return [
            f"`{backend.name}`",
            f"`torch-{backend.noarch_name}`",
            f"`{token}`",
            f"`{backend.device_type}`",
            f"`{backend.mapping_device}`",
            f"`{backend.dispatch_key}`",
            "yes" if backend.checks_archs else "no",
        ]

    assert [row[:7] for row in table("backends.md", "`cuda`")] == [cells(each) for each in backends.all_backends()]


def test_the_table_of_modes_is_the_order_in_which_they_serve() -> None:
    modes = [Mode.INFERENCE, Mode.TRAINING, Mode.INFERENCE | Mode.TORCH_COMPILE, Mode.TRAINING | Mode.TORCH_COMPILE]
    rows = [[names(cell.replace("\\|", "|")) for cell in row] for row in table("kernelize.md", "`INFERENCE`")]
    assert rows == [[[str(mode)], [str(each) for each in serving_modes(mode)]] for mode in modes]


def test_the_table_of_fallbacks_has_each_flag_and_whether_it_is_the_default() -> None:
    rows = {names(row[0])[0]: row[2].startswith("yes") for row in table("kernelize.md", "`NO_LAYER`")}
    single = [flag for flag in KernelizeFallback if flag.name not in ("NONE", "DEFAULT", "ALL")]
    assert rows == {flag.name: flag in KernelizeFallback.DEFAULT for flag in single}


def test_every_module_that_the_design_names_exists_and_every_room_is_named() -> None:
    source = Path(kernels.__file__).parent
    rooms, missing = set(), []
    for line in (ROOT / "docs" / "design.md").read_text(encoding="utf-8").splitlines():
        named = re.findall(r"`([a-z_/]+(?:\.py|/))`", line)
        # In a table, the first cell is the room that the other cells are about.
        room = source / named[0] if named and line.startswith(f"| `{named[0]}`") else source
        if room != source:
            rooms.add(named[0])
        missing += [name for name in named if not any((place / name).exists() for place in (ROOT, source, room))]
    assert missing == []
    here = {path.name if path.is_file() else f"{path.name}/" for path in source.iterdir()}
    assert {name for name in here if name.endswith((".py", "/")) and not name.startswith("__")} - rooms == set()


# Vendors

VENDORS = ROOT / "docs" / "vendors.md"


def test_the_package_of_the_vendors_page_joins_where_it_is_installed(reader: Path) -> None:
    write_files(VENDORS, reader)
    project = reader / "acme-kernels"
    name = re.search(r'\[project\.entry-points\."(.+)"\]\n(.+)', (project / "pyproject.toml").read_text())
    assert name is not None
    group, point = name.groups()
    # What an installer writes, beside the package's own folder.
    info = project / "src" / "acme_kernels-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-kernels\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{point.replace(chr(34), '')}\n")
    code = "from kernels import list_backends; print({e.name: str(e.origin) for e in list_backends()}['acme'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(project / "src")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == "installed by acme-kernels 1.0 (acme_kernels:Acme)", done.stderr


@pytest.mark.parametrize("what", ["acme.json", "acme_vendor"])
def test_what_the_vendors_page_shows_passes_its_check(what: str, reader: Path) -> None:
    write_files(VENDORS, reader)
    result = CliRunner().invoke(app, ["backends", "check", what], prog_name="kernels")
    assert (result.exit_code, "nothing failed" in result.output) == (0, True), result.output


def test_every_test_that_the_security_page_names_exists() -> None:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_/]*test_[a-z_]+\.py)`", text))
    places = [ROOT, ROOT / "tests", ROOT / "tests" / "security"]
    assert named
    assert {name for name in named if not any((place / name).is_file() for place in places)} == set()
