"""`kernels verify`: whether builds on disk are what was published, pinned and signed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernels.cli._arguments import AllVariants, AsJson, PolicyFile, Revision, Version, require_no_version
from kernels.cli._output import count_failed, print_json, print_line, print_table, untrusted_line
from kernels.cli._values import Choice
from kernels.errors import RequestError
from kernels.support.formatting import plural

if TYPE_CHECKING:
    from kernels.operations.verify_report import BuildReport
    from kernels.trust.policy import Policy

__all__ = ["verify"]


class _Required(Choice):
    """A check whose result must be `ok`."""

    digest = "digest", "Its files are those in the digest of its metadata."
    pinned = "pinned", "Its content is what a lockfile pins."
    signature = "signature", "An allowed identity signed it."


def verify(
    kernel: Annotated[
        str | None,
        typer.Argument(
            metavar="[KERNEL]",
            help="Repository (org/name), or folder: of a repository, or of one variant.",
        ),
    ] = None,
    lockfile: Annotated[
        Path | None,
        typer.Option("--lockfile", metavar="FILE", help="Verify the builds and hashes that a lockfile pins."),
    ] = None,
    version: Version = None,
    revision: Revision = None,
    all_variants: AllVariants = False,
    require: Annotated[
        list[_Required] | None,
        typer.Option(
            "--require",
            metavar="CHECK",
            help="An error where a build has no digest, pinned or signature; may be repeated.",
        ),
    ] = None,
    policy: PolicyFile = None,
    offline: Annotated[bool, typer.Option("--offline", help="Use only the cache and keys on this machine.")] = False,
    trusted_root: Annotated[
        Path | None,
        typer.Option("--trusted-root", metavar="FILE", help="The trusted_root.json of another Sigstore."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify that builds on disk are what was published, pinned and signed.

    A build is downloaded if it is not on disk. None of its code runs. Exits with status 1 if a digest, pinned content
    or a signature is wrong; `missing` is what a build does not have, and an error only with --require.

    Examples:
        $ kernels verify org/my-kernel --version 1
        $ kernels verify ./my-kernel --all-variants
        $ kernels verify --lockfile kernels.lock --policy policy.toml
        $ kernels verify --lockfile kernels.lock --all-variants --require pinned
    """
    from kernels.operations.explain import is_path
    from kernels.operations.verify import verify_lock, verify_path, verify_repository

    if (kernel is None) == (lockfile is None):
        raise RequestError("Give either a repository or folder, or a lockfile (--lockfile FILE).")
    signers = _policy(policy, trusted_root)
    several = kernel is None or is_path(kernel)
    if kernel is not None and not is_path(kernel):
        found = verify_repository(
            kernel, version=version, revision=revision, all_variants=all_variants, policy=signers, offline=offline
        )
    elif kernel is not None:
        require_no_version(kernel, version, revision)
        found = verify_path(Path(kernel), policy=signers, offline=offline)
    else:
        if version is not None or revision is not None:
            raise RequestError(f"{lockfile} pins the versions; leave --version and --revision out.")
        assert lockfile is not None
        found = verify_lock(lockfile, all_variants=all_variants, policy=signers, offline=offline)
    found = [each.requiring([check.value for check in require or ()]) for each in found]
    failed = sum(each.failed for each in found)
    if as_json:
        print_json({"verified": kernel or lockfile, "failed": bool(failed), "builds": [_plain(each) for each in found]})
    else:
        _print(found, several=several)
        print_line()
        for repo_id in dict.fromkeys(each.repo_id for each in found if each.untrusted):
            print_line(untrusted_line(str(repo_id)))
        print_line(count_failed(plural(len(found), "build"), failed))
    if failed:
        raise typer.Exit(1)


def _policy(path: Path | None, trusted_root: Path | None) -> Policy | None:
    from kernels.trust.policy import Policy, policy_to_verify

    policy = None if path is None else Policy.read(path)
    if trusted_root is None:
        return policy
    return policy_to_verify(policy).with_trusted_root(trusted_root)


def _plain(report: BuildReport) -> dict[str, object]:
    results = {each.step: {"verdict": each.verdict, "reason": each.what} for each in report.results}
    return {
        "repo_id": report.repo_id,
        "commit": report.commit,
        "variant": report.variant,
        "failed": report.failed,
        "untrusted": report.untrusted,
        **results,
        "signer": report.signer,
    }


def _print(found: list[BuildReport], *, several: bool) -> None:
    columns = ["Variant", "Digest", "Pinned", "Signature", "What"]
    rows = [[each.variant, *(result.verdict for result in each.results), _reason(each)] for each in found]
    if several and any(each.repo_id for each in found):
        columns[:0] = ["Repository", "Commit"]
        rows = [[each.repo_id or "", (each.commit or "")[:12], *row] for each, row in zip(found, rows, strict=True)]
    print_table(columns, rows)


def _reason(report: BuildReport) -> str:
    """What is wrong, or else who signed or why no signer is known."""
    return report.problems or " ".join(report.signature.what.split())
