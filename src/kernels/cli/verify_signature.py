"""`kernels verify-signature`: a form of `kernels verify` in which a build has to be signed."""

from __future__ import annotations

from typing import Annotated

import typer

from kernels.cli._arguments import PolicyFile, Repository

__all__ = ["verify_signature"]


def verify_signature(
    repo: Repository,
    version: Annotated[int, typer.Argument(metavar="VERSION", help="A major version.")],
    all_variants: Annotated[
        bool, typer.Option("--all-variants", help="Every build; else the one for this machine.")
    ] = False,
    filter_unsigned: Annotated[
        bool, typer.Option("--filter-unsigned", help="Leave builds out that have no signature.")
    ] = False,
    filter_no_digest: Annotated[
        bool, typer.Option("--filter-no-digest", help="Leave builds out whose metadata has no digest.")
    ] = False,
    policy: PolicyFile = None,
) -> None:
    """Verify that a kernel's builds are signed, and that their files are what was signed."""
    from kernels.cli._output import print_table, say
    from kernels.operations.verify import verify_repository
    from kernels.trust import Policy

    rows = []
    allowed = None if policy is None else Policy.read(policy)
    for each in verify_repository(repo, version=version, all_variants=all_variants, policy=allowed):
        if each.failed:
            rows.append((each.variant, "failed", each.wrong))
        elif each.signature.verdict != "ok":
            if not filter_unsigned:
                rows.append((each.variant, "failed", each.signature.reason))
        elif each.digest.verdict != "ok":
            if not filter_no_digest:
                rows.append((each.variant, "failed", each.digest.reason))
        else:
            rows.append((each.variant, "ok", each.signature.reason))
    if not rows:
        say("No build was verified: the filters leave all of them out.")
        return
    print_table(("Variant", "Verdict", "Reason"), rows)
    if any(verdict == "failed" for _, verdict, _ in rows):
        raise typer.Exit(1)
