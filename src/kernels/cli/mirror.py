"""`kernels mirror`: put kernels into a mirror, which any object store, web server or folder can hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernels.cli import _mirror_checks as checks
from kernels.cli._arguments import AsJson, TrustRemoteCode, parse_target
from kernels.cli._output import (
    describe_error,
    format_size,
    print_error,
    print_json,
    print_line,
    print_note,
    print_table,
)
from kernels.cli._progress import download_progress
from kernels.support.formatting import plural

if TYPE_CHECKING:
    from kernels.operations.mirroring.request import MirroredCommit, MirrorRequest, MirrorResult

__all__ = ["mirror"]

_TAKE = "What to take"
_SIGN = "Signing"
_CHECK = "Of a mirror that is there"

#: What was left out is listed up to here; a whole Hub has hundreds of repositories without builds.
_LISTED = 20


def mirror(
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="The mirror: a folder, s3://bucket/prefix, gs://… or az://…"),
    ],
    repo: Annotated[
        list[str] | None,
        typer.Option("--repo", metavar="REPO", help="Repository, org/name; may be repeated.", rich_help_panel=_TAKE),
    ] = None,
    lockfile: Annotated[
        list[Path] | None,
        typer.Option(
            "--lockfile",
            metavar="FILE",
            help="Lockfile: the commits that it pins; may be repeated.",
            rich_help_panel=_TAKE,
        ),
    ] = None,
    publisher: Annotated[
        list[str] | None,
        typer.Option(
            "--publisher",
            metavar="ORG",
            help="Publisher: all its kernel repositories; may be repeated.",
            rich_help_panel=_TAKE,
        ),
    ] = None,
    from_hub: Annotated[
        bool,
        typer.Option("--from-hub", help="Every kernel repository that the Hub lists.", rich_help_panel=_TAKE),
    ] = False,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="ADDRESS",
            help="Hub, mirror or folder to take from. Default: KERNELS_HUB, or HF_ENDPOINT.",
            rich_help_panel=_TAKE,
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            metavar="TARGET",
            help="Only the builds for this machine, such as torch2.9-cu128-x86_64-linux+sm_90, or for a file with a "
            "target's JSON; may be repeated. Default: all builds.",
            rich_help_panel=_TAKE,
        ),
    ] = None,
    versions: Annotated[
        str,
        typer.Option(
            "--versions",
            metavar="WHICH",
            help="Versions of each repository: all, newest:2, or 1,3.",
            rich_help_panel=_TAKE,
        ),
    ] = "all",
    revision: Annotated[
        str | None,
        typer.Option(
            "--revision", metavar="REV", help="Branch, tag or commit, in place of versions.", rich_help_panel=_TAKE
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="WHEN",
            help="Only commits made since a date (2026-01-31), or in the last days (7d).",
            rich_help_panel=_TAKE,
        ),
    ] = None,
    trust_remote_code: TrustRemoteCode = False,
    sign_key: Annotated[
        Path | None,
        typer.Option(
            "--sign-key",
            metavar="FILE",
            help="Private key to sign with. Default: KERNELS_MIRROR_SIGN_KEY.",
            rich_help_panel=_SIGN,
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Read everything back, and compare it with hashes and with signatures (KERNELS_MIRROR_KEYS).",
            rich_help_panel=_CHECK,
        ),
    ] = False,
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy",
            metavar="FILE",
            help="Who may sign builds. Default: KERNELS_POLICY.",
            rich_help_panel=_CHECK,
        ),
    ] = None,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Remove commits that no branch is at, versions that --versions does not keep, and archives that "
            "nothing names.",
            rich_help_panel=_CHECK,
        ),
    ] = False,
    keep_lockfile: Annotated[
        list[Path] | None,
        typer.Option(
            "--keep-lockfile",
            metavar="FILE",
            help="Keep what this lockfile pins; may be repeated.",
            rich_help_panel=_CHECK,
        ),
    ] = None,
    older_than: Annotated[
        float | None,
        typer.Option(
            "--older-than",
            metavar="DAYS",
            min=0,
            help="Remove only commits that were last taken before this time.",
            rich_help_panel=_CHECK,
        ),
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(
            "--remove",
            metavar="REPO",
            help="Remove this repository as a whole; may be repeated.",
            rich_help_panel=_CHECK,
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.", rich_help_panel=_CHECK)
    ] = False,
    html: Annotated[
        bool,
        typer.Option(
            "--html", help="Also write pages for people, index.html and catalog/; later runs keep them up to date."
        ),
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Read the archives of what is named, and send damaged ones again.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be taken or removed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Put kernels into a mirror, or bring it up to date; verify or prune it.

    A mirror is a static tree that a folder, an object store or a web server holds. What it has is neither downloaded
    nor sent again. If something cannot be taken, an error line says why, everything else is in the mirror, and the exit
    status is 1.

    Examples:
        $ kernels mirror s3://bucket/kernels --repo org/my-kernel --versions newest:2
        $ kernels mirror s3://bucket/kernels --verify
        $ kernels mirror s3://bucket/kernels --prune --keep-lockfile kernels.lock
    """
    taking = {
        "--lockfile": lockfile, "--publisher": publisher, "--from-hub": from_hub, "--from": source, "--target": target,
        "--revision": revision, "--since": since, "--trust-remote-code": trust_remote_code, "--html": html,
        "--repair": repair,
    }  # fmt: skip
    pruning = {"--keep-lockfile": keep_lockfile, "--older-than": older_than is not None, "--remove": remove}
    if verify:
        others = {"--prune": prune, "--yes": yes, "--dry-run": dry_run, "--versions": versions != "all"}
        _refuse("--verify", {**taking, **pruning, "--sign-key": sign_key, **others})
        checks.verify(url, repo or (), policy, as_json)
        return
    if prune:
        _refuse("--prune", {**taking, "--policy": policy})
        checks.prune(
            url,
            repo or (),
            remove or (),
            versions,
            keep_lockfile or (),
            older_than,
            sign_key,
            dry_run,
            yes,
            as_json,
        )
        return
    for option, given in {**pruning, "--yes": yes}.items():
        if given:
            raise typer.BadParameter(f"{option} is an option of --prune")
    if policy is not None:
        raise typer.BadParameter("--policy is an option of --verify; for what is taken, set KERNELS_POLICY")
    if html and not (repo or lockfile or publisher or from_hub):
        others = {"--versions": versions != "all", "--dry-run": dry_run}
        _refuse("--html without what to take", {**taking, "--html": False, "--sign-key": sign_key, **others})
        _write_pages(url, as_json)
        return
    from kernels.operations.mirroring.request import MirrorRequest, MirrorVersions, parse_since

    request = MirrorRequest(
        url,
        repositories=repo or (),
        lockfiles=lockfile or (),
        publishers=publisher or (),
        everything=from_hub,
        source=source,
        targets=[parse_target(each) for each in target or ()],
        versions=MirrorVersions.parse(versions),
        revision=revision,
        since=None if since is None else parse_since(since),
        trust_remote_code=trust_remote_code,
        sign_key=sign_key,
        dry_run=dry_run,
        repair=repair,
        html=html,
    )
    _write(request, as_json)


