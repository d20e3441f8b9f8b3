"""Arguments that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["AsJson", "BackendName", "Kernel", "Repository", "Revision", "Version"]


def _backend_names() -> list[str]:
    from kernels import backends

    return [backend.name for backend in backends.all_backends()]


Repository = Annotated[str, typer.Argument(metavar="REPO", help="The repository, org/name.")]
Kernel = Annotated[str, typer.Argument(metavar="KERNEL", help="A repository, org/name, or the path of a folder.")]
Version = Annotated[int | None, typer.Option(metavar="N", help="A major version: the head of branch vN.")]
Revision = Annotated[str | None, typer.Option(metavar="REV", help="A branch, a tag or a commit.")]
BackendName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The backend; else the one Torch was built for.", autocompletion=_backend_names),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
