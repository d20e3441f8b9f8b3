"""`kernels lock`: pin the kernels that a project asks for, and all that they depend on."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernels.cli._arguments import AsJson

if TYPE_CHECKING:
    from kernels.operations.lock import Locking

__all__ = ["lock"]


def lock(
    project: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PROJECT]",
            help="The folder with the pyproject.toml, or that file. Default: the project of the current folder.",
        ),
    ] = None,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="Pin the newest commit of everything; also mends a broken lock.")
    ] = False,
    upgrade_repo: Annotated[
        list[str] | None,
        typer.Option("--upgrade-repo", metavar="REPO", help="Pin the newest commit of this one; may be given again."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit status 1 where the lock does not match the project.")
    ] = False,
    hashes: Annotated[
        bool,
        typer.Option(
            "--hashes",
            help="Pin the content of every build too, in a file beside the lock, and compare what is pinned.",
        ),
    ] = False,
    rehash: Annotated[
        bool, typer.Option("--rehash", help="The same; what is listed takes the place of other content that is pinned.")
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
    from kernels.models.pyproject import Project
    from kernels.operations.lock import lock_project
    from kernels.resolver.lock_scope import project_here

    found = lock_project(
        Project.read(project_here() if project is None else project),
        lock_file=lockfile,
        upgrade=upgrade or (upgrade_repo or ()),
        hashes=hashes,
        rehash=rehash,
        trust_remote_code=trust_remote_code,
    )
    if not check:
        found.write()
    if as_json:
        print_json(_plain(found, written=found.changed and not check))
    else:
        _show(found, check)
        anew = rehash or bool(found.listed)
        options = {"--upgrade": upgrade, "--hashes": hashes and not anew, "--rehash": anew}
        given = {"--upgrade-repo": upgrade_repo or (), "--lockfile": (lockfile,) if lockfile is not None else ()}
        words = ["kernels", "lock", *((str(project),) if project is not None else ())]
        words += [name for name, asked in options.items() if asked]
        words += [word for name, values in given.items() for value in values for word in (name, str(value))]
        words += ["--trust-remote-code"] * trust_remote_code
        say(visible(_outcome(found, shlex.join(words) if check else None)))
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
    from kernels.models.requirement import is_commit

    return "" if value is None else value[:12] if is_commit(value) else value


def _outcome(found: Locking, again: str | None) -> str:
    """What was done; or for a check, which has the command that would do it, how it went."""
    from kernels.models.lockfile import hashes_path

    count = len(found.lock.pins)
    kernels = f"{count} kernel{'s' * (count != 1)}"
    if not found.changed:
        return f"{found.file} matches the project: {kernels}.{' Nothing was written.' * (again is None)}"
    older = found.before is not None and found.before.older
    beside = hashes_path(found.file)
    if again is not None:
        if found.listed:
            return (
                f"{beside} pins other content than is listed, and a commit's content never changes: that file is "
                f"wrong, or what answers is not the Hub of then. Where what is listed is meant: {again}"
            )
        file = found.file if found.lock_changed else beside
        reason = "is of the older format" if older and not found.changes else "does not match the project"
        return f"{file} {reason}. Write it again: {again}"
    if not found.lock_changed:
        return f"Pinned the content of {kernels} in {beside}"
    written = f"{found.file} and {beside}" if found.hashes_changed else found.file
    return f"Locked {kernels} in {written}" + (", in today's format" if older else "")
