"""`kernels verify-signature`: like `kernels verify`, but unsigned builds fail."""

from __future__ import annotations

from typing import Annotated

import typer

from kernels.cli._arguments import AllVariants, PolicyFile, Repository
from kernels.cli._output import print_line, print_table

__all__ = ["verify_signature"]


def verify_signature(
    repo: Repository,
    version: Annotated[int, typer.Argument(metavar="VERSION", help="Major version.")],
    all_variants: AllVariants = False,
    filter_unsigned: Annotated[
        bool, typer.Option("--filter-unsigned", help="Skip builds without a signature.")
    ] = False,
    filter_no_digest: Annotated[
        bool, typer.Option("--filter-no-digest", help="Skip builds without a digest in their metadata.")
    ] = False,
    policy: PolicyFile = None,
) -> None:
    """Verify that a kernel's builds are signed, and that their files match the signature.

    The arguments and exit statuses are those of the existing client. Unlike in `kernels verify`, a build without a
    signature or a digest fails.

    Examples:
        $ kernels verify-signature org/my-kernel 1 --all-variants --filter-unsigned
    """
    from kernels.operations.verify import verify_repository
    from kernels.trust.policy import Policy

    rows = []
    signers = None if policy is None else Policy.read(policy)
    for each in verify_repository(repo, version=version, all_variants=all_variants, policy=signers):
        if each.failed:
            rows.append((each.variant, "failed", each.problems))
        elif each.signature.verdict != "ok":
            if not filter_unsigned:
                rows.append((each.variant, "failed", each.signature.what))
        elif each.digest.verdict != "ok":
            if not filter_no_digest:
                rows.append((each.variant, "failed", each.digest.what))
        else:
            rows.append((each.variant, "ok", each.signature.what))
    if not rows:
        print_line("No build was verified: the filters skip all of them.")
        return
    print_table(("Variant", "Verdict", "Reason"), rows)
    if any(verdict == "failed" for _, verdict, _ in rows):
        raise typer.Exit(1)
