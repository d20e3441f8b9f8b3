"""`[tool.kernels.dependencies]` of a pyproject.toml: the kernels of a project."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.errors import RequestError
from kernels.models import LOCK_FILE, PROJECT_FILE
from kernels.models.lockfile import Lock
from kernels.models.requirement import Requirement, check_repo_id
from kernels.support.formatting import format_value
from kernels.support.toml import read_toml

__all__ = ["PROJECT_FILE", "TABLE", "KernelProject", "dependencies", "unpinned"]

TABLE = "tool.kernels.dependencies"


@dataclass(frozen=True)
class KernelProject:
    """A project and its kernels.

    Attributes:
        file: Its pyproject.toml.
        dependencies: Its kernels, in the order of the file.
    """

    file: Path
    dependencies: tuple[Requirement, ...]

    @property
    def lock_file(self) -> Path:
        """The default lockfile, beside the pyproject.toml."""
        return self.file.with_name(LOCK_FILE)

    @staticmethod
    def read(path: Path) -> KernelProject:
        """The project in a folder.

        Args:
            path: The folder, or the pyproject.toml itself.

        Raises:
            RequestError: The file is missing or not TOML, or the table is missing or not valid; the message has the
                file, the line and the entry.

        Example:
            >>> import tempfile
            >>> folder = Path(tempfile.mkdtemp())
            >>> text = '[tool.kernels.dependencies]\\n"org/relu" = 1\\n"org/norm" = { revision = "main" }\\n'
            >>> _ = (folder / "pyproject.toml").write_text(text)
            >>> [str(each) for each in KernelProject.read(folder).dependencies]
            ['org/relu version 1', 'org/norm at main']
        """
        file = path / PROJECT_FILE if path.is_dir() else path
        if file.name != PROJECT_FILE or not file.is_file():
            raise RequestError(
                f"{path} is no project; expected a folder with a {PROJECT_FILE}, or a {PROJECT_FILE} itself."
            )
        found = dependencies(file)
        if found is None:
            raise RequestError(
                f'{file} has no table [{TABLE}]. Add it, with a line for each kernel: "org/name" = <major version>'
            )
        return KernelProject(file, found)


def dependencies(file: Path) -> tuple[Requirement, ...] | None:
    """The kernels of a pyproject.toml; None if it has no table for them.

    Args:
        file: The pyproject.toml.

    Raises:
        RequestError: It cannot be read, is not TOML, or an entry of the table is not valid.
    """
    try:
        toml = read_toml(file)
    except OSError as error:
        raise RequestError(f"Cannot read {file}: {error.strerror or error}.") from error
    table: Any = toml.data
    at: tuple[str, ...] = ()
    for key in TABLE.split("."):
        if key not in table:
            return None
        table, at = table[key], (*at, key)
        if not isinstance(table, dict):
            raise toml.error(at, f"`{'.'.join(at)}` is {format_value(table)}; expected a table.")
    found = []
    for repo_id, asked in table.items():
        try:
            found.append(_requirement(repo_id, asked))
        except (RequestError, TypeError) as error:
            raise toml.error((*at, repo_id), f"`{TABLE}`: {format_value(repo_id)}: {error}") from None
    return tuple(found)


def unpinned(asked: tuple[Requirement, ...], lock: Lock) -> list[Requirement]:
    """The dependencies of a project that its lockfile does not pin.

    Args:
        asked: The dependencies.
        lock: The lockfile. One of the older format, without versions, pins every version of a repository.

    Example:
        >>> unpinned((Requirement("org/relu", version=1),), Lock())
        [Requirement(repo_id='org/relu', version=1, revision=None)]
    """
    pinned = {pin.requirement for pin in lock.pins}
    return [each for each in asked if each not in pinned and Requirement(each.repo_id) not in pinned]


def _requirement(repo_id: str, asked: Any) -> Requirement:
    named = asked if isinstance(asked, dict) else {"version": asked}
    check_repo_id(repo_id)
    if set(named) not in ({"version"}, {"revision"}):
        expected = "a major version such as 1, or a table with either `version` or `revision`"
        raise RequestError(f"got {format_value(asked)}; expected {expected}.")
    return Requirement(repo_id, **named)
