"""`kernels download`: download kernels before they are needed, for this machine or for others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernels.cli._arguments import (
    AllVariants,
    AsJson,
    BackendName,
    Revision,
    TrustRemoteCode,
    Version,
    parse_target,
)
from kernels.cli._output import describe_error, format_size, print_error, print_json, print_line, print_table
from kernels.cli._progress import download_progress
from kernels.support.formatting import plural, shell_word

if TYPE_CHECKING:
    from kernels.operations.download import Downloads

__all__ = ["download"]


def download(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROJECT|REPO…]",
            help="Folder with kernels.lock, or repositories (org/name). Default: the active lockfile, that in "
            "KERNELS_LOCKFILE or of the current project.",
        ),
    ] = None,
    version: Version = None,
    revision: Revision = None,
    lockfile: Annotated[
        Path | None, typer.Option("--lockfile", metavar="FILE", help="Lockfile. Default: PROJECT/kernels.lock.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            metavar="TARGET",
            help="Another machine, such as torch2.9-cu128-x86_64-linux+sm_90, or a file with a target's JSON; may be "
            "repeated.",
        ),
    ] = None,
    all_variants: AllVariants = False,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="DIR",
            help="Folder for a mirror, to copy to other machines (KERNELS_HUB=DIR). Default: the cache.",
        ),
    ] = None,
    backend: BackendName = None,
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Download kernels and their dependencies, for this machine or for others.

    Builds that are there are skipped: after an interrupt, run it again. If a kernel has no build for one of the
    machines, an error line says why, all other builds are downloaded, and the exit status is 1.

    Examples:
        $ kernels download --lockfile kernels.lock
        $ kernels download org/my-kernel --version 1 --target torch2.9-cu128-x86_64-linux+sm_90 --to carried
    """
    from kernels.operations.download import DownloadRequest, prefetch

    kernels, lock = _kernels_or_lock(what or [], lockfile)
    if lock is not None and not kernels:
        _warn_unpinned(lock)
    with download_progress("Downloading", kernels) as progress:
        request = DownloadRequest(
            kernels,
            version=version,
            revision=revision,
            lock=lock,
            targets=[parse_target(each) for each in target or ()],
            all_variants=all_variants,
            to=to,
            backend=backend,
            trust_remote_code=trust_remote_code,
        )
        downloads = prefetch(request, progress)
    _show(downloads, to, as_json)


def _kernels_or_lock(what: list[str], lockfile: Path | None) -> tuple[list[str], Path | None]:
    """The repositories to download and the lockfile, from the command's arguments."""
    from kernels import settings
    from kernels.errors import LockFileNotFound, RequestError
    from kernels.models.lockfile import LOCK_FILE
    from kernels.models.project import PROJECT_FILE
    from kernels.operations.explain import is_path
    from kernels.resolver.find_lock import AT_A_TERMINAL, lock_path, project_here

    folders = [each for each in what if Path(each).name == PROJECT_FILE or is_path(each)]
    if not folders and (what or lockfile is not None):
        return what, lockfile
    if len(what) > 1:
        raise RequestError(f"{folders[0]} is a folder; give either one project or repositories (org/name).")
    if not folders:
        in_force = lock_path(AT_A_TERMINAL)
        if in_force is not None:
            named = settings.lock_file() is not None
            return [], Path(in_force if named else os.path.relpath(in_force))
    project = Path(*folders).expanduser() if folders else project_here()
    project = project.parent if project.name == PROJECT_FILE else project
    lock = lockfile or project / LOCK_FILE
    if not lock.is_file():
        raise LockFileNotFound(f"{lock} does not exist. Write it with: kernels lock {shell_word(project)}")
    return [], lock


def _warn_unpinned(lock: Path) -> None:
    """Warn about dependencies of the project that its lockfile does not pin: they are not downloaded."""
    from kernels.models.project import PROJECT_FILE, dependencies, unpinned
    from kernels.resolver.locks import read_lock
    from kernels.support.logs import logger, warn_once

    file = lock.with_name(PROJECT_FILE)
    asked = dependencies(file) if file.is_file() else None
    missing = unpinned(asked or (), read_lock(lock))
    if missing:
        warn_once(
            logger(__name__),
            f"{file} depends on {', '.join(map(str, missing))}, which {lock} does not pin and which is not downloaded. "
            f"Lock it first: kernels lock {shell_word(lock.parent)}",
        )


def _show(downloads: Downloads, to: Path | None, as_json: bool) -> None:
    from kernels.errors import BackendUnavailable

    if as_json:
        failures = [
            {"kernel": each.kernel, "target": each.target, "error": describe_error(each.error)}
            for each in downloads.failures
        ]
        print_json({"builds": downloads.builds, "failures": failures})
    elif downloads.builds:
        rows = [
            (
                each.repo_id,
                each.commit[:12],
                each.variant,
                format_size(each.size),
                " ".join(each.targets) or "all machines",
                "downloaded" if each.new else "present",
            )
            for each in downloads.builds
        ]
        print_table(("Kernel", "Commit", "Build", ">Size", "For", "State"), rows)
        print_line()
        print_line(_summary(downloads, to))
    elif not downloads.failures:
        print_line("Nothing to do: the lockfile pins no kernels.")
    for failure in downloads.failures:
        target = "" if failure.target is None else f" for {failure.target}"
        hint = " For another machine: --target." if isinstance(failure.error, BackendUnavailable) else ""
        reason = describe_error(failure.error)
        repeated = failure.kernel in reason and (failure.target is None or failure.target in reason)
        print_error(f"{'' if repeated else f'{failure.kernel}{target}: '}{reason}{hint}")
    if downloads.failures:
        raise typer.Exit(1)


def _summary(downloads: Downloads, to: Path | None) -> str:
    new = [each for each in downloads.builds if each.new]
    count, failed = len(downloads.builds), len(downloads.failures)
    end = f"; {failed} failed." if failed else "."
    if new:
        of = "" if failed else f" of {count}"
        where = "" if to is None else f" into {to}"
        return f"Downloaded {plural(len(new), 'build')}{of}{where}, {format_size(sum(each.size for each in new))}{end}"
    present = f"{plural(count, 'build')} {'is' if count == 1 else 'are'} present{end}"
    return present if failed else f"Nothing to do: {present}"
