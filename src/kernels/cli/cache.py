"""`kernels cache`: show, prune and verify what this project put on disk, and what `autotune` decided."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernels.cli._arguments import AsJson
from kernels.cli._confirm import confirm_removal
from kernels.cli._output import format_size, print_json, print_line, print_table
from kernels.cli._values import Choice
from kernels.support.formatting import did_you_mean, format_names, plural

if TYPE_CHECKING:
    from kernels.cache.inventory import CacheContents, CachedCommit
    from kernels.cache.prune import PrunePlan
    from kernels.cache.verify import VerifiedCommit
    from kernels.layer.tuned import TunedLayer
    from kernels.models.lockfile import Lock

__all__ = ["cache"]


class _Action(Choice):
    """What to do."""

    list = "list", "Show each commit and build: size, what its removal frees, when it was last used, and its Hub."
    size = "size", "Show the size of each repository."
    prune = (
        "prune",
        "Remove commits that are neither the head of a known branch nor pinned by a lockfile, and temporary files of "
        "killed processes. Shows them and asks first.",
    )
    verify = "verify", "Compare every file with the Hub's listing and with the build's digest."
    autotune = "autotune", "Show or remove the decisions of `autotune`: layer, device, kernel, and where it serves."


_PRUNE = "Options of prune"


def cache(
    action: Annotated[
        _Action,
        typer.Argument(metavar="ACTION"),
    ] = _Action.list,
    repos: Annotated[
        list[str] | None, typer.Option("--repo", metavar="REPO", help="Only this repository; may be repeated.")
    ] = None,
    older_than: Annotated[
        float | None,
        typer.Option(
            metavar="DAYS",
            min=0,
            help="Only commits that were neither used nor downloaded for this time.",
            rich_help_panel=_PRUNE,
        ),
    ] = None,
    lockfiles: Annotated[
        list[Path] | None,
        typer.Option(
            "--lockfile", metavar="FILE", help="Keep what this lockfile pins; may be repeated.", rich_help_panel=_PRUNE
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Also the heads of branches, but not what a lockfile pins.", rich_help_panel=_PRUNE),
    ] = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Do not ask for confirmation; also with --remove.", rich_help_panel=_PRUNE),
    ] = False,
    remove: Annotated[
        bool,
        typer.Option(
            "--remove",
            help="Remove the decisions, or those about the kernels of --repo; they are measured anew.",
            rich_help_panel="Options of autotune",
        ),
    ] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Remove corrupt files; the next load downloads them again.",
            rich_help_panel="Options of verify",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the cache by repository, commit and build; remove unused commits; verify files; show autotune's decisions.

    The cache is the folder in KERNELS_CACHE, or that of huggingface_hub. Only files of this project are shown and
    removed. What a lockfile pins is never removed.

    Examples:
        $ kernels cache
        $ kernels cache prune --older-than 30
        $ kernels cache verify --repair
        $ kernels cache autotune
    """
    from kernels.cache.inventory import scan_cache
    from kernels.models.requirement import check_repo_id

    for option, given, needs in (
        ("--older-than", older_than is not None, _Action.prune),
        ("--lockfile", bool(lockfiles), _Action.prune),
        ("--all", everything, _Action.prune),
        ("--yes", yes and not remove, _Action.prune),
        ("--repair", repair, _Action.verify),
        ("--remove", remove, _Action.autotune),
    ):
        if given and action is not needs:
            raise typer.BadParameter(f"{option} is an option of `{needs.value}`, not of `{action.value}`")
    if action is _Action.autotune:
        _autotune(repos or (), remove, yes, as_json)
        return
    only = [check_repo_id(repo_id) for repo_id in repos or ()]
    contents = scan_cache()
    _require_cached(contents, only)
    if action is _Action.prune:
        _prune(contents, only, older_than, _locks(lockfiles or ()), everything, yes, as_json)
    elif action is _Action.verify:
        _verify(contents, only, repair, as_json)
    else:
        _show(contents, only, action, as_json)


def _require_cached(contents: CacheContents, repos: Sequence[str]) -> None:
    """Raise an error for a repository that is not in the cache: its name may be misspelled."""
    from kernels.errors import RepositoryNotFound

    cached = sorted({each.repo_id for each in contents.commits})
    for repo_id in repos:
        if repo_id not in cached:
            hint = did_you_mean(repo_id, cached, 0.8)
            raise RepositoryNotFound(f"{repo_id} is not in the cache {contents.path}.{hint}")


# list and size


