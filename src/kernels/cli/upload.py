"""`kernels upload`: publish the builds in a folder to a Hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernels.cli._arguments import AsJson, BuildFirst, BuiltFolder, PublishBranch, PublishTo
from kernels.cli._output import describe_error, format_size, print_json, print_line, print_note
from kernels.errors import KernelsError

if TYPE_CHECKING:
    from kernels.authoring.publish import FileChange, Upload

__all__ = ["upload"]


def upload(
    folder: BuiltFolder = Path(),
    repo_id: PublishTo = None,
    branch: PublishBranch = None,
    private: Annotated[bool, typer.Option("--private", help="Create a private repository.")] = False,
    create_pr: Annotated[
        bool, typer.Option("--create-pr", help="Open a pull request instead of changing the branch.")
    ] = False,
    keep_variants: Annotated[
        bool,
        typer.Option(
            "--keep-variants",
            help="Keep the branch's other builds, for example from another machine or for another Torch.",
        ),
    ] = False,
    remove_variants: Annotated[bool, typer.Option("--remove-variants", help="Remove them.")] = False,
    build: BuildFirst = False,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Publish builds that are out of date or fail checks.")
    ] = False,
    replace_card: Annotated[
        bool, typer.Option("--replace-card", help="Replace a README.md that was edited on the Hub.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be sent and deleted, and the card's notes.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check the builds in a folder, and publish them to a Hub in one commit.

    The Hub is KERNELS_HUB with the token KERNELS_HUB_TOKEN. Without them it is HF_ENDPOINT, with HF_TOKEN or the token
    of `hf auth login`.

    The commit replaces the branch's builds of the same names. If the branch has others, --keep-variants or
    --remove-variants says what becomes of them. After an interrupt, run the command again: it sends only the rest.

    Examples:
        $ kernels upload my-kernel --repo-id org/my-kernel --dry-run
        $ kernels upload my-kernel --repo-id org/my-kernel
    """
    from kernels.authoring.publish import upload_kernel

    try:
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
            replace_card=replace_card,
            dry_run=dry_run,
            report=print_note if as_json else print_line,
        )
    except KernelsError as error:
        if as_json:
            print_json({"error": {"type": type(error).__name__, "message": describe_error(error)}})
        raise
    if as_json:
        print_json(_document(done))
        return
    if dry_run:
        for each in done.files:
            if each.kind in ("added", "changed"):
                print_line(f"  {each.kind}: {each.path} ({format_size(each.size)})")
        print_line(f"Nothing was sent: this is what would be published ({format_size(done.size)}).")
    elif not done.changed:
        print_line(f"No change since commit {done.commit}: nothing was sent.")
    elif done.pull_request is not None:
        print_line(f"Opened {done.pull_request}")
    else:
        print_line(f"Published {done.repo_id}, branch {done.branch}, as commit {done.commit}")
    if done.main_commit is not None:
        print_line(f"Updated the card on main, as commit {done.main_commit}")


def _document(done: Upload) -> dict[str, Any]:
    """The result for programs: each variant with its files, the card, and what was left out."""
    from kernels.authoring.publish.local_builds import CARD_FILE
    from kernels.models.snapshot import BUILD_FOLDER

    of_variants: dict[str, list[FileChange]] = {name: [] for name in done.variants}
    others: list[FileChange] = []
    for each in done.files:
        parts = each.path.split("/")
        inside = parts[0] == BUILD_FOLDER and len(parts) > 2
        (of_variants.setdefault(parts[1], []) if inside else others).append(each)
    card = done.card
    assert card is not None
    return {
        "repository": done.repo_id,
        "branch": done.branch,
        "commit": done.commit,
        "url": done.url,
        "pull_request": done.pull_request,
        "changed": done.changed,
        "dry_run": done.dry_run,
        "bytes": done.size,
        "variants": [{"name": name, **_changes(files)} for name, files in sorted(of_variants.items())],
        "kept": [{"name": name, "reason": reason} for name, reason in done.kept.items()],
        "other_files": _changes([each for each in others if each.path != CARD_FILE]),
        "card": {
            "path": CARD_FILE,
            "origin": card.origin,
            "state": next((each.kind for each in others if each.path == CARD_FILE), "unchanged"),
            "main_commit": done.main_commit,
        },
        "skipped": [{"path": each.path, "reason": each.reason} for each in done.skipped],
        "notes": list(done.notes),
    }


def _changes(files: list[FileChange]) -> dict[str, Any]:
    kinds = {each.kind for each in files}
    listed = {
        kind: [{"path": each.path, "bytes": each.size} for each in files if each.kind == kind]
        for kind in ("added", "changed", "unchanged", "deleted")
    }
    state = kinds.pop() if len(kinds) == 1 else "changed" if kinds else "unchanged"
    return {"state": state, "bytes": sum(each.size for each in files if each.kind in ("added", "changed")), **listed}
