"""Skills are folders that agents can read, and what they say is true of this project."""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import Path

import pytest
import typer

from kernels.authoring.scaffold.draft import draft_kernel
from kernels.authoring.scaffold.render import render
from kernels.authoring.scaffold.skills import AGENTS, add_skill, agent_folder, list_skills
from kernels.cli import app
from kernels.errors import RequestError

[SKILL] = list_skills()
TEXTS = {name: data.decode() for name, data in SKILL.files.items()}
BLOCKS = [
    (name, language, textwrap.dedent(body))
    for name, text in TEXTS.items()
    for indent, language, body in re.findall(r"^( *)```(\w+)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
]


def test_it_has_the_front_matter_that_agents_read() -> None:
    assert re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", SKILL.name)
    assert 50 < len(SKILL.description) <= 1024
    assert ": " not in SKILL.description  # a plain YAML scalar
    assert TEXTS["SKILL.md"].startswith(f"---\nname: {SKILL.name}\ndescription: {SKILL.description}\n---\n\n# ")
    assert len(TEXTS["SKILL.md"].splitlines()) < 100


def test_its_links_lead_to_its_files_and_none_is_unlinked() -> None:
    linked = re.findall(r"\]\(([^)]+)\)", TEXTS["SKILL.md"])
    assert set(linked) == set(TEXTS) - {"SKILL.md"}


@pytest.mark.parametrize(
    "command",
    sorted(
        {line for _, language, body in BLOCKS if language == "console" for line in re.findall(r"^\$ (.+)$", body, re.M)}
        | set(re.findall(r"`(kernels [a-z]+ [^`…]*?)`", " ".join(" ".join(TEXTS.values()).split())))
    ),
)
def test_a_command_that_it_shows_is_one_that_kernels_has(command: str) -> None:
    group = typer.main.get_command(app)
    name, *arguments = shlex.split(command)[1:]
    single = group.get_command(group.make_context("kernels", ["--help"], resilient_parsing=True), name)  # type: ignore[attr-defined]
    assert single is not None
    single.make_context(name, arguments)


@pytest.mark.parametrize(
    ("name", "language", "body"),
    [block for block in BLOCKS if block[1] in ("cpp", "python")],
    ids=lambda value: str(value)[:30] if "\n" not in str(value) else "",
)
def test_its_code_stands_in_a_new_kernel_which_is_built_in_other_tests(name: str, language: str, body: str) -> None:
    backends = {"cuda.md": ["cuda"], "xpu.md": ["xpu"], "cpu.md": ["cpu"], "triton.md": ["cuda"]}
    files = render(draft_kernel("my-kernel", backends=backends[Path(name).name], noarch=language == "python"))

    def plain(text: str) -> str:
        return "\n".join(line.strip() for line in text.strip().splitlines())

    assert any(plain(body) in plain(text) for text in files.values())


def test_it_is_added_once_and_not_over_a_changed_file(tmp_path: Path) -> None:
    folder, written = add_skill(SKILL, tmp_path)
    assert (folder, written) == (tmp_path / SKILL.name, True)
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == set(SKILL.files)
    assert add_skill(SKILL, tmp_path) == (folder, False)
    changed = folder / "references" / "cuda.md"
    changed.write_text("mine")
    (folder / "mine.md").write_text("mine")
    with pytest.raises(RequestError, match=r"references/cuda\.md\. Use --force"):
        add_skill(SKILL, tmp_path)
    assert changed.read_text() == "mine"
    assert add_skill(SKILL, tmp_path, force=True) == (folder, True)
    assert changed.read_bytes() == SKILL.files["references/cuda.md"]
    assert (folder / "mine.md").read_text() == "mine"


@pytest.mark.parametrize("force", [False, True])
def test_it_is_written_nowhere_else(tmp_path: Path, force: bool) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills" / SKILL.name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RequestError, match="is not a folder of its own"):
        add_skill(SKILL, tmp_path / "skills", force=force)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_file_in_place_of_a_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / ".agents").write_text("")
    [skill] = list_skills()
    with pytest.raises(RequestError, match="a folder above it is a file"):
        add_skill(skill, tmp_path / ".agents" / "skills")


def test_every_agent_has_a_folder_of_skills(tmp_path: Path) -> None:
    for agent in AGENTS:
        folder = agent_folder(agent, tmp_path)
        assert (folder.name, folder.parent.parent) == ("skills", tmp_path)
    with pytest.raises(RequestError, match="expected one of agents, claude"):
        agent_folder("hal", tmp_path)
