"""`kernels lock`: pin the kernels that a project asks for, and all that they depend on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernels.cli._arguments import AsJson

if TYPE_CHECKING:
    from kernels.locking import Locking

__all__ = ["lock"]


def lock(
    project: Annotated[
        Path, typer.Argument(metavar="PROJECT", help="The folder with the pyproject.toml, or that file.")
    ] = Path(),
    upgrade: Annotated[bool, typer.Option("--upgrade", help="Pin the newest commit of everything.")] = False,
    upgrade_repo: Annotated[
        list[str] | None,
        typer.Option("--upgrade-repo", metavar="REPO", help="Pin the newest commit of this one; may be given again."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit status 1 where the lock does not match the project.")
    ] = False,
    hashes: Annotated[
        bool, typer.Option("--hashes", help="Pin the content of every build too, in a file beside the lock.")
    ] = False,
    lockfile: Annotated[
        Path | None, typer.Option("--lockfile", metavar="FILE", help="The lock; else kernels.lock in the project.")
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Lock kernels whoever publishes them.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Pin the kernels that a project asks for, and all that any of their builds depends on."""
    from kernels.cli._output import print_json, say, visible
    from kernels.locking import lock_project
    from kernels.project import Project

    found = lock_project(
        Project.read(project),
        lock_file=lockfile,
        upgrade=upgrade or (upgrade_repo or ()),
        hashes=hashes,
        trust_remote_code=trust_remote_code,
    )
    if not check:
        found.write()
    if as_json:
        print_json(_plain(found, written=found.changed and not check))
    else:
        _show(found, check)
        say(visible(_outcome(found, check)))
    if check and found.changed:
        raise typer.Exit(1)


def _plain(found: Locking, *, written: bool) -> dict[str, object]:
    return {
        "lockfile": found.file,
        "changed": found.changed,
        "written": written,
        "changes": found.changes,
        "kernels": [
            {
                "repo_id": pin.requirement.repo_id,
                "version": pin.requirement.version,
                "revision": pin.requirement.revision,
                "commit": pin.commit,
            }
            for pin in found.lock.pins
        ],
    }


def _show(found: Locking, check: bool) -> None:
    from kernels.cli._output import print_table, say

    if found.changes:
        rows = [(each.kind, each.what, _brief(each.before), _brief(each.after)) for each in found.changes]
        print_table(("Change" if not check else "Would be", "What", "Locked", "Now"), rows)
        say("")


def _brief(value: str | None) -> str:
    from kernels.requirement import is_commit

    return "" if value is None else value[:12] if is_commit(value) else value


def _outcome(found: Locking, check: bool) -> str:
    count = len(found.lock.pins)
    kernels = f"{count} kernel{'s' * (count != 1)}"
    if not found.changed:
        return (
            f"{found.file} matches the project: {kernels}. Nothing was written."
            if not check
            else (f"{found.file} matches the project: {kernels}.")
        )
    older = found.before is not None and found.before.older
    if check:
        reason = "is of the older format" if older and not found.changes else "does not match the project"
        return f"{found.file} {reason}. Write it again: kernels lock"
    return f"Locked {kernels} in {found.file}" + (", in today's format" if older else "")
