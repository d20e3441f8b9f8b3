"""The report on one build on disk: digest, pinned content and signature, each with a result."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from kernels.errors import InvalidMetadata, KernelsError, StoreError, UntrustedSignature
from kernels.models.lockfile import ContentHash
from kernels.models.metadata import Metadata
from kernels.models.snapshot import BUNDLE_FILE, METADATA_FILE, RepoFile
from kernels.resolver.metadata_of import check_signed_version
from kernels.support.checks import CheckResult
from kernels.support.formatting import plural
from kernels.trust.content import BuildContent
from kernels.trust.policy import Identity, Rule
from kernels.trust.sigstore import read_signed, verify_bundle

__all__ = ["BuildReport", "report_on_folder"]


class BuildReport(msgspec.Struct, frozen=True):
    """The results of the checks of one build on disk.

    Attributes:
        variant: Its name.
        digest: Whether its files are those in the digest of its metadata.
        pinned: Whether its content is what a lock pins.
        signature: Whether its metadata is signed by an identity that the policy allows.
        signer: Who signed, where the signature is accepted.
        repo_id: Its repository; None for a folder.
        commit: The commit; None for a folder.
        untrusted: Whether the Hub says that the publisher is not trusted, or that no branch or tag leads to the commit:
            `get_kernel` refuses the build unless the caller allows it.
    """

    variant: str
    digest: CheckResult
    pinned: CheckResult
    signature: CheckResult
    signer: Identity | None = None
    repo_id: str | None = None
    commit: str | None = None
    untrusted: bool = False

    @property
    def results(self) -> tuple[CheckResult, CheckResult, CheckResult]:
        """The results in the order of tables."""
        return self.digest, self.pinned, self.signature

    @property
    def failed(self) -> bool:
        """Whether a check failed."""
        return any(each.verdict == "failed" for each in self.results)

    def requiring(self, steps: Collection[str]) -> BuildReport:
        """The same report, in which each of these checks that is not ok has failed.

        Args:
            steps: `digest`, `pinned` or `signature`.
        """
        unmet = {
            each.step: CheckResult(each.step, "failed", f"{each.what}, and --require {each.step}")
            for each in self.results
            if each.step in steps and each.verdict not in ("ok", "failed")
        }
        return msgspec.structs.replace(self, **unmet) if unmet else self

    @property
    def problems(self) -> str:
        """The failed results, on one line."""
        reasons = [" ".join(each.what.split()).rstrip(".") for each in self.results if each.verdict == "failed"]
        return "; ".join(dict.fromkeys(reasons))


def report_on_folder(
    folder: Path,
    rules: Sequence[Rule],
    *,
    pinned: ContentHash | None = None,
    listed: Collection[RepoFile] = (),
    offline: bool = False,
    version: int | None = None,
    remedy: str = "Build or download it again.",
) -> BuildReport:
    """Check one build's folder: the signature before the metadata is parsed, then the files.

    Args:
        folder: The build's folder.
        rules: Who may sign; one of the rules must accept the signature.
        pinned: The content that a lock pins.
        listed: The build's files as a Hub lists them.
        offline: Use the keys that are on this machine.
        version: The version that must have been signed; None if the caller names no version.
        remedy: What to do if the files are not those in the digest.

    Raises:
        MissingPythonDependency: There is a signature, and sigstore is not installed (an `ImportError`).
        RequestError, HubUnavailable: The keys to verify with are not available.
    """
    content = BuildContent(folder)
    pin = _check_pin(content, pinned, listed)
    try:
        written, bundle = read_signed(folder)
        signer = _signer(written, bundle, rules, offline)
        metadata = _parsed(written)
        if signer is not None and isinstance(metadata, Metadata):
            check_signed_version(version, metadata)
    except (UntrustedSignature, InvalidMetadata, StoreError) as error:
        digest = CheckResult("digest", "skipped", "the metadata is not what was signed")
        return BuildReport(folder.name, digest, pin, CheckResult("signature", "failed", str(error)))
    digest = _check_digest(content, metadata, remedy)
    if signer is None:
        unsigned = CheckResult("signature", "missing", f"unsigned: it has no {BUNDLE_FILE}")
        return BuildReport(folder.name, digest, pin, unsigned)
    if digest.verdict == "missing" and any(rule.required for rule in rules):
        digest = CheckResult("digest", "failed", f"{digest.what}: the signature does not cover the files")
    return BuildReport(folder.name, digest, pin, CheckResult("signature", "ok", f"signed by {signer}"), signer)


def _signer(metadata: bytes | None, bundle: bytes | None, rules: Sequence[Rule], offline: bool) -> Identity | None:
    """Who signed the metadata, which is not parsed; None if nobody did and nobody has to."""
    if bundle is None:
        required = next((rule for rule in rules if rule.required), None)
        if required is not None:
            raise UntrustedSignature(f"unsigned, and {required.where} requires a signature")
        return None
    if metadata is None:
        raise UntrustedSignature(f"it has a {BUNDLE_FILE} and no {METADATA_FILE}")
    return verify_bundle(metadata, bundle, rules, offline=offline)


def _parsed(metadata: bytes | None) -> Metadata | InvalidMetadata | None:
    try:
        return None if metadata is None else Metadata.from_bytes(metadata)
    except InvalidMetadata as error:
        return error


def _check_digest(content: BuildContent, metadata: Metadata | InvalidMetadata | None, remedy: str) -> CheckResult:
    if metadata is None:
        return CheckResult("digest", "missing", f"it has no {METADATA_FILE}")
    try:
        if isinstance(metadata, InvalidMetadata):
            raise metadata
        if metadata.digest is None:
            return CheckResult("digest", "missing", f"its {METADATA_FILE} has no digest")
        content.check_digest(metadata.digest, remedy)
    except (KernelsError, OSError) as error:
        return CheckResult("digest", "failed", str(error))
    return CheckResult("digest", "ok", f"{metadata.digest.algorithm} of {plural(len(metadata.digest.files), 'file')}")


def _check_pin(content: BuildContent, pinned: ContentHash | None, listed: Collection[RepoFile]) -> CheckResult:
    if pinned is None:
        return CheckResult("pinned", "missing", "no lockfile pins its content")
    try:
        found = content.pinned_hash(pinned.kind, listed)
    except (KernelsError, OSError) as error:
        return CheckResult("pinned", "failed", str(error))
    if found == pinned:
        return CheckResult("pinned", "ok", f"{pinned.kind} as pinned")
    return CheckResult("pinned", "failed", f"expected the {pinned.kind} hash {pinned.value}, got {found.value}")