def _show(contents: CacheContents, repos: Sequence[str], action: _Action, as_json: bool) -> None:
    from kernels.cache.inventory import freed_size

    commits = [each for each in contents.commits if each.size and (not repos or each.repo_id in repos)]
    total = freed_size(contents, commits) if repos else contents.size
    if as_json:
        print_json(
            {
                "cache": contents.path,
                "size": total,
                "commits": [_plain(contents, each) for each in commits],
                "leftovers": contents.leftovers,
                "temporary": contents.temporary,
                "left_alone": contents.left_alone,
                "autotune": [_plain_decision(*each) for each in _decisions(repos).items()],
            }
        )
        return
    by_repository: dict[str, list[CachedCommit]] = {}
    for each in commits:
        by_repository.setdefault(each.repo_id, []).append(each)
    columns: tuple[str, ...]
    details: tuple[int, ...] = ()
    if action is _Action.list:
        columns = "Repository", "Commit", "Branches", "Build", "State", ">Size", ">Frees", "Downloaded", "Used", "Hub"
        details = tuple(map(columns.index, ("Build", "State", ">Size")))
        rows = [row for each in commits for row in _rows(contents, each)]
    else:
        columns = "Repository", ">Commits", ">Size"
        rows = [
            (repo_id, str(len(several)), format_size(freed_size(contents, several)))
            for repo_id, several in by_repository.items()
        ]
    if rows:
        print_table(columns, rows, details=details)
        print_line()
    print_line(f"{plural(len(commits), 'commit')}, {format_size(total)} in {contents.path}")
    if contents.temporary and not repos:
        print_line(
            f"{format_size(contents.temporary)} of temporary files of processes that were killed more than a day ago; "
            "to remove them: kernels cache prune"
        )
    decisions = _decisions(repos)
    if decisions:
        print_line(f"{plural(len(decisions), 'decision')} of autotune; to show or remove them: kernels cache autotune")
    _print_not_touched(contents)


def _rows(contents: CacheContents, each: CachedCommit) -> list[tuple[str, ...]]:
    from kernels.cache.inventory import freed_size

    states = {True: "complete", False: "partial", None: "unknown"}
    builds = [(build.variant, states[build.complete], format_size(build.size)) for build in each.builds]
    first, *rest = builds or [("-", "-", format_size(each.size))]
    return [
        (
            each.repo_id,
            each.commit[:12],
            ", ".join(dict.fromkeys((*each.branches, *each.refs))) or "-",
            *first,
            format_size(freed_size(contents, [each])),
            _date(each.downloaded),
            _date(each.used),
            ", ".join(hub or "unknown" for hub in each.hubs) or "unknown",
        ),
        *(("", "", "", *build, "", "", "", "") for build in rest),
    ]


def _plain(contents: CacheContents, each: CachedCommit) -> dict[str, Any]:
    from kernels.cache.inventory import freed_size

    return {
        "repo_id": each.repo_id,
        "commit": each.commit,
        "branches": each.branches,
        "refs": each.refs,
        "hubs": [hub or None for hub in each.hubs],
        "builds": [{"variant": build.variant, "size": build.size, "complete": build.complete} for build in each.builds],
        "size": each.size,
        "frees": freed_size(contents, [each]),
        "downloaded": each.downloaded,
        "used": each.used,
    }


# prune


def _prune(
    contents: CacheContents,
    repos: Sequence[str],
    older_than: float | None,
    locks: Sequence[Lock],
    everything: bool,
    yes: bool,
    as_json: bool,
) -> None:
    from kernels.cache.prune import plan_prune, prune

    planned = plan_prune(contents, locks=locks, repos=repos, older_than=older_than, everything=everything)
    if as_json:
        done = prune(planned) if yes else None
        print_json(
            {
                "cache": contents.path,
                "remove": [_plain(contents, each) for each in planned.remove],
                "kept": [{"repo_id": each.repo_id, "commit": each.commit, "why": why} for each, why in planned.kept],
                "leftovers": planned.leftovers,
                "frees": planned.frees,
                "removed": None if done is None else [each.commit for each in done.removed],
                "skipped": None if done is None else [each.commit for each in done.skipped],
                "freed": None if done is None else done.freed,
            }
        )
        return
    _print_plan(contents, planned)
    if not planned.remove and not planned.leftovers:
        print_line("Nothing to remove.")
        return
    if not yes:
        confirm_removal()
    done = prune(planned)
    for each in done.skipped:
        print_line(f"{each.repo_id} {each.commit[:12]} is kept: another process uses it.")
    print_line(f"Removed {plural(len(done.removed), 'commit')}, freed {format_size(done.freed)}.")


def _print_plan(contents: CacheContents, planned: PrunePlan) -> None:
    from kernels.cache.inventory import freed_size

    rows = [
        (
            each.repo_id,
            each.commit[:12],
            "remove",
            _date(each.used or each.downloaded),
            format_size(freed_size(contents, [each])),
        )
        for each in planned.remove
    ] + [(each.repo_id, each.commit[:12], why, _date(each.used or each.downloaded), "") for each, why in planned.kept]
    if rows:
        print_table(("Repository", "Commit", "What", "Last used", ">Frees"), rows)
        print_line()
    leftovers = f" and {plural(len(planned.leftovers), 'leftover')}" if planned.leftovers else ""
    print_line(f"{plural(len(planned.remove), 'commit')}{leftovers} to remove: {format_size(planned.frees)}")
    _print_not_touched(contents)


