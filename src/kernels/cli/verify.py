"""`kernels verify`: whether what lies on disk is what was published, pinned and signed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernels.cli._arguments import AsJson, PolicyFile, Revision, Version

if TYPE_CHECKING:
    from kernels.operations.verify import BuildProof
    from kernels.trust import Policy

__all__ = ["verify"]


def verify(
    kernel: Annotated[
        str | None,
        typer.Argument(
            metavar="[KERNEL]",
            help="A repository, org/name, or a folder: a repository's, one variant, or one of `download --to`.",
        ),
    ] = None,
    lockfile: Annotated[
        Path | None, typer.Option("--lockfile", metavar="FILE", help="Verify what a lock pins, and its hashes.")
    ] = None,
    version: Version = None,
    revision: Revision = None,
    all_variants: Annotated[
        bool, typer.Option("--all-variants", help="Every build; else the one for this machine.")
    ] = False,
    policy: PolicyFile = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Connect to nothing: the cache, and keys that are on this machine.")
    ] = False,
    trusted_root: Annotated[
        Path | None,
        typer.Option("--trusted-root", metavar="FILE", help="The trusted_root.json of the Sigstore to believe."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify builds on disk: digest, pinned content and signature, a verdict each."""
    from kernels.cli._output import print_json, say
    from kernels.operations.info import is_path

    allowed = _policy(policy, trusted_root)
    found = _found(kernel, lockfile, version, revision, all_variants, allowed, offline)
    failed = sum(each.failed for each in found)
    if as_json:
        print_json({"verified": kernel or lockfile, "failed": bool(failed), "builds": [_plain(each) for each in found]})
    else:
        _print(found, several=kernel is None or is_path(kernel))
        count = f"{len(found)} build{'s' * (len(found) != 1)}"
        say(f"\n{count}: {failed} failed." if failed else f"\n{count}: nothing failed.")
    if failed:
        raise typer.Exit(1)


def _found(
    kernel: str | None,
    lockfile: Path | None,
    version: int | None,
    revision: str | None,
    all_variants: bool,
    policy: Policy | None,
    offline: bool,
) -> list[BuildProof]:
    from kernels.errors import RequestError
    from kernels.operations.info import is_path
    from kernels.operations.verify import verify_lock, verify_path, verify_repository

    if (kernel is None) == (lockfile is None):
        raise RequestError("Name one of both to verify: a repository or folder, or a lock file (--lockfile FILE).")
    if kernel is not None and not is_path(kernel):
        return verify_repository(
            kernel, version=version, revision=revision, all_variants=all_variants, policy=policy, offline=offline
        )
    if version is not None or revision is not None:
        one = f"{kernel} is a folder, which has one version only" if lockfile is None else f"{lockfile} says which"
        raise RequestError(f"{one}; leave --version and --revision out.")
    if lockfile is not None:
        return verify_lock(lockfile, all_variants=all_variants, policy=policy, offline=offline)
    return verify_path(Path(str(kernel)), policy=policy, offline=offline)


def _policy(path: Path | None, trusted_root: Path | None) -> Policy | None:
    from kernels.trust import Policy

    policy = None if path is None else Policy.read(path)
    if trusted_root is None:
        return policy
    return (policy or Policy.in_force() or Policy.community()).with_trusted_root(trusted_root)


def _plain(proof: BuildProof) -> dict[str, object]:
    return {
        "repo_id": proof.repo_id,
        "commit": proof.commit,
        "variant": proof.variant,
        "failed": proof.failed,
        "digest": proof.digest,
        "pinned": proof.pinned,
        "signature": proof.signature,
        "signer": proof.signer,
    }


def _print(found: list[BuildProof], *, several: bool) -> None:
    from kernels.cli._output import print_table

    columns = ["Variant", "Digest", "Pinned", "Signature", "What"]
    rows = [[each.variant, *(proof.verdict for proof in each.proofs), _reason(each)] for each in found]
    if several and any(each.repo_id for each in found):
        columns[:0] = ["Repository", "Commit"]
        rows = [[each.repo_id or "", (each.commit or "")[:12], *row] for each, row in zip(found, rows, strict=True)]
    print_table(columns, rows)


def _reason(proof: BuildProof) -> str:
    """What is wrong; where nothing is, who signed, or why nobody can be named."""
    return proof.wrong or " ".join(proof.signature.reason.split())
