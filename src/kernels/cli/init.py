"""`kernels init`: create the folder of a new kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernels.cli._output import print_line

__all__ = ["init"]

#: The commands from a new folder to a published kernel, in order.
_NEXT_COMMANDS = ("build", "test", "benchmark", "check", "upload")


def init(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the kernel, in lower case: for example rms-norm.")
    ],
    backends: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Backends, separated by commas. Default: cpu, cuda."),
    ] = None,
    noarch: Annotated[bool, typer.Option("--noarch", help="Python and Triton only: nothing is compiled.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder to create. Default: NAME.")] = None,
    license: Annotated[str, typer.Option(metavar="SPDX", help="Licence.")] = "Apache-2.0",
    repo_id: Annotated[
        str | None, typer.Option("--repo-id", metavar="ORG/NAME", help="Repository to publish to.")
    ] = None,
) -> None:
    """Create a kernel that builds, passes its tests and has benchmarks."""
    from kernels.authoring.scaffold import new_kernel
    from kernels.authoring.scaffold.buildable import notes_on_building

    names = None if backends is None else [each.strip() for each in backends.split(",") if each.strip()]
    folder = new_kernel(name, out, backends=names, noarch=noarch, license=license, repo_id=repo_id)
    print_line(f"Created {folder}")
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        print_line(f"  {path.relative_to(folder).as_posix()}")
    for note in notes_on_building(folder):
        print_line(f"Note: {note}")
    steps = ", ".join(f"kernels {step} {name if out is None else out}" for step in _NEXT_COMMANDS)
    print_line(f"Next: {steps}{' --repo-id org/name' * (repo_id is None)}")
