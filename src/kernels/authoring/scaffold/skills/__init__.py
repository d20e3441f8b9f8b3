"""Skills for coding agents: folders with `SKILL.md` that say how to write kernels with this project."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from kernels.errors import RequestError
from kernels.support.written_paths import stay_inside

__all__ = ["AGENTS", "DEFAULT_AGENT", "Skill", "add_skill", "agent_folder", "list_skills"]

#: Where agents and editors read skills, below a project's folder or the user's home.
AGENTS: Mapping[str, str] = MappingProxyType(
    {
        "agents": ".agents/skills",
        "claude": ".claude/skills",
        "codex": ".codex/skills",
        "cursor": ".cursor/skills",
        "opencode": ".opencode/skills",
    }
)

#: The folder that several agents read.
DEFAULT_AGENT = "agents"

_CONTENT = Path(__file__).parent / "content"
_MAIN = "SKILL.md"


@dataclass(frozen=True)
class Skill:
    """A skill of this package.

    Attributes:
        name: Its name, which is that of its folder.
        description: When an agent should read it.
        files: Its files by path in its folder.
    """

    name: str
    description: str
    files: Mapping[str, bytes]


def list_skills() -> list[Skill]:
    """The skills of this package.

    Example:
        >>> [skill.name for skill in list_skills()]
        ['write-kernels']
    """
    return [_read(folder) for folder in sorted(_CONTENT.iterdir()) if (folder / _MAIN).is_file()]


def agent_folder(agent: str, root: Path) -> Path:
    """The folder in which an agent looks for skills.

    Args:
        agent: A name of `AGENTS`.
        root: A project's folder, or the user's home for all projects.

    Raises:
        RequestError: The agent is not known, or its folder is a link out of the project.
    """
    if agent not in AGENTS:
        raise RequestError(f"`--agent` is {agent!r}; expected one of {', '.join(AGENTS)}, or --to DIR.")
    stay_inside(root / AGENTS[agent], root)
    return root / AGENTS[agent]


def add_skill(skill: Skill, to: os.PathLike[str] | str, *, force: bool = False) -> tuple[Path, bool]:
    """Copy a skill into a folder of skills.

    Args:
        skill: The skill.
        to: The folder of skills; the skill gets a folder of its own in it.
        force: Replace files of the skill that were changed. Other files in its folder are left alone.

    Returns:
        The skill's folder, and whether something was written.

    Raises:
        RequestError: A file there differs from the skill's, or something else has its place.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [skill] = list_skills()
        ...     added = add_skill(skill, folder)[1], add_skill(skill, folder)[1]
        >>> added
        (True, False)
    """
    folder = Path(to) / skill.name
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise RequestError(f"{folder} is not a folder of its own; remove it, or give another one with --to.")
    for name in skill.files:
        stay_inside((folder / name).parent, folder)
    differing = [name for name, data in skill.files.items() if _found(folder / name) not in (None, data)]
    if differing and not force:
        raise RequestError(
            f"{folder} has other content than this version's: {', '.join(differing)}. Use --force to replace it."
        )
    wanted = {name: data for name, data in skill.files.items() if _found(folder / name) != data}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise RequestError(
            f"{folder} cannot be made: a folder above it is a file. Give another one with --to."
        ) from None
    with TemporaryDirectory(prefix=".skill-", dir=folder) as staging:
        for number, (name, data) in enumerate(wanted.items()):
            new = Path(staging, str(number))
            new.write_bytes(data)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            new.replace(folder / name)
    return folder, bool(wanted)


def _found(path: Path) -> bytes | None:
    """The content of a file; empty, which no file of a skill is, for something else in its place."""
    if not os.path.lexists(path):
        return None
    return path.read_bytes() if path.is_file() and not path.is_symlink() else b""


def _read(folder: Path) -> Skill:
    paths = sorted(path for path in folder.rglob("*.md") if path.is_file())
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    matter = re.match(
        r"---\nname: (?P<name>[a-z0-9-]+)\ndescription: (?P<description>[^\n]+)\n---\n", files[_MAIN].decode()
    )
    assert matter is not None
    assert matter["name"] == folder.name
    return Skill(matter["name"], matter["description"], files)
