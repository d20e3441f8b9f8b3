"""`kernels test`: a kernel's own tests, against the builds in its folder."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import IO, Annotated

import typer

__all__ = ["test"]


def test(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The kernel's sources, with its builds in DIR/build.")
    ] = Path(),  # noqa: PT028 - a command, no test
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGS]", help="Arguments for pytest, after --.", show_default=False),
    ] = None,  # noqa: PT028 - a command, no test
    build: Annotated[bool, typer.Option("--build", help="Build first what can be built here.")] = False,  # noqa: PT028
) -> None:
    """Run a kernel's own tests with pytest; its folder stands in for its repository."""
    from kernels.authoring.scaffold import run_tests
    from kernels.cli._output import console

    if str(folder).startswith("-"):  # `kernels test -- -q`: the folder was left out
        folder, arguments = Path(), [str(folder), *(arguments or ())]
    out = console().file
    number = _descriptor(out)
    if number is not None:
        status = run_tests(folder, arguments or (), build=build, stdout=number)
    else:
        # Standard output is a stream in memory.
        with tempfile.TemporaryFile() as kept:
            status = run_tests(folder, arguments or (), build=build, stdout=kept.fileno())
            kept.seek(0)
            out.write(kept.read().decode("utf-8", "replace"))
    if status:
        raise typer.Exit(status)


def _descriptor(out: IO[str]) -> int | None:
    """The number that a process can be given to print there, if there is one."""
    try:
        out.flush()
        return out.fileno()
    except (OSError, ValueError):
        return None
