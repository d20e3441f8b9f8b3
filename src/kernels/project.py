"""`[tool.kernels.dependencies]` of a pyproject.toml: the kernels that a project asks for."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.errors import RequestError
from kernels.lockfile import LOCK_FILE, Lock
from kernels.requirement import Requirement, check_repo_id
from kernels.wording import shown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["PROJECT_FILE", "TABLE", "Project", "dependencies", "unpinned"]

PROJECT_FILE = "pyproject.toml"
TABLE = "tool.kernels.dependencies"

#: Larger than any: the longest published ones have some 100 kB.
_MAX_PROJECT_BYTES = 4 * 1024 * 1024

_ALLOWED = "a major version such as 1, or a table with either `version` or `revision`"


@dataclass(frozen=True)
class Project:
    """A project that asks for kernels.

    Attributes:
        file: Its pyproject.toml.
        dependencies: The kernels it asks for, in the order of the file.
    """

    file: Path
    dependencies: tuple[Requirement, ...]

    @property
    def lock_file(self) -> Path:
        """Where its lock stands, unless it is told otherwise: beside its pyproject.toml."""
        return self.file.with_name(LOCK_FILE)

    @staticmethod
    def read(path: Path) -> Project:
        """The project in a folder.

        Args:
            path: The folder, or the pyproject.toml itself.

        Raises:
            RequestError: There is none, it is not TOML, it asks for no kernels, or an entry of its table is not what is
                allowed; the message names the file and the entry.

        Example:
            >>> import tempfile
            >>> folder = Path(tempfile.mkdtemp())
            >>> text = '[tool.kernels.dependencies]\\n"org/relu" = 1\\n"org/norm" = { revision = "main" }\\n'
            >>> _ = (folder / "pyproject.toml").write_text(text)
            >>> [str(each) for each in Project.read(folder).dependencies]
            ['org/relu version 1', 'org/norm at main']
        """
        file = path / PROJECT_FILE if path.is_dir() else path
        if file.name != PROJECT_FILE or not file.is_file():
            raise RequestError(
                f"{path} is no project: allowed is a folder with a {PROJECT_FILE}, or a {PROJECT_FILE} itself."
            )
        found = dependencies(file)
        if found is None:
            raise RequestError(
                f'{file} has no table [{TABLE}]. Add it, with a line for each kernel: "org/name" = <major version>'
            )
        return Project(file, found)


def dependencies(file: Path) -> tuple[Requirement, ...] | None:
    """The kernels that a pyproject.toml asks for; None where it has no table for them.

    Args:
        file: The pyproject.toml.

    Raises:
        RequestError: It cannot be read, is not TOML, or an entry of the table is not what is allowed.
    """
    table: Any = _parsed(file)
    named = ""
    for key in TABLE.split("."):
        if key not in table:
            return None
        table, named = table[key], f"{named}.{key}".lstrip(".")
        if not isinstance(table, dict):
            raise RequestError(f"{file}: `{named}` is {shown(table)}; allowed is a table.")
    return tuple(_requirement(file, repo_id, asked) for repo_id, asked in table.items())


def unpinned(asked: tuple[Requirement, ...], lock: Lock) -> list[Requirement]:
    """What a project asks for and its lock does not pin.

    Args:
        asked: The project's dependencies.
        lock: The lock. One of the older format, which knows repositories alone, pins whatever version is asked for.

    Example:
        >>> unpinned((Requirement("org/relu", version=1),), Lock())
        [Requirement(repo_id='org/relu', version=1, revision=None)]
    """
    pinned = {pin.requirement for pin in lock.pins}
    return [each for each in asked if each not in pinned and Requirement(each.repo_id) not in pinned]


def _parsed(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as content:
            data = content.read(_MAX_PROJECT_BYTES + 1)
    except OSError as error:
        raise RequestError(f"Cannot read {file}: {error.strerror or error}.") from error
    if len(data) > _MAX_PROJECT_BYTES:
        raise RequestError(f"{file} has more than {_MAX_PROJECT_BYTES} bytes; no project's has.")
    try:
        return tomllib.loads(data.decode())
    except RecursionError:
        raise RequestError(f"{file} is not TOML: it is nested too deep.") from None
    except ValueError as error:  # also what is not UTF-8
        raise RequestError(f"{file} is not TOML: {shown(str(error), 300)[1:-1]}.") from None


def _requirement(file: Path, repo_id: str, asked: Any) -> Requirement:
    where = f'{file}: `{TABLE}."{shown(repo_id)[1:-1]}"`'
    try:
        check_repo_id(repo_id)
    except RequestError as error:
        raise RequestError(f"{where}: {error}") from None
    named = asked if isinstance(asked, dict) else {"version": asked}
    if set(named) not in ({"version"}, {"revision"}) or not _has_types(named):
        raise RequestError(f"{where} is {shown(asked)}; allowed is {_ALLOWED}.")
    try:
        return Requirement(repo_id, **named)
    except RequestError as error:
        raise RequestError(f"{where}: {error}") from None


def _has_types(named: dict[str, Any]) -> bool:
    version, revision = named.get("version"), named.get("revision")
    if version is not None:
        return isinstance(version, int) and not isinstance(version, bool)
    return isinstance(revision, str)
