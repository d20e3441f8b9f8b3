"""`kernels lock`: pin the kernels that a project depends on, and their dependencies."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernels.cli._arguments import AsJson, TrustRemoteCode
from kernels.cli._output import print_json, print_line, print_table
from kernels.support.formatting import plural

if TYPE_CHECKING:
    from kernels.operations.lock import Locking

__all__ = ["lock"]


def lock(
    project: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PROJECT]",
            help="Folder with pyproject.toml, or that file. Default: the nearest, from the current folder upwards.",
        ),
    ] = None,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="Pin the newest commit of all kernels; replaces a broken lockfile.")
    ] = False,
    upgrade_repo: Annotated[
        list[str] | None,
        typer.Option(
            "--upgrade-repo", metavar="REPO", help="Pin the newest commit of this repository; may be repeated."
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Write nothing; exit with status 1 if the lockfile does not match the project."),
    ] = False,
    hashes: Annotated[
        bool,
        typer.Option(
            "--hashes",
            help="Also pin the hash of every build, in a file beside the lockfile, and compare pinned hashes.",
        ),
    ] = False,
    rehash: Annotated[
        bool, typer.Option("--rehash", help="Like --hashes, but replace pinned hashes that differ.")
    ] = False,
    lockfile: Annotated[
        Path | None, typer.Option("--lockfile", metavar="FILE", help="Lockfile. Default: kernels.lock in the project.")
    ] = None,
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Pin the kernels that a project depends on, and all dependencies of their builds.

    Reads `[tool.kernels.dependencies]` of pyproject.toml, and writes `kernels.lock` beside it: commits for all
    machines, also those of dependencies and of each step of a redirect. Reads listings and metadata, and downloads no
    builds. LOCAL_KERNELS does not apply.

    Examples:
        $ kernels lock --hashes
        $ kernels lock --upgrade-repo org/my-kernel
        $ kernels lock --check --hashes
    """
    from kernels.models.project import KernelProject
    from kernels.operations.lock import lock_project
    from kernels.resolver.find_lock import project_here

    found = lock_project(
        KernelProject.read(project_here() if project is None else project),
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
        if found.changes:
            rows = [(each.kind, each.what, _short(each.before), _short(each.after)) for each in found.changes]
            print_table(("Would be" if check else "Change", "What", "Locked", "Now"), rows)
            print_line()
        if check:
            replace = rehash or bool(found.listed)
            words = ["kernels", "lock", *([] if project is None else [str(project)])]
            words += ["--upgrade"] * upgrade + ["--hashes"] * (hashes and not replace) + ["--rehash"] * replace
            words += [word for repo_id in upgrade_repo or () for word in ("--upgrade-repo", repo_id)]
            words += [] if lockfile is None else ["--lockfile", str(lockfile)]
            words += ["--trust-remote-code"] * trust_remote_code
            print_line(_check_result(found, shlex.join(words)))
        else:
            print_line(_result(found))
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


def _short(value: str | None) -> str:
    from kernels.models.requirement import is_commit

    return "" if value is None else value[:12] if is_commit(value) else value


def _matches(found: Locking) -> str:
    return f"{found.file} matches the project: {plural(len(found.lock.pins), 'kernel')}."


def _check_result(found: Locking, command: str) -> str:
    """Whether the lockfile matches, and the command that updates it."""
    from kernels.models.lockfile import hashes_path

    if not found.changed:
        return _matches(found)
    hashes = hashes_path(found.file)
    if found.listed:
        return (
            f"{hashes} pins other hashes than the Hub lists. The content of a commit never changes: either that file "
            f"is wrong, or this is not the same Hub. To pin what the Hub lists: {command}"
        )
    file = found.file if found.lock_changed else hashes
    older = found.before is not None and found.before.older and not found.changes
    return f"{file} {'has an older format' if older else 'does not match the project'}. Update it: {command}"


def _result(found: Locking) -> str:
    """What was written."""
    from kernels.models.lockfile import hashes_path

    if not found.changed:
        return f"{_matches(found)} Nothing was written."
    kernels = plural(len(found.lock.pins), "kernel")
    hashes = hashes_path(found.file)
    if not found.lock_changed:
        return f"Pinned the hashes of {kernels} in {hashes}"
    older = found.before is not None and found.before.older
    written = f"{found.file} and {hashes}" if found.hashes_changed else found.file
    return f"Locked {kernels} in {written}{', in the current format' * older}"