def _locks(paths: Sequence[Path]) -> list[Lock]:
    from kernels.resolver.find_lock import AT_A_TERMINAL
    from kernels.resolver.locks import active_lock, read_lock

    named = [read_lock(path) for path in paths]
    current = active_lock(AT_A_TERMINAL).lock  # of the current project
    return named if current is None else [*named, current]


# verify


def _verify(contents: CacheContents, repos: Sequence[str], repair: bool, as_json: bool) -> None:
    from kernels.cache.verify import verify_contents

    checked = list(verify_contents(contents, repos=repos, repair=repair))
    wrong = [each for each in checked if not each.ok]
    if as_json:
        print_json({"cache": contents.path, "commits": [_plain_check(each) for each in checked]})
    else:
        if checked:
            print_table(("Repository", "Commit", ">Files", "Verdict", "What"), [_verdict(each) for each in checked])
            print_line()
        print_line(f"{plural(len(checked), 'commit')}: {len(wrong)} with corrupt files.")
        if wrong and not repair:
            print_line("To remove them, so that the next load downloads them again: kernels cache verify --repair")
        _print_not_touched(contents)
    if wrong:
        raise typer.Exit(1)


def _verdict(each: VerifiedCommit) -> tuple[str, ...]:
    parts = []
    if each.changed:
        parts.append(f"changed: {', '.join(each.changed)}")
    if each.unlisted:
        parts.append(f"not listed: {', '.join(each.unlisted)}")
    parts += each.digest
    if each.repaired:
        parts.append("removed")
    if not each.listed:
        parts.append("the Hub's file list is not cached: compared with the names of the blobs")
    commit = each.commit
    return commit.repo_id, commit.commit[:12], str(each.files), "ok" if each.ok else "failed", "; ".join(parts)


def _plain_check(each: VerifiedCommit) -> dict[str, Any]:
    return {
        "repo_id": each.commit.repo_id,
        "commit": each.commit.commit,
        "files": each.files,
        "listed": each.listed,
        "ok": each.ok,
        "changed": each.changed,
        "unlisted": each.unlisted,
        "digest": each.digest,
        "repaired": each.repaired,
    }


# autotune


def _autotune(repos: Sequence[str], remove: bool, yes: bool, as_json: bool) -> None:
    from kernels.errors import RepositoryNotFound
    from kernels.layer.tuned import remove_tuned, tuned_folder

    decisions = _decisions(repos)
    if repos and not decisions:
        known = sorted({name for each in _decisions(()).values() if each for name in each.kernels})
        hint = did_you_mean(repos[0], known, 0.8)
        raise RepositoryNotFound(f"The cache has no decision of autotune about {format_names(repos)}.{hint}")
    if not as_json:
        if decisions:
            columns = "Layer", "Class", "Device", "Torch", "Type", "Mode", "Kernel", "Serves"
            print_table(columns, [_decision(*each) for each in decisions.items()])
            print_line()
        print_line(f"{plural(len(decisions), 'decision')} of autotune in {tuned_folder()}")
        if remove and decisions and not yes:
            confirm_removal()
    removed = [path for path in decisions if remove_tuned(path)] if remove and (yes or not as_json) else None
    if as_json:
        print_json({"decisions": [_plain_decision(*each) for each in decisions.items()], "removed": removed})
    elif removed is not None:
        print_line(f"Removed {plural(len(removed), 'decision')}.")
    if removed is not None and len(removed) < len(decisions):
        raise typer.Exit(1)


def _decisions(repos: Sequence[str]) -> dict[Path, TunedLayer | None]:
    """The decisions in the cache, or those about some kernels."""
    from kernels.layer.tuned import cached_tuned

    return {
        path: each
        for path, each in cached_tuned().items()
        if not repos or (each is not None and not set(each.kernels).isdisjoint(repos))
    }


def _decision(path: Path, each: TunedLayer | None) -> tuple[str, ...]:
    if each is None:
        return "-", "-", "-", "-", "-", "-", "-", f"ignored: {path.name} is damaged, or of another user"
    facts = [each.facts.get(name, "-") for name in ("layer", "class", "device", "torch", "dtype", "mode")]
    facts[1] = facts[1].rpartition(".")[2]
    return *facts, ", ".join(each.kernels), each.serves


def _plain_decision(path: Path, each: TunedLayer | None) -> dict[str, Any]:
    return {"file": path} | {name: getattr(each, name, None) for name in ("facts", "kernels", "serves", "out")}


# Shared


def _print_not_touched(contents: CacheContents) -> None:
    for line in contents.left_alone:
        print_line(f"Not touched: {line}.")


def _date(seconds: float | None) -> str:
    return "unknown" if seconds is None else time.strftime("%Y-%m-%d", time.localtime(seconds))
