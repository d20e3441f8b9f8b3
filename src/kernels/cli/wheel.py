"""`kernels wheel`: make wheels of a kernel's builds, for pip."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernels.cli._arguments import AsJson, BuildFirst
from kernels.cli._output import print_json, print_table

__all__ = ["wheel"]


def wheel(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that contains build/<variant>.")] = Path(),
    backend: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only builds for this backend; may be repeated.")
    ] = None,
    variant: Annotated[
        str | None, typer.Option("--variant", metavar="VARIANT", help="Only this build, for example torch-cuda.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Folder of the wheels. Default: DIR/dist.")
    ] = None,
    wheel_version: Annotated[
        str | None,
        typer.Option("--wheel-version", metavar="X.Y.Z", help="Version. Default: the kernel's version, as X.0."),
    ] = None,
    no_local_version: Annotated[
        bool,
        typer.Option("--no-local-version", help="Leave out what the build is for (+torch213.cu130), as for PyPI."),
    ] = False,
    build: BuildFirst = False,
    as_json: AsJson = False,
) -> None:
    """Make a wheel of each build in a folder, for those who install kernels with pip.

    Builds that are out of date, do not match their digest, or need other kernels are refused, and then no wheel is
    written.

    Examples:
        $ kernels wheel my-kernel
        $ kernels wheel my-kernel --no-local-version --wheel-version 1.2.0
    """
    from kernels.authoring.wheel import build_wheels

    wheels = build_wheels(
        folder,
        out,
        backends=backend or None,
        variant=variant,
        version=wheel_version,
        local=not no_local_version,
        build=build,
    )
    if as_json:
        print_json({"wheels": wheels})
        return
    rows = [(each.variant, str(each.path), ", ".join(each.requires)) for each in wheels]
    print_table(("Variant", "Wheel", "Requires"), rows)
