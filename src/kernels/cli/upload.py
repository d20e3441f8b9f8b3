"""`kernels upload`: publish the builds in a folder to a Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernels.cli._arguments import BuildFirst
from kernels.cli._output import print_line

__all__ = ["upload"]


def upload(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that contains build/<variant>.")] = Path(),
    repo_id: Annotated[
        str | None,
        typer.Option("--repo-id", metavar="REPO", help="Repository, org/name. Default: from build.toml."),
    ] = None,
    branch: Annotated[
        str | None,
        typer.Option("--branch", metavar="NAME", help="Branch. Default: from build.toml, or v<version> of the builds."),
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Create a private repository.")] = False,
    create_pr: Annotated[
        bool, typer.Option("--create-pr", help="Open a pull request instead of changing the branch.")
    ] = False,
    keep_variants: Annotated[
        bool, typer.Option("--keep-variants", help="Keep the branch's other builds, for example from another machine.")
    ] = False,
    remove_variants: Annotated[
        bool, typer.Option("--remove-variants", help="Remove them, also those for backends in build.toml.")
    ] = False,
    build: BuildFirst = False,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Publish builds that are out of date or fail checks.")
    ] = False,
) -> None:
    """Check the builds in a folder, and publish them to a Hub in one commit.

    The Hub is KERNELS_HUB with the token KERNELS_HUB_TOKEN. Without them it is HF_ENDPOINT, with HF_TOKEN or the token
    of `hf auth login`.
    """
    from kernels.authoring.publish import upload_kernel

    done = upload_kernel(
        folder,
        repo_id,
        branch=branch,
        private=private,
        create_pr=create_pr,
        keep_variants=keep_variants,
        remove_variants=remove_variants,
        build=build,
        check=not no_check,
        report=print_line,
    )
    if not done.changed:
        print_line(f"No change since commit {done.commit}: nothing was sent.")
    elif done.pull_request is not None:
        print_line(f"Opened {done.pull_request}")
    else:
        print_line(f"Published {done.repo_id}, branch {done.branch}, as commit {done.commit}")
