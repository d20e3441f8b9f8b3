"""`kernels upload`: publish a folder's builds on a Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["upload"]


def upload(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that holds build/<variant>.")] = Path(),
    repo_id: Annotated[
        str | None,
        typer.Option("--repo-id", metavar="REPO", help="The repository, org/name; else what build.toml says."),
    ] = None,
    branch: Annotated[
        str | None,
        typer.Option(
            "--branch", metavar="NAME", help="The branch; else what build.toml says, or v<version> of the builds."
        ),
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Create the repository as a private one.")] = False,
    create_pr: Annotated[
        bool, typer.Option("--create-pr", help="Open a pull request against the branch, instead of changing it.")
    ] = False,
    keep_variants: Annotated[
        bool, typer.Option("--keep-variants", help="Keep the branch's other builds, such as another machine's.")
    ] = False,
    remove_variants: Annotated[
        bool, typer.Option("--remove-variants", help="Remove them, also those for backends that build.toml lists.")
    ] = False,
    build: Annotated[bool, typer.Option("--build", help="Build first what can be built here.")] = False,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Publish also what the sources no longer give, or what fails checks.")
    ] = False,
) -> None:
    """Publish a folder's builds on a Hub, in one commit, over those that they replace; they are checked first.

    The Hub is the one that KERNELS_HUB names, with the token in KERNELS_HUB_TOKEN; else the one of HF_ENDPOINT, with
    HF_TOKEN or what `hf auth login` stored.
    """
    from kernels.authoring.publish import upload_kernel
    from kernels.cli._output import say, visible

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
        report=lambda line: say(visible(line)),
    )
    if not done.changed:
        say(f"Nothing has changed since commit {done.commit}: nothing was sent.")
    elif done.pull_request is not None:
        say(visible(f"Opened {done.pull_request}"))
    else:
        say(f"Published {done.repo_id}, branch {done.branch}, as commit {done.commit}")
