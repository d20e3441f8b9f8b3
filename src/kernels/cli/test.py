"""`kernels test`: run a kernel's own tests against the builds in its folder."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import IO, Annotated

import typer

from kernels.cli._arguments import BackendName, BuildFirst
from kernels.cli._output import console

__all__ = ["test"]


def test(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder with the kernel's sources, and its builds in DIR/build.")
    ] = Path(),  # noqa: PT028 - a command, no test
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGS]", help="Arguments for pytest, after --.", show_default=False),
    ] = None,  # noqa: PT028 - a command, no test
    build: BuildFirst = False,  # noqa: PT028 - a command, no test
    backend: BackendName = None,  # noqa: PT028 - a command, no test
    variant: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Build to test. Default: the one that fits this machine best."),
    ] = None,  # noqa: PT028 - a command, no test
) -> None:
    """Run a kernel's own tests with pytest, on its build instead of its repository.

    In the tests, the kernel's Python package and its repository are the build in DIR. It must be built from the current
    sources. The exit status is that of pytest.

    Examples:
        $ kernels test my-kernel
        $ kernels test my-kernel --build -- -q tests/test_add.py
    """
    from kernels.authoring.own_tests.run import run_tests

    if str(folder).startswith("-"):  # `kernels test -- -q`: without a folder
        folder, arguments = Path(), [str(folder), *(arguments or ())]
    out = console().file
    descriptor = _descriptor(out)
    run = partial(run_tests, folder, arguments or (), build=build, backend=backend, variant=variant)
    if descriptor is not None:
        status = run(stdout=descriptor)
    else:  # standard output is a stream in memory
        with tempfile.TemporaryFile() as kept:
            status = run(stdout=kept.fileno())
            kept.seek(0)
            out.write(kept.read().decode("utf-8", "replace"))
    if status:
        raise typer.Exit(status)


def _descriptor(out: IO[str]) -> int | None:
    """The stream's file descriptor, None for a stream in memory."""
    try:
        out.flush()
        return out.fileno()
    except (OSError, ValueError):
        return None
