"""What `kernels mirror` does with a mirror that is there: `--verify` and `--prune`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kernels.cli._confirm import confirm_removal
from kernels.cli._output import format_size, print_error, print_json, print_line, print_note, print_table
from kernels.support.formatting import plural, shell_word

if TYPE_CHECKING:
    from kernels.mirror.stores.base import WriteStore
    from kernels.models.lockfile import Lock
    from kernels.operations.mirroring.prune import MirrorPrunePlan, MirrorPruneResult
    from kernels.operations.mirroring.verify import MirrorReport

__all__ = ["prune", "verify"]

#: Entries of one kind that are listed; `--json` has all.
_LISTED = 20

_DAY = 24 * 3600.0


def verify(url: str, repositories: Sequence[str], policy: Path | None, as_json: bool) -> None:
    """Read a mirror back, and print what is wrong.

    Raises:
        typer.Exit: Something is wrong.
    """
    from kernels.operations.mirroring.addresses import open_mirror
    from kernels.operations.mirroring.verify import verify_mirror
    from kernels.trust.policy import Policy

    store, writable = open_mirror(url)
    rules = None if policy is None else Policy.read(policy)
    report = verify_mirror(store, repositories, writable=writable, policy=rules)
    if as_json:
        print_json(
            {
                "mirror": report.url,
                "failed": bool(report.problems),
                "time": report.time,
                "signed_by": report.signers,
                "repositories": report.repositories,
                "commits": report.commits,
                "archives": report.archives,
                "size": report.size,
                "signatures": report.signatures,
                "unchecked": report.unchecked or None,
                "unnamed": report.unnamed,
                "problems": report.problems,
            }
        )
    else:
        _print_report(replace(report, url=url))
    for each in report.problems:
        print_error(f"{each.path}: {each.problem}")
    if not as_json and report.problems:
        where = shell_word(url) if writable is not None else "MIRROR"
        print_note(
            "Documents that cannot be used are written anew, and archives are sent again, by: "
            f"kernels mirror {where} --repo REPO --repair (of a commit that no branch is at: with --revision COMMIT)"
        )
    if report.problems:
        raise typer.Exit(1)


def _print_report(report: MirrorReport) -> None:
    signed = f"; signed by {' or '.join(report.signers)}" if report.signers else ""
    print_line(f"{report.url}, written {_age(report.time)}{signed}")
    repositories = "1 repository" if report.repositories == 1 else f"{report.repositories} repositories"
    counted = ", ".join([repositories, plural(report.commits, "commit"), plural(report.archives, "archive")])
    print_line(f"{counted} ({format_size(report.size)}), {plural(report.signatures, 'valid signature')} of builds")
    if report.unchecked:
        print_note(f"Signatures of builds were not checked: {report.unchecked}")
    if report.unnamed:
        print_note(f"{plural(len(report.unnamed), 'file')} that nothing names; `--prune` removes them after a day:")
        for path in report.unnamed[:_LISTED]:
            print_note(f"  {path}")
    if report.problems:
        print_line(f"{plural(len(report.problems), 'problem')}.")
    elif report.signers:
        print_line("Everything is as it was written.")
    else:
        print_line("Everything is complete. Who wrote it was not checked: KERNELS_MIRROR_KEYS is not set.")


def _age(written: str) -> str:
    from kernels.models.mirror import parse_time

    day = "day"
    days = max(0, int((time.time() - parse_time(written)) / _DAY))
    return f"{written} ({f'{plural(days, day)} ago' if days else 'today'})"


def prune(
    url: str,
    repositories: Sequence[str],
    remove: Sequence[str],
    versions: str,
    lockfiles: Sequence[Path],
    older_than: float | None,
    sign_key: Path | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show what can be removed from a mirror, and remove it after a confirmation.

    Raises:
        typer.Exit: Nothing was removed for want of a confirmation, or a writer was at work at the same moment.
    """
    from kernels.mirror.signing import active_signer
    from kernels.mirror.stores.opening import open_store
    from kernels.operations.mirroring.prune import plan_mirror_prune, prune_mirror
    from kernels.operations.mirroring.request import MirrorVersions

    store = open_store(url)
    signer = active_signer(sign_key)
    plan = plan_mirror_prune(
        store,
        repositories,
        remove=remove,
        versions=MirrorVersions.parse(versions),
        locks=_locks(lockfiles),
        older_than=None if older_than is None else older_than * _DAY,
    )
    if as_json:
        done = prune_mirror(store, plan, signer) if yes and not dry_run else None
        if done is not None:
            _update_pages(store)
        _print_json(plan, done)
    else:
        _print_plan(plan)
        if not lockfiles and any(each.repo_id not in plan.repositories for each in plan.remove):
            print_note("What lockfiles pin is removed too; --keep-lockfile FILE keeps it.")
        if plan.empty:
            print_line("Nothing to remove.")
            return
        if dry_run:
            return
        if not yes:
            confirm_removal()
        done = prune_mirror(store, plan, signer)
        _update_pages(store)
        print_line(
            f"Removed {plural(len(done.commits), 'commit')} and {plural(len(done.archives), 'archive')}, "
            f"freed {format_size(done.freed)}."
        )
    for each in () if done is None else done.problems:
        print_error(f"{each.path}: {each.problem}")
    if done is not None and done.problems:
        raise typer.Exit(1)


def _update_pages(store: WriteStore) -> None:
    from kernels.operations.mirroring.documents import MirrorDocuments
    from kernels.operations.mirroring.pages import update_pages

    update_pages(store, MirrorDocuments(store), wanted=False)


def _locks(paths: Sequence[Path]) -> list[Lock]:
    from kernels.models.lockfile import Lock

    return [Lock.read(path, hashes=False) for path in paths]


def _print_plan(plan: MirrorPrunePlan) -> None:
    rows = [(each.repo_id, each.commit[:12], "remove", each.taken[:10], each.why) for each in plan.remove]
    rows += [(each.repo_id, each.commit[:12], "keep", each.taken[:10], each.why) for each in plan.kept]
    if rows:
        print_table(("Repository", "Commit", "What", "Taken", "Why"), rows)
        print_line()
    if plan.recent:
        print_note(
            f"{plural(len(plan.recent), 'archive')} that nothing names and that may be a writer's: kept for a day."
        )
    if not plan.empty:
        others = f", {plural(len(plan.documents), 'document')} that nothing names" if plan.documents else ""
        print_line(
            f"To remove: {plural(len(plan.remove), 'commit')}{others}, {plural(len(plan.archives), 'archive')}: "
            f"{format_size(plan.frees)}"
        )


def _print_json(plan: MirrorPrunePlan, done: MirrorPruneResult | None) -> None:
    print_json(
        {
            "mirror": plan.url,
            "repositories": plan.repositories,
            "branches": plan.branches,
            "remove": plan.remove,
            "kept": plan.kept,
            "documents": plan.documents,
            "archives": [each.path for each in plan.archives],
            "recent": [each.path for each in plan.recent],
            "frees": plan.frees,
            "removed": None if done is None else [each.commit for each in done.commits],
            "freed": None if done is None else done.freed,
            "problems": [] if done is None else done.problems,
        }
    )
