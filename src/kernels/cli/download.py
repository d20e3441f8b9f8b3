"""`kernels download`: kernels on disk before they are asked for, here or for other machines."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernels.cli._arguments import AsJson, BackendName, Revision, Version, machine

if TYPE_CHECKING:
    from kernels.operations.download import DownloadedBuild, Downloads, Progress

__all__ = ["download"]


def download(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROJECT|REPO…]",
            help="A folder with kernels.lock, or repositories, org/name. Default: the lock in force here.",
        ),
    ] = None,
    version: Version = None,
    revision: Revision = None,
    lockfile: Annotated[
        Path | None, typer.Option("--lockfile", metavar="FILE", help="The lock to use; else PROJECT/kernels.lock.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            metavar="TARGET",
            help="Another machine, such as torch2.9-cu128-x86_64-linux+sm_90, or a file with a target's JSON; may be "
            "given again.",
        ),
    ] = None,
    all_variants: Annotated[bool, typer.Option("--all-variants", help="Every build, for whichever machine.")] = False,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="A folder for other machines (KERNELS_HUB=DIR); else the cache."),
    ] = None,
    backend: BackendName = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Download whoever the publisher is.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Download kernels, and all they depend on, for this machine or for others."""
    from kernels.operations.download import prefetch

    kernels, lock = _asked(what or [], lockfile)
    if lock is not None and not kernels:
        _compare(lock)
    with _progress() as progress:
        downloads = prefetch(
            kernels,
            version=version,
            revision=revision,
            lock=lock,
            targets=[machine(each) for each in target or ()],
            all_variants=all_variants,
            to=to,
            backend=backend,
            trust_remote_code=trust_remote_code,
            progress=progress,
        )
    _show(downloads, to, as_json)


def _asked(what: list[str], lockfile: Path | None) -> tuple[list[str], Path | None]:
    """The repositories that are named, and the lock."""
    from kernels import settings
    from kernels.errors import LockError, RequestError
    from kernels.models.lockfile import LOCK_FILE
    from kernels.models.pyproject import PROJECT_FILE
    from kernels.operations.info import is_path
    from kernels.resolver.lock_scope import AT_A_TERMINAL, lock_path, project_here

    folders = [each for each in what if Path(each).name == PROJECT_FILE or is_path(each)]
    if not folders and (what or lockfile is not None):
        return what, lockfile
    if len(what) > 1:
        raise RequestError(f"{folders[0]} is a folder; name one project alone, or repositories (org/name).")
    if not folders:
        in_force = lock_path(AT_A_TERMINAL)
        if in_force is not None:
            named = settings.lock_file() is not None
            return [], Path(in_force if named else os.path.relpath(in_force))
    project = Path(*folders).expanduser() if folders else project_here()
    project = project.parent if project.name == PROJECT_FILE else project
    lock = lockfile or project / LOCK_FILE
    if not lock.is_file():
        raise LockError(f"{lock} does not exist. Write it with: kernels lock {project}")
    return [], lock


def _compare(lock: Path) -> None:
    """Warn of what the project beside a lock asks for, and the lock does not pin: it is not downloaded."""
    from kernels.models.pyproject import PROJECT_FILE, dependencies, unpinned
    from kernels.resolver.lock_scope import read_lock
    from kernels.support.warn import warn_once

    file = lock.with_name(PROJECT_FILE)
    asked = dependencies(file) if file.is_file() else None
    missing = unpinned(asked or (), read_lock(lock))
    if missing:
        warn_once(
            f"{file} asks for {', '.join(map(str, missing))}, which {lock} does not pin: it is not downloaded. Lock it "
            f"first: kernels lock {lock.parent}"
        )


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """One display for all files and bytes, on a terminal's standard error."""
    from kernels import settings
    from kernels.cli._output import console

    out = console(stderr=True)
    if not out.is_terminal or settings.progress_disabled():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Display

    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[files]}"),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    ]
    with Display(*columns, console=out, transient=True) as display:
        yield _Shown(display)


class _Shown:
    """The display of one download."""

    def __init__(self, display: Any) -> None:
        self._display = display
        self._task = display.add_task("Choosing builds", total=None, files="")
        self._files = self._of = 0
        self._guard = threading.Lock()

    def start(self, files: int, size: int) -> None:
        self._of = files
        self._display.update(self._task, description="Downloading", total=size)
        self.arrived(0, 0)

    def arrived(self, files: int, size: int) -> None:
        with self._guard:
            self._files += files
            self._display.update(self._task, advance=size, files=f"{self._files}/{self._of} files")


def _show(downloads: Downloads, to: Path | None, as_json: bool) -> None:
    from kernels.cli._failure import describe, report
    from kernels.cli._output import format_size, print_json, print_table, say
    from kernels.errors import BackendUnavailable

    new = [each for each in downloads.builds if each.new]
    if as_json:
        failures = [
            {"kernel": each.kernel, "target": each.target, "error": describe(each.error)} for each in downloads.failures
        ]
        print_json({"builds": downloads.builds, "failures": failures})
    elif downloads.builds:
        rows = [
            (each.repo_id, each.commit[:12], each.variant, format_size(each.size), _for(each), _state(each))
            for each in downloads.builds
        ]
        print_table(("Kernel", "Commit", "Build", ">Size", "For", "State"), rows)
        count, failed = len(downloads.builds), len(downloads.failures)
        end = f"; {failed} more could not be had." if failed else "."
        here = f"{_builds(count)} {'is' if count == 1 else 'are'} here{end}"
        say("")
        if new:
            of = "" if failed else f" of {count}"
            where = "" if to is None else f" into {to}"
            say(f"Downloaded {_builds(len(new))}{of}{where}, {format_size(sum(each.size for each in new))}{end}")
        else:
            say(here if failed else f"Nothing to do: {here}")
    elif not downloads.failures:
        say("Nothing to do: the lock pins no kernels.")
    for failure in downloads.failures:
        where = "" if failure.target is None else f" for {failure.target}"
        elsewhere = " For another machine: --target." if isinstance(failure.error, BackendUnavailable) else ""
        reason = describe(failure.error)
        # An error that names both already is not told twice of what.
        named = failure.kernel in reason and (failure.target is None or failure.target in reason)
        report(f"{'' if named else f'{failure.kernel}{where}: '}{reason}{elsewhere}")
    if downloads.failures:
        raise typer.Exit(1)


def _builds(count: int) -> str:
    return f"{count} build{'s' * (count != 1)}"


def _for(build: DownloadedBuild) -> str:
    return " ".join(build.targets) or "every machine it suits"


def _state(build: DownloadedBuild) -> str:
    return "downloaded" if build.new else "here"
