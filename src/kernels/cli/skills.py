"""`kernels skills`: give coding agents what they need to know to write kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernels.cli._arguments import AsJson
from kernels.cli._output import print_json, print_line, print_table
from kernels.cli._values import Choice

__all__ = ["skills"]


class _Action(Choice):
    """What to do."""

    list = "list", "Show the named skills, or all.", "[NAME…]"
    add = "add", "Copy the named skills, or all, to where an agent reads them.", "[NAME…]"


_ADD = "Options of add"


def skills(
    action: Annotated[
        _Action,
        typer.Argument(metavar="ACTION"),
    ] = _Action.list,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME…]", help="Skills. Default: all.")] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", "--dest", metavar="DIR", help="Folder of skills to copy to.", rich_help_panel=_ADD),
    ] = None,
    agents: Annotated[
        list[str] | None,
        typer.Option(
            "--agent",
            metavar="NAME",
            help="agents (default), claude, codex, cursor or opencode: the folder in which it looks for skills. "
            "May be repeated.",
            rich_help_panel=_ADD,
        ),
    ] = None,
    for_all: Annotated[
        bool,
        typer.Option("--global", help="In your home folder, for all projects.", rich_help_panel=_ADD),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files that were changed.", rich_help_panel=_ADD)
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the skills for coding agents, or copy them to where agents read them.

    A skill is a folder with a `SKILL.md`, which coding agents and editors read: `write-kernels` says how to write CUDA,
    Triton, ROCm, XPU and CPU kernels with this project.

    Examples:
        $ kernels skills add
        $ kernels skills add write-kernels --agent claude --agent cursor
    """
    from kernels.authoring.scaffold.skills import DEFAULT_AGENT, add_skill, agent_folder, list_skills
    from kernels.errors import RequestError

    known = {skill.name: skill for skill in list_skills()}
    for name in names or ():
        if name not in known:
            raise RequestError(f"`NAME` is {name!r}; expected one of {', '.join(known)}.")
    if to is not None and (agents or for_all):
        raise RequestError("`--to` is the folder itself; give it without --agent and --global.")
    chosen = [known[name] for name in dict.fromkeys(names or known)]
    if action is _Action.list:
        if to is not None or agents or for_all or force:
            raise typer.BadParameter("--to, --agent, --global and --force are options of `add`, not of `list`")
        if as_json:
            print_json(
                [{"name": each.name, "description": each.description, "files": [*each.files]} for each in chosen]
            )
        else:
            print_table(("Skill", "For"), [(each.name, each.description) for each in chosen])
        return
    root = Path.home() if for_all else Path()
    folders = [to] if to is not None else [agent_folder(name, root) for name in agents or [DEFAULT_AGENT]]
    added = [add_skill(skill, folder, force=force) for folder in dict.fromkeys(folders) for skill in chosen]
    if as_json:
        print_json([{"path": str(path), "written": written} for path, written in added])
    else:
        for path, written in added:
            print_line(f"{'Added' if written else 'Up to date:'} {path}")
