"""`kernels check`: whether a built kernel is fit to publish or use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernels.cli._arguments import (
    AllVariants,
    AsJson,
    KernelOrVariant,
    Revision,
    TrustRemoteCode,
    Version,
    require_no_version,
)
from kernels.cli._output import count_failed, print_json, print_line, print_note, print_table
from kernels.support.formatting import plural, shell_word
from kernels.support.text import clean

if TYPE_CHECKING:
    from kernels.authoring.scaffold.strip import StrippedFile

__all__ = ["check"]


def check(
    kernel: KernelOrVariant,
    version: Version = None,
    revision: Revision = None,
    all_variants: AllVariants = False,
    static: Annotated[bool, typer.Option("--static", help="Only read the files; load nothing.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Hints, and what is missing, are errors.")] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Show what --fix would remove from the Python sources; change nothing.")
    ] = False,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix", help="Remove from the Python sources what their backends forbid, and show the difference."
        ),
    ] = False,
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Check a built kernel: files, metadata, digest, layers, operators, sources and native code.

    A build that fits this machine is loaded in a child process, where its code runs with your rights; --static loads
    nothing. Exits with status 1 if a check failed.

    Examples:
        $ kernels check my-kernel --all-variants
        $ kernels check org/my-kernel --version 1 --static
        $ kernels check my-kernel --diff
    """
    from kernels.authoring.check.audit import audit
    from kernels.authoring.check.repository import audit_repository
    from kernels.authoring.publish.preview import note_on_page
    from kernels.operations.explain import is_path

    if diff or fix:
        _strip(kernel, write=fix, as_json=as_json)
        return
    if is_path(kernel):
        require_no_version(kernel, version, revision)
        found = audit(kernel, dynamic=not static)
    else:
        found = audit_repository(
            kernel,
            version=version,
            revision=revision,
            all_variants=all_variants,
            dynamic=not static,
            trust_remote_code=trust_remote_code,
        )
    if strict:
        found = [each.strict() for each in found]
    failed = sum(each.failed for each in found)
    if as_json:
        variants = [
            {"variant": each.variant, "path": each.path, "failed": each.failed, "findings": each.findings}
            for each in found
        ]
        print_json({"checked": kernel, "failed": bool(failed), "variants": variants})
    else:
        for each in found:
            rows = [(finding.step, finding.verdict, finding.what) for finding in each.findings]
            print_table(("Check", "Verdict", "What"), rows, title=each.variant)
            print_line()
        print_line(count_failed(plural(len(found), "variant"), failed))
    if is_path(kernel) and (note := note_on_page(kernel)) is not None:
        print_note(f"Note: {note}.")
    if failed:
        raise typer.Exit(1)


def _strip(folder: str, *, write: bool, as_json: bool) -> None:
    """Show what the backends of a kernel's sources forbid in them, and remove it if asked."""
    from kernels.authoring.scaffold.strip import strip_sources

    found = strip_sources(folder, write=write)
    changed = [each for each in found if each.diff]
    left = [(each.path, line, reason) for each in found for line, reason in each.left]
    if as_json:
        by_hand = [{"path": path, "line": line, "reason": reason} for path, line, reason in left]
        diffs = [{"path": each.path, "diff": each.diff} for each in changed]
        print_json({"checked": folder, "written": write, "changed": diffs, "left": by_hand})
    else:
        _print_stripped(folder, changed, left, write=write)
    if left or (changed and not write):
        raise typer.Exit(1)


def _print_stripped(
    folder: str, changed: list[StrippedFile], left: list[tuple[Path, int, str]], *, write: bool
) -> None:
    for each in changed:
        for text in each.diff.splitlines():
            print_line(clean(text))
    for path, line, reason in left:
        print_line(f"{path}, line {line}, needs a change by hand: {clean(reason)}")
    if not changed and not left:
        print_line("The Python sources have nothing that their backends forbid.")
    elif changed and write:
        print_line(f"Changed {plural(len(changed), 'file')}: run kernels build {shell_word(folder)}, and check again.")
    elif changed:
        print_line(
            f"Nothing was changed; kernels check {shell_word(folder)} --fix changes {plural(len(changed), 'file')}."
        )
