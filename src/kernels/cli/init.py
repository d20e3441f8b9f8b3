"""`kernels init`: create the folder of a new kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernels.cli._output import print_line
from kernels.errors import RequestError
from kernels.support.formatting import shell_word
from kernels.support.text import clean

__all__ = ["init"]

#: The commands from a new folder to a published kernel, in order.
_NEXT_COMMANDS = ("build", "test", "benchmark", "check", "upload")


def init(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Name of the kernel, in lower case: for example rms-norm. With --from: that of the file.",
        ),
    ] = None,
    sources: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Make the kernel from a file: .cu, .cpp, .hip, or .py with Triton or load_inline. Repeat for more "
            "sources of one kernel. The file is read, not run, and copied unchanged.",
        ),
    ] = None,
    backends: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Backends, separated by commas. Default: cpu, cuda."),
    ] = None,
    noarch: Annotated[bool, typer.Option("--noarch", help="Python and Triton only: nothing is compiled.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder to create. Default: NAME.")] = None,
    license: Annotated[
        str | None,
        typer.Option(metavar="SPDX", help="Licence. Default: with --from, that of the file; else Apache-2.0."),
    ] = None,
    repo_id: Annotated[
        str | None, typer.Option("--repo-id", metavar="ORG/NAME", help="Repository to publish to.")
    ] = None,
) -> None:
    """Create a kernel that builds, passes its tests and has benchmarks.

    The new kernel is a ReLU with its derivative, a layer, tests and benchmarks: replace it with your own operator.
    --from makes a kernel of sources that you have. After an error there is no folder.

    Examples:
        $ kernels init my-kernel --backends cpu,cuda
        $ kernels init my-kernel --noarch
        $ kernels init --from vector_add.cu
    """
    from kernels.authoring.scaffold import adopt_kernel, new_kernel
    from kernels.authoring.scaffold.buildable import notes_on_building
    from kernels.authoring.scaffold.strip import strip_sources

    names = None if backends is None else [each.strip() for each in backends.split(",") if each.strip()]
    notes: tuple[str, ...] = ()
    if sources:
        if noarch:
            raise RequestError("`--noarch` and `--from`: the file decides; give one of the two.")
        made = adopt_kernel(sources, name, out, backends=names, license=license, repo_id=repo_id)
        folder, notes = made.folder, made.notes
        if strip_sources(folder):
            command = f"kernels check {shell_word(out or name or folder.name)} --diff"
            notes += (f"the file has lines that its backends forbid; `{command}` shows them",)
    elif name is None:
        raise RequestError("`NAME` is missing; expected a name such as rms-norm, or --from FILE.")
    else:
        named = {} if license is None else {"license": license}
        folder = new_kernel(name, out, backends=names, noarch=noarch, repo_id=repo_id, **named)
    print_line(f"Created {folder}")
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        print_line(f"  {path.relative_to(folder).as_posix()}")
    for note in (*notes, *notes_on_building(folder)):
        print_line(f"Note: {clean(note)}")
    # As typed, relative to the working directory.
    place = out or name or folder.name
    commands = _NEXT_COMMANDS if not sources else [step for step in _NEXT_COMMANDS if step != "benchmark"]
    steps = ", ".join(f"kernels {step} {place}" for step in commands)
    print_line(f"Next: {steps}{' --repo-id org/name' * (repo_id is None)}")
