"""`kernels card`: show the page of a kernel before it is published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernels.cli._arguments import AsJson, BuiltFolder, PublishBranch, PublishTo
from kernels.cli._output import print_json, print_note, print_text
from kernels.errors import RequestError
from kernels.support.written_paths import stay_inside

__all__ = ["card"]


def card(
    folder: BuiltFolder = Path(),
    repo_id: PublishTo = None,
    branch: PublishBranch = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE.md", help="Write the page to a file instead.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the page that `kernels upload` publishes as README.md, filled in from the builds in a folder.

    The text is that of CARD.md (a template), else of README.md, else generated. None of the kernel's code is run.

    Examples:
        $ kernels card my-kernel
    """
    from kernels.authoring.publish import preview_card

    if output is not None and not output.absolute().parent.is_dir():
        raise RequestError(f"`--output` is {str(output)!r}; expected a file name in a folder that exists.")
    if output is not None:
        stay_inside(output, folder)
    found = preview_card(folder, repo_id, branch=branch)
    if output is not None:
        output.write_text(found.text, encoding="utf-8")
        print_note(f"Wrote {output}")
    for note in found.notes:
        print_note(f"Note: {note}")
    if as_json:
        print_json(
            {"text": found.text, "origin": found.origin, "files": sorted(found.files), "notes": list(found.notes)}
        )
    elif output is None:
        print_text(found.text)
