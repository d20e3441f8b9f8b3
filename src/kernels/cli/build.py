"""`kernels build`: from a kernel's sources to `build/<variant>`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernels.cli._arguments import AsJson

if TYPE_CHECKING:
    from kernels.authoring.compile import BuildResult

__all__ = ["build"]


def build(
    source: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder with build.toml, or one whose folders have it.")
    ] = Path(),
    backend: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A backend to build for; may be given again.")
    ] = None,
    variant: Annotated[
        str | None,
        typer.Option("--variant", metavar="VARIANT", help="The only variant to build, such as torch-cuda."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Builds go to FOLDER/build/; else to DIR/build/.")
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Write build.toml back as today's edition, comments kept, and end.")
    ] = False,
    this_gpu: Annotated[
        bool, typer.Option("--this-gpu", help="Compile for the visible devices' architectures only.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Compilers to run at once; else one a processor.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build a kernel's sources: every noarch variant, and every compiled one that this machine can build."""
    from kernels.authoring.compile import build_variants
    from kernels.authoring.compile.freshness import built_dirty
    from kernels.cli._output import console, print_json, print_table, say

    if update:
        from kernels.authoring.compile.build_toml.update import update_build_toml
        from kernels.authoring.compile.workspace import BUILD_TOML, source_folders

        changed = {folder / BUILD_TOML: update_build_toml(folder) for folder in source_folders(source) or [source]}
        if as_json:
            print_json({"updated": any(changed.values())})
        else:
            for file, is_new in changed.items():
                say(f"{file} {'is updated' if is_new else 'is of the edition of today already'}.")
        return

    def starting(name: str) -> None:
        if terminal.is_terminal:
            terminal.print(f"Building {name} …", markup=False)

    terminal = console(stderr=True)
    outcomes = list(
        build_variants(
            source,
            source if out is None else out,
            backends=backend or None,
            variant=variant,
            this_gpu=this_gpu,
            jobs=jobs,
            starting=starting,
        )
    )
    if as_json:
        print_json({"variants": outcomes})
    else:
        rows = [(each.variant or f"({each.backend})", each.state, _where(each)) for each in outcomes]
        print_table(("Variant", "State", "Where, or why not"), rows)
        if any(each.path is not None and built_dirty(each.path) for each in outcomes):
            say("Note: the sources have changes that are not committed: before you publish, commit and build again.")
    _report(outcomes)


def _where(outcome: BuildResult) -> str:
    return str(outcome.path) if outcome.path is not None else outcome.reason


def _report(outcomes: list[BuildResult]) -> None:
    """Show what compilers said; end with 1 when something failed, or nothing is there."""
    from rich.text import Text

    from kernels.cli._failure import report
    from kernels.cli._output import console, visible

    for each in outcomes:
        if each.state == "failed":
            report(f"{each.variant or each.backend}: {each.reason}")
            for line in each.detail.splitlines():
                console(stderr=True).print(Text(visible(line.expandtabs())), soft_wrap=True)
    if not any(each.path for each in outcomes) and not any(each.state == "failed" for each in outcomes):
        report("Nothing was built: this machine can build none of the variants.")
    if not all(each.path or each.state == "not built" for each in outcomes) or not any(each.path for each in outcomes):
        raise typer.Exit(1)
