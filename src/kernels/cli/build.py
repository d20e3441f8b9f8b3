"""`kernels build`: build a kernel's sources into `build/<variant>`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernels.cli._arguments import AsJson
from kernels.cli._output import print_error, print_json, print_line, print_progress, print_table

if TYPE_CHECKING:
    from kernels.authoring.compile import BuildResult

__all__ = ["build"]


def build(
    source: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder with build.toml, or a folder of such folders.")
    ] = Path(),
    backend: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Build only for this backend; may be repeated.")
    ] = None,
    variant: Annotated[
        str | None,
        typer.Option("--variant", metavar="VARIANT", help="Build only this variant, for example torch-cuda."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Write builds to FOLDER/build. Default: DIR/build.")
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Update build.toml to the current edition, keep its comments, and exit.")
    ] = False,
    this_gpu: Annotated[
        bool, typer.Option("--this-gpu", help="Compile only for the architectures of the visible devices.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of parallel compilers. Default: one per processor.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build a kernel: all noarch variants, and the compiled variants that this machine can build."""
    if update:
        _update(source, as_json)
        return
    from kernels.authoring.compile import build_variants
    from kernels.authoring.compile.freshness import built_dirty

    outcomes = list(
        build_variants(
            source,
            source if out is None else out,
            backends=backend or None,
            variant=variant,
            this_gpu=this_gpu,
            jobs=jobs,
            starting=lambda name: print_progress(f"Building {name} …"),
        )
    )
    if as_json:
        print_json({"variants": outcomes})
    else:
        rows = [(each.variant or f"({each.backend})", each.state, str(each.path or each.reason)) for each in outcomes]
        print_table(("Variant", "State", "Path or reason"), rows)
        if any(each.path is not None and built_dirty(each.path) for each in outcomes):
            print_line("Note: the sources have uncommitted changes. Commit and build again before you publish.")
    _report_failures(outcomes)


def _update(source: Path, as_json: bool) -> None:
    from kernels.authoring.compile.build_toml.model import BUILD_TOML
    from kernels.authoring.compile.build_toml.update import update_build_toml
    from kernels.authoring.compile.workspace import source_folders

    changed = {folder / BUILD_TOML: update_build_toml(folder) for folder in source_folders(source) or [source]}
    if as_json:
        print_json({"updated": any(changed.values())})
        return
    for file, updated in changed.items():
        print_line(f"{file} {'is updated' if updated else 'has the current edition already'}.")


def _report_failures(outcomes: list[BuildResult]) -> None:
    """Print the compilers' errors; exit with 1 if a build failed or nothing was built."""
    failed = [each for each in outcomes if each.state == "failed"]
    for each in failed:
        print_error(f"{each.variant or each.backend}: {each.reason}", each.detail)
    built = any(each.path for each in outcomes)
    if not built and not failed:
        print_error("Nothing was built: this machine can build none of the variants.")
    if not built or not all(each.path or each.state == "not built" for each in outcomes):
        raise typer.Exit(1)
