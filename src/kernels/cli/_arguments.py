"""Arguments that several commands take."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernels.support.files import read_bounded
from kernels.support.formatting import format_value

if TYPE_CHECKING:
    from kernels.resolver.target import Target

__all__ = ["AsJson", "BackendName", "Kernel", "PolicyFile", "Repository", "Revision", "Version", "machine"]


#: The largest file that is read of a machine's description.
_MAX_BYTES = 4 * 1024 * 1024


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
PolicyFile = Annotated[
    Path | None,
    typer.Option("--policy", metavar="FILE", help="Who may sign; else KERNELS_POLICY, else the known publisher."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def machine(text: str) -> Target:
    """The machine that `--target` names: a string, or a file with a target's JSON.

    Example:
        >>> machine("torch2.9-cpu-x86_64-linux").torch
        '2.9'
    """
    from kernels.errors import RequestError
    from kernels.resolver.target import Target

    # Other than a `Path`, it finds no file where the text can be no file's name.
    if os.path.isfile(text):
        try:
            return Target.from_json(read_bounded(text, _MAX_BYTES))
        except OSError as error:
            raise RequestError(
                f"`target` is {format_value(text)}, which cannot be read: {error.strerror or error}."
            ) from None
    if text.endswith(".json") or os.sep in text:
        raise RequestError(f"`target` is {format_value(text)}: there is no such file.")
    return Target.parse(text)
