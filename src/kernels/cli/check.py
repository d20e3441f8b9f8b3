"""`kernels check`: whether a built kernel may be published, or used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kernels.cli._arguments import AsJson, Revision, Version

if TYPE_CHECKING:
    from kernels.authoring.check import VariantAudit

__all__ = ["check"]


def check(
    kernel: Annotated[
        str,
        typer.Argument(metavar="KERNEL", help="A repository, org/name, or a folder: a repository's, or one variant."),
    ],
    version: Version = None,
    revision: Revision = None,
    all_variants: Annotated[
        bool, typer.Option("--all-variants", help="Of a repository, every build; else the one for this machine.")
    ] = False,
    static: Annotated[bool, typer.Option("--static", help="Only read the files; load nothing.")] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Load a repository's build whoever publishes it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a built kernel: files, metadata, digest, layers, operators, sources and native code."""
    from kernels.cli._output import print_json, print_table, say

    found = _found(kernel, version, revision, all_variants, not static, trust_remote_code)
    bad = [each.variant for each in found if each.failed]
    if as_json:
        variants = [
            {"variant": each.variant, "path": each.path, "failed": each.failed, "findings": each.findings}
            for each in found
        ]
        print_json({"checked": kernel, "failed": bool(bad), "variants": variants})
    else:
        for each in found:
            rows = [(finding.step, finding.verdict, finding.what) for finding in each.findings]
            print_table(("Check", "Verdict", "What"), rows, title=each.variant)
            say("")
        count = f"{len(found)} variant{'s' * (len(found) != 1)}"
        say(f"{count}: {len(bad)} failed." if bad else f"{count}: nothing failed.")
    if bad:
        raise typer.Exit(1)


def _found(
    kernel: str, version: int | None, revision: str | None, all_variants: bool, dynamic: bool, trust: bool
) -> list[VariantAudit]:
    from kernels.authoring.check import audit
    from kernels.authoring.check.repository import audit_repository
    from kernels.errors import RequestError
    from kernels.operations.info import is_path

    if not is_path(kernel):
        return audit_repository(
            kernel,
            version=version,
            revision=revision,
            all_variants=all_variants,
            dynamic=dynamic,
            trust_remote_code=trust,
        )
    if version is not None or revision is not None:
        raise RequestError(f"{kernel} is a folder, which has one version only; leave --version and --revision out.")
    return audit(kernel, dynamic=dynamic)
