"""`kernels build`: build a kernel's sources into `build/<variant>`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from kernels.cli._arguments import AsJson
from kernels.cli._output import print_error, print_json, print_line, print_progress, print_table
from kernels.support.text import one_line

if TYPE_CHECKING:
    from kernels.authoring.compile import BuildResult
    from kernels.authoring.compile.frameworks.torch_installation import TorchInstallation
    from kernels.authoring.compile.plan.variant_plans import VariantPlan

__all__ = ["build"]


class _Selection(TypedDict):
    """Which variants."""

    backends: list[str] | None
    variant: str | None
    this_gpu: bool
    torches: list[TorchInstallation]


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
    python: Annotated[
        list[str] | None,
        typer.Option(metavar="PYTHON", help="Build for this Python's Torch: its path or environment; may be repeated."),
    ] = None,
    torch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="X.Y",
            help="Build for this Torch, of this Python or of an environment in KERNELS_TORCH_ENVS; may be repeated.",
        ),
    ] = None,
    make_envs: Annotated[
        bool, typer.Option("--make-envs", help="Make missing environments for --torch: downloads gigabytes.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Write builds to FOLDER/build. Default: DIR/build.")
    ] = None,
    list_only: Annotated[
        bool, typer.Option("--list", help="List the variants, whether this machine can build them, and their state.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the commands, for a shell; run and write nothing.")
    ] = False,
    compile_commands: Annotated[
        bool, typer.Option("--compile-commands", help="Write compile_commands.json for editors, and build nothing.")
    ] = False,
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
    """Build a kernel: all noarch variants, and the compiled variants that this machine can build.

    A variant whose sources, flags, compilers and Torch are the same is up to date, and not built again. Builds are
    replaced atomically: after a failure or an interrupt, the previous build still exists. Exits with status 1 if a
    variant failed, or if there are no builds at the end.

    Examples:
        $ kernels build my-kernel
        $ kernels build my-kernel --list
        $ kernels build my-kernel --backend cuda --torch 2.9
    """
    chosen = {"--list": list_only, "--dry-run": dry_run, "--compile-commands": compile_commands, "--update": update}
    given = [name for name, value in chosen.items() if value]
    if len(given) > 1:
        raise typer.BadParameter(f"expected one of {', '.join(chosen)}, got {' and '.join(given)}")
    if make_envs and not torch:
        raise typer.BadParameter("--make-envs needs --torch, the version to install")
    if update:
        _update(source, as_json)
        return
    folder = source if out is None else out
    selection = _Selection(
        backends=backend or None, variant=variant, this_gpu=this_gpu, torches=_torches(python, torch, make_envs)
    )
    if list_only:
        _list(source, folder, selection, as_json)
    elif dry_run:
        _dry_run(source, folder, selection, as_json)
    elif compile_commands:
        _compile_commands(source, folder, selection, as_json)
    else:
        _build(source, folder, selection, jobs, as_json)


def _torches(python: list[str] | None, torch: list[str] | None, make: bool) -> list[TorchInstallation]:
    if not python and not torch:
        return []
    from kernels.authoring.compile.frameworks.torch_environments import find_torches

    return find_torches(python or (), torch or (), make=_show_command if make else None)


def _show_command(command: Sequence[str]) -> None:
    typer.echo(f"$ {one_line(shlex.join(command))}", err=True)


def _build(source: Path, out: Path, selection: _Selection, jobs: int | None, as_json: bool) -> None:
    from kernels.authoring.compile import build_variants
    from kernels.authoring.compile.freshness import built_dirty

    outcomes = list(
        build_variants(source, out, **selection, jobs=jobs, starting=lambda name: print_progress(f"Building {name} …"))
    )
    if as_json:
        print_json({"variants": outcomes})
    else:
        rows = [(each.variant or f"({each.backend})", each.state, str(each.path or each.reason)) for each in outcomes]
        print_table(("Variant", "State", "Path or reason"), rows)
        if any(each.path is not None and built_dirty(each.path) for each in outcomes):
            print_line("Note: the sources have uncommitted changes. Commit and build again before you publish.")
    _report_failures(outcomes)


def _list(source: Path, out: Path, selection: _Selection, as_json: bool) -> None:
    from kernels.authoring.compile.variant_states import list_variants

    found = list_variants(source, out, **selection)
    if as_json:
        print_json({"variants": found})
        return
    rows = []
    for each in found:
        here = ("yes" if each.buildable else "no") + (f": {each.reason}" if each.reason else "")
        rows.append((each.variant or f"({each.backend})", each.state, ", ".join(each.archs) or "-", here))
    print_table(("Variant", "State", "Architectures", "Can be built here"), rows)


def _dry_run(source: Path, folder: Path, selection: _Selection, as_json: bool) -> None:
    from kernels.authoring.compile.dry_run import build_commands, shell_script
    from kernels.authoring.compile.output_folders import output_folders
    from kernels.authoring.compile.plan.variant_plans import plan_variants
    from kernels.authoring.compile.sources.workspace import read_sources

    sources = read_sources(source)
    out, work = output_folders(sources, folder)
    planned = plan_variants(sources, **selection)
    if as_json:
        print_json({"variants": [_commands(each, out, work) for each in planned]})
        return
    for each in planned:
        if each.plan is None:
            print_line(f"# {each.backend} is not built: {each.reason}")
        else:
            for line in shell_script(each.plan, build_commands(each.plan, out, work)):
                print_line(line)


def _commands(each: VariantPlan, out: Path, work: Path) -> dict[str, Any]:
    from kernels.authoring.compile.dry_run import build_commands

    plan = each.plan
    if plan is None:
        return {"backend": each.backend, "variant": None, "reason": each.reason, "commands": []}
    commands = build_commands(plan, out, work)
    return {
        "backend": each.backend,
        "variant": plan.variant,
        "reason": "",
        "folder": plan.source.folder,
        "environment": dict(plan.compilation.environment) if plan.compilation is not None else {},
        "commands": commands,
    }


def _compile_commands(source: Path, folder: Path, selection: _Selection, as_json: bool) -> None:
    from kernels.authoring.compile.compile_commands import compile_commands, write_compile_commands
    from kernels.authoring.compile.output_folders import output_folders
    from kernels.authoring.compile.plan.variant_plans import plan_variants
    from kernels.authoring.compile.sources.workspace import read_sources

    sources = read_sources(source)
    _, work = output_folders(sources, folder)
    planned = plan_variants(sources, **selection)
    entries = compile_commands((each.plan for each in planned if each.plan is not None), work)
    if as_json:
        print_json([entry for found in entries.values() for entry in found])
        return
    for path in write_compile_commands(entries):
        print_line(f"Wrote {path}")
    if not entries:
        reasons = "; ".join(dict.fromkeys(f"{each.backend}: {each.reason}" for each in planned if each.plan is None))
        print_error("No file was written: " + (reasons or "the sources are not compiled."))
        raise typer.Exit(1)


def _update(source: Path, as_json: bool) -> None:
    from kernels.authoring.compile.build_toml.model import BUILD_TOML
    from kernels.authoring.compile.build_toml.update import update_build_toml
    from kernels.authoring.compile.sources.workspace import source_folders

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
