"""`kernels check`: whether a built kernel is fit to publish or use."""

from __future__ import annotations

from typing import Annotated

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
from kernels.cli._output import count_failed, print_json, print_line, print_table
from kernels.support.formatting import plural

__all__ = ["check"]


def check(
    kernel: KernelOrVariant,
    version: Version = None,
    revision: Revision = None,
    all_variants: AllVariants = False,
    static: Annotated[bool, typer.Option("--static", help="Only read the files; load nothing.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Hints, and what is missing, are errors.")] = False,
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Check a built kernel: files, metadata, digest, layers, operators, sources and native code."""
    from kernels.authoring.check import audit
    from kernels.authoring.check.repository import audit_repository
    from kernels.operations.info import is_path

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
    if failed:
        raise typer.Exit(1)
