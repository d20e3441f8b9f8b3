"""`kernels versions`: the versions of a repository."""

from __future__ import annotations

from kernels.cli._arguments import AsJson, Repository
from kernels.cli._output import print_json, print_table
from kernels.errors import RequestError
from kernels.support.formatting import shell_word

__all__ = ["versions"]


def versions(repo: Repository, as_json: AsJson = False) -> None:
    """List the versions of a repository: commit, date, number of builds, and the build that fits this machine.

    Only the newest 50 versions are looked at.

    Examples:
        $ kernels versions org/my-kernel
    """
    from kernels.operations import explain

    if explain.is_path(repo):
        raise RequestError(
            f"{repo} is a folder, which has one version only; `kernels info {shell_word(repo)}` describes it."
        )
    found = explain.repository_versions(repo)
    if as_json:
        print_json(found)
        return
    shown = [each for each in found if each.looked_at]
    older = len(found) - len(shown)
    title = f"{repo}: the newest {len(shown)}; {older} older versions are not shown" if older else repo
    if not found:
        title = f"{repo} has no versions: it has no branch named v<number>. Use --revision to load it."
    locked = any(each.locked for each in shown)
    moved = any(each.moved_to for each in shown)
    several = len({each.source for each in shown}) > 1
    rows = [
        (
            str(each.version),
            each.commit[:12],
            (each.date or "-")[:10],
            str(len(each.builds)),
            each.fits or (f"? {' '.join(each.problem.split())}" if each.problem else "none"),
            *(["" if each.locked is None else each.locked[:12]] if locked else []),
            *([each.moved_to or ""] if moved else []),
            *([each.source or ""] if several else []),
        )
        for each in shown
    ]
    optional = [*["Locked"] * locked, *["Moved to"] * moved, *["From"] * several]
    print_table((">Version", "Commit", "Date", ">Builds", "Fits here", *optional), rows, title=title)
