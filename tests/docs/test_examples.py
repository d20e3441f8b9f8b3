"""The examples of the documentation run, and print what the pages show."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml
from doc_pages import (
    MARK,
    PAGES,
    Block,
    blocks,
    commands,
    page_id,
    python_blocks,
    same_everywhere,
    write_files,
)
from forked import Interpreter, started
from typer.testing import CliRunner

from kernels.cli import app

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
            mark = MARK.fullmatch(line)
            if mark is not None and mark[1] == "file":
                said = re.fullmatch(r"`([^`]+)`(?:, .+)?:", lines[number - 2])
                assert (said and said[1]) == mark[2], f"{page.name}: {line}"


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
    if name.startswith("-"):
        assert name in {option for parameter in group.params for option in parameter.opts}
        return
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
