"""`kernels init`: a new kernel's folder, to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["init"]

#: The commands that lead from the new folder to a published kernel, in their order.
_NEXT = ("build", "test", "benchmark", "check", "upload")


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The kernel's name: lower case, such as rms-norm.")],
    backends: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Backends, separated by commas; else those with ready-made device sources."),
    ] = None,
    noarch: Annotated[bool, typer.Option("--noarch", help="Python only, with Triton: nothing is compiled.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder to make; else NAME, here.")] = None,
    license: Annotated[str, typer.Option(metavar="SPDX", help="The licence.")] = "Apache-2.0",
    repo_id: Annotated[
        str | None, typer.Option("--repo-id", metavar="ORG/NAME", help="Where it will be published.")
    ] = None,
) -> None:
    """Make a kernel that builds, passes its own tests and can be measured: a place to start from."""
    from kernels.authoring.scaffold import new_kernel
    from kernels.cli._output import say, visible

    names = None if backends is None else [each.strip() for each in backends.split(",") if each.strip()]
    folder = new_kernel(name, out, backends=names, noarch=noarch, license=license, repo_id=repo_id)
    where = visible(str(folder if out is None else out))
    say(f"Made {visible(str(folder))}")
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        say(f"  {path.relative_to(folder).as_posix()}")
    shown = name if out is None else where
    where_to = " --repo-id org/name" if repo_id is None else ""
    say(f"Next: {', '.join(f'kernels {step} {shown}' for step in _NEXT)}{where_to}")