def _refuse(action: str, options: dict[str, object]) -> None:
    """Raise for an option that an action does not have."""
    for option, given in options.items():
        if given:
            raise typer.BadParameter(f"{option} is no option of {action}")


def _write(request: MirrorRequest, as_json: bool) -> None:
    from kernels.operations.mirroring.run import mirror

    with download_progress("Mirroring", list(request.repositories)) as progress:
        result = mirror(request, progress)
    if as_json:
        _print_json(result)
    else:
        _print(replace(result, url=request.url))  # as it was given: a path is no URL
    for failure in result.failures:
        target = "" if failure.target is None else f" for {failure.target}"
        reason = describe_error(failure.error)
        print_error(reason if failure.kernel in reason else f"{failure.kernel}{target}: {reason}")
    if result.failures:
        raise typer.Exit(1)


def _write_pages(url: str, as_json: bool) -> None:
    from kernels.operations.mirroring.pages import write_pages

    changes = write_pages(url)
    if as_json:
        print_json({"mirror": url, "pages": changes})
    elif changes.written or changes.removed:
        print_line(f"{plural(changes.written, 'page')} written: {url}/index.html")
    else:
        print_line(f"Nothing to do: {plural(changes.kept, 'page')} in {url}")


def _print_json(result: MirrorResult) -> None:
    failures = [
        {"kernel": each.kernel, "target": each.target, "error": describe_error(each.error)} for each in result.failures
    ]
    print_json(
        {
            "mirror": result.url,
            "origin": result.origin,
            "dry_run": result.dry_run,
            "sent": result.sent,
            "documents": result.documents,
            "pages": result.pages,
            "commits": result.commits,
            "left_out": result.left_out,
            "failures": failures,
        }
    )


def _print(result: MirrorResult) -> None:
    if result.commits:
        columns = ("Repository", "Version", "Commit", ">Builds", ">New", ">Size", ">Compressed")
        print_table(columns, [_row(each) for each in result.commits])
        print_line()
    print_line(_summary(result))
    if result.pages is not None and (result.pages.written or result.pages.removed):
        print_line(f"{plural(result.pages.written, 'page')} written: {result.url}/index.html")
    for left in result.left_out[:_LISTED]:
        print_note(f"Left out: {left.kernel}: {left.reason}")
    if len(result.left_out) > _LISTED:
        print_note(f"Left out: {len(result.left_out) - _LISTED} more (--json lists them)")


def _row(commit: MirroredCommit) -> tuple[str, ...]:
    new = [each for each in commit.builds if each.new]
    packed = [each.archive for each in commit.builds if each.archive is not None]
    return (
        commit.repo_id,
        " ".join(commit.names) or "-",
        commit.commit[:12],
        str(len(commit.builds)),
        str(len(new)) if new else "-",
        format_size(sum(each.size for each in commit.builds)),
        format_size(sum(packed)) if packed else "-",
    )


def _summary(result: MirrorResult) -> str:
    new = [each for each in result.builds if each.new]
    failed = f"; {len(result.failures)} failed." if result.failures else "."
    if result.dry_run:
        return (
            f"{plural(len(new), 'new build')}, {format_size(sum(each.size for each in new))}, nothing written{failed}"
        )
    changed = [each for each in result.commits if each.changed]
    if changed or new:
        where = f"{result.url}: {plural(len(changed), 'commit')} changed"
        return f"{where}, {plural(len(new), 'new build')}, {format_size(result.sent)} sent{failed}"
    if result.documents:
        return f"{result.url}: 0 new builds, {plural(result.documents, 'document')} written{failed}"
    if result.failures:
        return f"{result.url}: nothing changed{failed}"
    return f"Nothing to do: {plural(len(result.builds), 'build')} in {result.url}."
